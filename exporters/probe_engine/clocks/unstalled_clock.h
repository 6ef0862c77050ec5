// Monotonic time without the intervals in which this engine itself was late.
//
// All health decisions are taken in unstalled time: a host that stalls (SIGSTOP, a hogged CPU, a paused
// virtual machine) gains next to none of it, so that its own absence never counts as the silence of others;
// and steps of the wall clock do not exist in it.
#ifndef FABRICPULSE_EXPORTERS_UNSTALLED_CLOCK_H_
#define FABRICPULSE_EXPORTERS_UNSTALLED_CLOCK_H_

#include <algorithm>
#include <cstdint>

namespace fabricpulse {

// Pure: monotonic time comes in. A gap above `max_gap_ns` counts as `max_gap_ns`.
class UnstalledClock {
 public:
  explicit UnstalledClock(std::int64_t max_gap_ns) : max_gap_(max_gap_ns) {}

  // Returns the unstalled time now, ns. *stall : what was left out of it, 0 when on time.
  std::int64_t advance(std::int64_t monotonic_ns, std::int64_t* stall) {
    *stall = 0;
    if (started_) {
      std::int64_t gap = monotonic_ns - last_;
      if (gap > max_gap_) {
        *stall = gap - max_gap_;
        gap = max_gap_;
      }
      unstalled_ += std::max<std::int64_t>(gap, 0);
    }
    started_ = true;
    last_ = monotonic_ns;
    return unstalled_;
  }
  std::int64_t now() const { return unstalled_; }

 private:
  std::int64_t max_gap_;
  std::int64_t unstalled_ = 0;
  std::int64_t last_ = 0;
  bool started_ = false;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_UNSTALLED_CLOCK_H_
