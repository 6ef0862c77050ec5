// Fleet time for the engine's thread: follows <run>/clock, through removal and replacement of the file, and
// converts stamps of the stamp clock.
#ifndef FABRICPULSE_EXPORTERS_FLEET_CLOCK_READER_H_
#define FABRICPULSE_EXPORTERS_FLEET_CLOCK_READER_H_

#include <cstdint>
#include <string>
#include <utility>

#include "fabricpulse/followed_clock_page.h"

namespace fabricpulse {

class FleetClockReader {
 public:
  // path : empty = there is no fleet time. stamp_epoch_ns : stamp clock minus CLOCK_MONOTONIC_RAW.
  FleetClockReader(std::string path, std::int64_t stamp_epoch_ns)
      : file_(std::move(path), kCheckNs), stamp_epoch_ns_(stamp_epoch_ns) {}

  // Reads the page. now_ns : monotonic; the file itself is checked every 250 ms.
  void refresh(std::int64_t now_ns);

  // The page is wrong: no conversions until the sidecar has taken notice, or another one has taken over what it left.
  void distrust();

  // Synchronised, or in holdover: conversions below hold.
  bool ok() const { return ok_; }
  std::uint32_t status() const { return status_; }     // enum fp_clock_status
  std::int64_t bound_ns() const { return bound_ns_; }  // of now
  fp_fleet_time convert(std::int64_t stamp_ns) const {
    return fp_clock_at(&page_, stamp_ns - stamp_epoch_ns_);
  }

 private:
  static constexpr std::int64_t kCheckNs = 250'000'000;
  // A page is not valid for longer without a writer, and who writes it then may never have been notified.
  static constexpr std::int64_t kDistrustNs = 10'000'000'000;

  FollowedClockPage file_;
  std::int64_t stamp_epoch_ns_;
  fp_clock_page page_{};  // copy of the last good read
  bool ok_ = false;
  bool distrusted_ = false;
  std::uint64_t distrusted_disruptions_ = 0;  // of the page that is distrusted
  std::int64_t now_ns_ = 0, distrusted_until_ns_ = 0;
  std::uint32_t status_ = FP_CLOCK_UNKNOWN;
  std::int64_t bound_ns_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_FLEET_CLOCK_READER_H_
