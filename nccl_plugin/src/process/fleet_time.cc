#include "process/fleet_time.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "core/runtime.h"

namespace fabricpulse {
namespace {

constexpr uint64_t kPollNs = 1'000'000'000;  // the file is looked for this often

}  // namespace

FleetTime::FleetTime(const std::string& run_dir) : path_(run_dir + "/clock") {
  for (auto& word : words_) word.store(0, std::memory_order_relaxed);
}

FleetTime::~FleetTime() { unmap(); }

void FleetTime::unmap() {
  if (page_ != nullptr) munmap(const_cast<fp_clock_page*>(page_), sizeof(fp_clock_page));
  page_ = nullptr;
}

// The clock daemon may come, go and come again as another file while the job runs.
void FleetTime::reopen() {
  struct stat status;
  if (stat(path_.c_str(), &status) != 0 || static_cast<size_t>(status.st_size) < sizeof(fp_clock_page)) {
    unmap();
    return;
  }
  if (page_ != nullptr && status.st_ino == inode_) return;
  unmap();
  int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* map = mmap(nullptr, sizeof(fp_clock_page), PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  if (map == MAP_FAILED) return;
  auto* page = static_cast<const fp_clock_page*>(map);
  if (page->magic == FP_CLOCK_PAGE_MAGIC && page->version == FP_CLOCK_PAGE_VERSION) {
    page_ = page;
    inode_ = status.st_ino;
  } else {
    munmap(map, sizeof(fp_clock_page));
  }
}

uint32_t FleetTime::refresh(uint64_t now, int64_t host_ns) {
  if (polled_ns_ == 0 || elapsed(now, polled_ns_) >= kPollNs) {
    polled_ns_ = now;
    reopen();
  }
  fp_clock_page copy;
  if (page_ == nullptr || fp_clock_page_read(page_, &copy, 100) != 0) {
    valid_.store(false, std::memory_order_release);
    return FP_CLOCK_UNKNOWN;
  }
  uint32_t status = fp_clock_convert(&copy, host_ns).status;
  bool valid = status == FP_CLOCK_SYNCHRONIZED || status == FP_CLOCK_HOLDOVER;
  if (valid) {
    uint64_t words[kWords];
    memcpy(words, &copy, sizeof(words));
    sequence_.fetch_add(1, std::memory_order_acq_rel);
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    sequence_.fetch_add(1, std::memory_order_release);
  }
  valid_.store(valid, std::memory_order_release);
  return status;
}

bool FleetTime::read(int64_t host_ns, int64_t* fleet_ns) const {
  if (!valid_.load(std::memory_order_acquire)) return false;
  for (int tries = 0; tries < 4; ++tries) {
    uint32_t before = sequence_.load(std::memory_order_acquire);
    if (before & 1) continue;
    uint64_t words[kWords];
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
    if (sequence_.load(std::memory_order_acquire) != before) continue;
    fp_clock_page copy;
    memcpy(&copy, words, sizeof(copy));
    fp_fleet_time time = fp_clock_convert(&copy, host_ns);
    if (time.status != FP_CLOCK_SYNCHRONIZED && time.status != FP_CLOCK_HOLDOVER) return false;
    *fleet_ns = time.fleet_ns;
    return true;
  }
  return false;
}

}  // namespace fabricpulse
