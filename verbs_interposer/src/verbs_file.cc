#include "verbs_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "fabricpulse/clock_page.h"
#include "job/records.h"
#include "job/run_files.h"
#include "meter.h"

namespace fabricpulse::interposer {
namespace {

// A file is kept this long after its writer's end, for who has not read the last counts.
constexpr time_t kKeptSeconds = 120;

// Files of this user whose writer has ended: their lock is free.
void remove_leftovers(const std::string& directory) {
  DIR* dir = opendir(directory.c_str());
  if (dir == nullptr) return;
  while (dirent* entry = readdir(dir)) {
    const std::string name = entry->d_name;
    if (name.size() < 7 || name[0] == '.' || name.compare(name.size() - 6, 6, ".verbs") != 0) continue;
    const std::string path = directory + "/" + name;
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    struct stat status {};
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
        time(nullptr) - status.st_mtime > kKeptSeconds && flock(fd, LOCK_EX | LOCK_NB) == 0)
      unlink(path.c_str());
    ::close(fd);
  }
  closedir(dir);
}

}  // namespace

Settings Settings::from_environment(std::string* complaint) {
  Settings settings;
  static_cast<ProcessSettings&>(settings) = ProcessSettings::from_environment(complaint);
  environment_number("FABRICPULSE_VERBS_SAMPLE", 0, 1u << 20, 1, &settings.sample_every, complaint);
  return settings;
}

size_t VerbsFile::size() {
  return aligned(sizeof(fp_verbs_header)) + aligned(sizeof(fp_verbs_device) * kDevices) +
         aligned(sizeof(fp_verbs_queue_pair) * kQueuePairs) + aligned(sizeof(fp_verbs_total) * kTotals) +
         aligned(sizeof(fp_verbs_sample) * kSamples);
}

VerbsFile::VerbsFile() {
  void* map =
      mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  map_ = static_cast<uint8_t*>(map);
  header_ = reinterpret_cast<fp_verbs_header*>(map_);
  size_t offset = aligned(sizeof(fp_verbs_header));
  auto table = [&](auto*& records, uint32_t capacity) {
    using Record = std::remove_reference_t<decltype(*records)>;
    records = reinterpret_cast<Record*>(map_ + offset);
    offset += aligned(sizeof(Record) * capacity);
  };
  table(devices_, kDevices);
  table(queue_pairs_, kQueuePairs);
  table(totals_, kTotals);
  table(samples_, kSamples);
}

VerbsFile::~VerbsFile() {
  if (fd_ >= 0) ::close(fd_);
  munmap(map_, size());
}

void VerbsFile::fill_header(const Settings& settings) {
  header_->version = FP_VERBS_TELEMETRY_VERSION;
  header_->size = sizeof(fp_verbs_header);
  header_->file_size = size();
  header_->pid = static_cast<uint32_t>(getpid());
  header_->rank = settings.rank;
  header_->pid_start_ticks = process_start_ticks(header_->pid);
  header_->start_raw_ns = fp_raw_clock_now();
  header_->sample_every = settings.sample_every;
  copy_text(header_->host, settings.host.c_str());
  copy_text(header_->workload, settings.workload.c_str());
  copy_text(header_->library_version, FABRICPULSE_VERSION);
  memcpy(header_->delay_bounds_ns, kVerbsDelayBounds, sizeof(header_->delay_bounds_ns));
  auto place = [&](fp_verbs_table table, auto* records, uint32_t capacity) {
    header_->tables[table] = {static_cast<uint64_t>(reinterpret_cast<uint8_t*>(records) - map_),
                              sizeof(*records), capacity};
  };
  place(FP_VERBS_DEVICES, devices_, kDevices);
  place(FP_VERBS_QUEUE_PAIRS, queue_pairs_, kQueuePairs);
  place(FP_VERBS_TOTALS, totals_, kTotals);
  place(FP_VERBS_SAMPLES, samples_, kSamples);
  header_->magic = FP_VERBS_TELEMETRY_MAGIC;
}

