#include "ring_writer.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "fabricpulse/create_exclusive.h"

namespace fabricpulse {
namespace {

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

// A file that is not to stay: it holds the room that others may need.
[[noreturn]] void discard(const std::string& temporary, int error, const std::string& what) {
  unlink(temporary.c_str());
  fail(error, what);
}

}  // namespace

std::int64_t old_stamp_epoch(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return 0;
  fp_probe_ring_header header{};
  const bool whole = pread(fd, &header, sizeof(header), 0) == static_cast<ssize_t>(sizeof(header));
  close(fd);
  const bool known = header.magic == FP_PROBE_RING_MAGIC && header.version == FP_PROBE_RING_VERSION;
  return whole && known ? header.stamp_epoch_ns : 0;
}

RingWriter::RingWriter(const std::string& path, const std::string& host, std::uint32_t epoch,
                       std::uint32_t edge_capacity, std::uint32_t capacity, std::int64_t stamp_epoch_ns) {
  const std::size_t edges_offset = (sizeof(fp_probe_ring_header) + 63) / 64 * 64;
  const std::size_t samples_offset =
      (edges_offset + 2 * edge_capacity * sizeof(fp_probe_edge) + 4095) / 4096 * 4096;
  size_ = samples_offset + static_cast<std::size_t>(capacity) * sizeof(fp_probe_sample);
  std::string temporary;
  const int fd = create_exclusive(path + ".new", &temporary);
  if (fd < 0) fail(errno, "cannot create " + temporary);
  fchmod(fd, 0644);
  // Allocated now: in a file with holes a full file system is a SIGBUS at the first write, without a word.
  if (const int error = posix_fallocate(fd, 0, static_cast<off_t>(size_)); error != 0) {
    close(fd);
    discard(temporary, error, "cannot size " + temporary);
  }
  map_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int map_error = errno;
  close(fd);
  if (map_ == MAP_FAILED) {
    map_ = nullptr;
    discard(temporary, map_error, "cannot map " + temporary);
  }
  auto* bytes = static_cast<std::uint8_t*>(map_);
  // Every page now, so that the engine's thread has no page faults to pay for later.
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (std::size_t at = 0; at < size_; at += page) *static_cast<volatile std::uint8_t*>(bytes + at) = 0;
  header_ = reinterpret_cast<fp_probe_ring_header*>(bytes);
  edges_ = reinterpret_cast<fp_probe_edge*>(bytes + edges_offset);
  samples_ = reinterpret_cast<fp_probe_sample*>(bytes + samples_offset);
  header_->magic = FP_PROBE_RING_MAGIC;
  header_->version = FP_PROBE_RING_VERSION;
  header_->size = sizeof(fp_probe_ring_header);
  header_->edge_size = sizeof(fp_probe_edge);
  header_->edge_capacity = edge_capacity;
  header_->sample_size = sizeof(fp_probe_sample);
  header_->capacity = capacity;
  header_->edges_offset = edges_offset;
  header_->samples_offset = samples_offset;
  std::snprintf(header_->host, sizeof(header_->host), "%s", host.c_str());
  header_->writer_pid = static_cast<std::uint32_t>(getpid());
  header_->epoch = epoch;
  header_->stamp_epoch_ns = stamp_epoch_ns;
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    munmap(map_, size_);
    discard(temporary, error, "cannot put " + path + " in place");
  }
}

RingWriter::~RingWriter() {
  if (map_ != nullptr) munmap(map_, size_);
}

const fp_probe_edge& RingWriter::edge_in_force(std::uint32_t index) const {
  return edges_[(header_->edges_sequence & 1) * header_->edge_capacity + index];
}

void RingWriter::change_edge(std::uint32_t index, const fp_probe_edge& edge) {
  const std::uint64_t next = header_->edges_sequence + 1;
  fp_probe_edge* table = edges_ + (next & 1) * header_->edge_capacity;
  // A reader that still copies this table sees another sequence than the one with which it was in force.
  table[changed_] = edge_in_force(changed_);
  table[index] = edge;
  __atomic_store_n(&header_->edges_sequence, next, __ATOMIC_RELEASE);
  changed_ = index;
}

void RingWriter::set_edge(std::uint32_t index, const fp_probe_edge& edge) {
  fp_probe_edge entry = edge;
  entry.generation = edge_in_force(index).generation + 1;
  entry.state = FP_EDGE_ACTIVE;
  change_edge(index, entry);
}

void RingWriter::retire_edge(std::uint32_t index) {
  fp_probe_edge entry = edge_in_force(index);
  entry.state = FP_EDGE_RETIRED;
  change_edge(index, entry);
}

void RingWriter::contradicted() {
  __atomic_store_n(&header_->contradictions, header_->contradictions + 1, __ATOMIC_RELEASE);
  wake();
}

void RingWriter::doubted() {
  __atomic_store_n(&header_->doubts, header_->doubts + 1, __ATOMIC_RELEASE);
  wake();
}

void RingWriter::set_hidden_jump(std::int64_t ns) {
  if (ns == header_->hidden_jump_ns) return;
  __atomic_store_n(&header_->hidden_jump_ns, ns, __ATOMIC_RELEASE);
  wake();
}

void RingWriter::wake() {
  syscall(SYS_futex, &header_->contradictions, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void RingWriter::write(const fp_probe_sample& sample) {
  fp_probe_sample* slot = &samples_[next_ & (header_->capacity - 1)];
  __atomic_store_n(&slot->commit, 2 * next_ + 1, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  std::memcpy(reinterpret_cast<std::uint8_t*>(slot) + sizeof(slot->commit),
              reinterpret_cast<const std::uint8_t*>(&sample) + sizeof(sample.commit),
              sizeof(sample) - sizeof(sample.commit));
  __atomic_store_n(&slot->commit, 2 * next_ + 2, __ATOMIC_RELEASE);
  ++next_;
  __atomic_store_n(&header_->next, next_, __ATOMIC_RELEASE);
  // The ring is larger than a cache: the place of the next sample is fetched while its packet is worked on.
  const auto* coming = reinterpret_cast<const std::uint8_t*>(&samples_[next_ & (header_->capacity - 1)]);
  for (std::size_t at = 0; at < sizeof(fp_probe_sample); at += 64) __builtin_prefetch(coming + at, 1);
}

}  // namespace fabricpulse
