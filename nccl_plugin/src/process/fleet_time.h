// Fleet time from the clock page of this host, for chunk stamps.
#ifndef FABRICPULSE_PROCESS_FLEET_TIME_H_
#define FABRICPULSE_PROCESS_FLEET_TIME_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "fabricpulse/followed_clock_page.h"

namespace fabricpulse {

class FleetTime {
 public:
  explicit FleetTime(const std::string& run_dir);

  // service thread: reads the page. Returns enum fp_clock_status.
  uint32_t refresh(uint64_t now);
  // Any thread: fleet time now. False while the clock is not synchronised.
  bool read(int64_t* fleet_ns) const;
  // The same, with the bound of its error.
  bool read(fp_fleet_time* time) const;

 private:
  FollowedClockPage page_;
  // The page as last seen by refresh(), in words so that any thread may read it while it changes.
  static constexpr size_t kWords = sizeof(fp_clock_page) / 8;
  std::atomic<uint32_t> sequence_{0};
  std::atomic<uint64_t> words_[kWords];
  std::atomic<bool> valid_{false};
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_PROCESS_FLEET_TIME_H_
