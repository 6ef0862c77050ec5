#include "fleet_clock_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fabricpulse {
namespace {

constexpr std::int64_t kCheckNs = 250'000'000;
constexpr int kReadAttempts = 100;

}  // namespace

FleetClockReader::~FleetClockReader() { unmap(); }

void FleetClockReader::unmap() {
  if (map_ != nullptr) munmap(map_, sizeof(fp_clock_page));
  map_ = nullptr;
}

void FleetClockReader::follow_file() {
  struct stat st;
  if (stat(path_.c_str(), &st) != 0) {
    unmap();
    return;
  }
  if (map_ != nullptr && st.st_ino == inode_) return;
  unmap();
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (fstat(fd, &st) == 0 && static_cast<std::size_t>(st.st_size) >= sizeof(fp_clock_page)) {
    void* map = mmap(nullptr, sizeof(fp_clock_page), PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) {
      map_ = static_cast<fp_clock_page*>(map);
      inode_ = st.st_ino;
    }
  }
  close(fd);
}

void FleetClockReader::refresh(std::int64_t now_ns, std::int64_t host_ns) {
  if (path_.empty()) return;
  if (now_ns >= next_check_) {
    next_check_ = now_ns + kCheckNs;
    follow_file();
  }
  ok_ = false;
  status_ = FP_CLOCK_UNKNOWN;
  bound_ns_ = 0;
  if (map_ == nullptr || map_->magic != FP_CLOCK_PAGE_MAGIC || map_->version != FP_CLOCK_PAGE_VERSION ||
      fp_clock_page_read(map_, &page_, kReadAttempts) != 0) {
    return;
  }
  const fp_fleet_time t = convert(host_ns);
  status_ = t.status;
  bound_ns_ = t.bound_ns;
  ok_ = t.status == FP_CLOCK_SYNCHRONIZED || t.status == FP_CLOCK_HOLDOVER;
}

}  // namespace fabricpulse
