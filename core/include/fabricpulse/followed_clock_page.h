// The clock page of this host, followed while the sidecar comes, goes and comes again with another file.
#ifndef FABRICPULSE_FOLLOWED_CLOCK_PAGE_H_
#define FABRICPULSE_FOLLOWED_CLOCK_PAGE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "fabricpulse/clock_page.h"
#include "fabricpulse/trusted_file.h"

namespace fabricpulse {

// One thread's. A page that others than its owner may write to is never mapped (trusted_file.h).
class FollowedClockPage {
 public:
  // path : `<run>/clock`; empty: there is no fleet time. check_ns : how often the file is asked for again.
  FollowedClockPage(std::string path, std::int64_t check_ns)
      : path_(std::move(path)), folder_(folder_of(path_)), check_ns_(check_ns) {}
  ~FollowedClockPage() { fp_fleet_clock_close(&clock_); }
  FollowedClockPage(const FollowedClockPage&) = delete;
  FollowedClockPage& operator=(const FollowedClockPage&) = delete;

  // A copy of the page, for fp_clock_at(), as fp_fleet_clock_copy() makes it. False, with `copy` as it was: there is
  // no page. now_ns : monotonic.
  bool read(std::int64_t now_ns, fp_clock_page* copy) {
    if (path_.empty()) return false;
    if (now_ns >= next_check_ns_) {
      next_check_ns_ = now_ns + check_ns_;
      follow_file();
    }
    if (clock_.file == nullptr) return false;
    fp_fleet_clock_copy(&clock_, copy);
    return true;
  }

 private:
  static std::string folder_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  }

  void follow_file() {
    if (clock_.file != nullptr && fp_fleet_clock_stale(&clock_, path_.c_str()) == 0) return;
    fp_fleet_clock_close(&clock_);
    const int fd = open_trusted_file(folder_, path_);
    if (fd >= 0) fp_fleet_clock_map(&clock_, fd);  // without a page there is no fleet time
  }

  const std::string path_, folder_;
  const std::int64_t check_ns_;
  fp_fleet_clock clock_{};
  std::int64_t next_check_ns_ = INT64_MIN;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_FOLLOWED_CLOCK_PAGE_H_
