#include "fleet_clock_reader.h"

namespace fabricpulse {
namespace {

constexpr std::int64_t kCheckNs = 250'000'000;

}  // namespace

FleetClockReader::~FleetClockReader() { fp_fleet_clock_close(&clock_); }

void FleetClockReader::follow_file() {
  if (clock_.page != nullptr && fp_fleet_clock_stale(&clock_, path_.c_str()) == 0) return;
  fp_fleet_clock_close(&clock_);
  fp_fleet_clock_open(&clock_, path_.c_str());  // without a page there is no fleet time
}

void FleetClockReader::refresh(std::int64_t now_ns) {
  if (path_.empty()) return;
  if (now_ns >= next_check_) {
    next_check_ = now_ns + kCheckNs;
    follow_file();
  }
  ok_ = false;
  status_ = FP_CLOCK_UNKNOWN;
  bound_ns_ = 0;
  if (clock_.page == nullptr || fp_fleet_clock_copy(&clock_, &page_) != 0) return;
  distrusted_ = distrusted_ && page_.disruptions == distrusted_disruptions_;
  if (distrusted_ && page_.status != FP_CLOCK_UNKNOWN) page_.status = FP_CLOCK_DISRUPTED;
  const fp_fleet_time t = fp_clock_at(&page_, fp_raw_clock_now());
  status_ = t.status;
  bound_ns_ = t.bound_ns;
  ok_ = t.status == FP_CLOCK_SYNCHRONIZED || t.status == FP_CLOCK_HOLDOVER;
}

void FleetClockReader::distrust() {
  distrusted_ = true;
  distrusted_disruptions_ = page_.disruptions;
  ok_ = false;
}

}  // namespace fabricpulse
