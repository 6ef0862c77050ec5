#include "clocks/fleet_clock_reader.h"

namespace fabricpulse {

void FleetClockReader::refresh(std::int64_t now_ns) {
  ok_ = false;
  status_ = FP_CLOCK_UNKNOWN;
  bound_ns_ = 0;
  if (!file_.read(now_ns, &page_)) return;
  now_ns_ = now_ns;
  distrusted_ = distrusted_ && page_.disruptions == distrusted_disruptions_ && now_ns < distrusted_until_ns_;
  if (distrusted_ && page_.status != FP_CLOCK_UNKNOWN) page_.status = FP_CLOCK_DISRUPTED;
  const fp_fleet_time t = fp_clock_at(&page_, fp_raw_clock_now());
  status_ = t.status;
  bound_ns_ = t.bound_ns;
  ok_ = t.status == FP_CLOCK_SYNCHRONIZED || t.status == FP_CLOCK_HOLDOVER;
}

void FleetClockReader::distrust() {
  distrusted_ = true;
  distrusted_disruptions_ = page_.disruptions;
  distrusted_until_ns_ = now_ns_ + kDistrustNs;
  ok_ = false;
}

}  // namespace fabricpulse