void VerbsFile::publish(const Settings& settings, const char* suffix) {
  fill_header(settings);
  if (!settings.telemetry) return;
  const std::string directory = settings.run_dir + "/plugin";
  const std::string name = process_file_name() + suffix;
  if (!make_directories(directory)) return;
  remove_leftovers(directory);
  NewRunFile file(directory, name);
  if (file.fd() < 0) return;
  // Written whole: a full file system must not become a SIGBUS later.
  if (flock(file.fd(), LOCK_EX | LOCK_NB) != 0 ||
      pwrite(file.fd(), map_, size(), 0) != static_cast<ssize_t>(size()) ||
      mmap(map_, size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.fd(), 0) == MAP_FAILED)
    return;
  if (file.put_in_place(directory + "/" + name + ".verbs")) fd_ = file.release();  // it has the lock
}

void VerbsFile::leave_to_parent() {
  (void)mmap(map_, size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0);
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  new (&sample_lock_) std::mutex;  // a thread that the child does not have may hold it
}

void VerbsFile::finish() {
  if (fd_ >= 0) futimens(fd_, nullptr);
}

uint32_t VerbsFile::device(const char* name) {
  for (uint32_t i = 0; i < kDevices; ++i) {
    fp_verbs_device* record = &devices_[i];
    if (record->state != 0 && strncmp(record->name, name, sizeof(record->name) - 1) != 0) continue;
    RecordChange<fp_verbs_device> change(record);
    if (record->state == 0) copy_text(record->name, name);
    record->state = 1;
    ++record->contexts;
    return i;
  }
  return UINT32_MAX;
}

fp_verbs_queue_pair* VerbsFile::take_queue_pair() {
  for (uint32_t n = 0; n < kQueuePairs; ++n) {
    const uint32_t i = (next_ + n) % kQueuePairs;
    if (taken_[i]) continue;
    next_ = i + 1;
    taken_[i] = true;
    TablesChange birth(header_);
    fp_verbs_queue_pair* record = &queue_pairs_[i];
    RecordChange<fp_verbs_queue_pair> change(record);
    renew(record);
    return record;
  }
  ++header_->dropped_records;
  return nullptr;
}

void VerbsFile::drop_queue_pair(fp_verbs_queue_pair* record, bool keep) {
  TablesChange death(header_);
  if (keep) add_to_total(*record);
  RecordChange<fp_verbs_queue_pair> change(record);
  record->state = 0;
  taken_[record - queue_pairs_] = false;
}

void VerbsFile::add_to_total(const fp_verbs_queue_pair& record) {
  fp_verbs_total* total = nullptr;
  for (uint32_t i = 0; i < kTotals && total == nullptr; ++i) {
    fp_verbs_total* candidate = &totals_[i];
    const bool is_free = candidate->state == 0;
    if (!is_free && (candidate->device != record.device || candidate->port != record.port ||
                     candidate->peer_lid != record.peer_lid ||
                     memcmp(candidate->peer_gid, record.peer_gid, sizeof(record.peer_gid)) != 0 ||
                     memcmp(candidate->netdev, record.netdev, sizeof(record.netdev)) != 0))
      continue;
    total = candidate;
    if (!is_free) break;
    RecordChange<fp_verbs_total> change(total);
    total->state = 1;
    total->device = record.device;
    total->port = record.port;
    total->peer_lid = record.peer_lid;
    memcpy(total->peer_gid, record.peer_gid, sizeof(total->peer_gid));
    memcpy(total->netdev, record.netdev, sizeof(total->netdev));
  }
  if (total == nullptr) {
    ++header_->dropped_records;
  } else {
    RecordChange<fp_verbs_total> change(total);
    add_counters(&total->counters, record.counters);
  }
}

void VerbsFile::sample(const fp_verbs_sample& sample) {
  std::lock_guard<std::mutex> lock(sample_lock_);
  const uint64_t index = header_->samples_next;
  fp_verbs_sample* slot = &samples_[index % kSamples];
  __atomic_store_n(&slot->commit, 2 * index + 1, __ATOMIC_RELAXED);
  fence_release();
  memcpy(reinterpret_cast<uint8_t*>(slot) + sizeof(slot->commit),
         reinterpret_cast<const uint8_t*>(&sample) + sizeof(sample.commit),
         sizeof(sample) - sizeof(sample.commit));
  __atomic_store_n(&slot->commit, 2 * index + 2, __ATOMIC_RELEASE);
  __atomic_store_n(&header_->samples_next, index + 1, __ATOMIC_RELEASE);
}

}  // namespace fabricpulse::interposer
