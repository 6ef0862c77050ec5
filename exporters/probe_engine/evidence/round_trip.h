// Round-trip time of an edge without any common clock, from the four stamps that both ends hold. Pure.
//
// Out: the peer's RX stamp minus our TX stamp; back: our RX stamp minus the peer's TX stamp. Each is off by the
// offset of the two host clocks, with opposite signs, so the sum is free of it (RFC 2681, without the time that
// the peer kept the packet). The two halves are of trains some tens of milliseconds apart; clocks that differ
// by 50 ppm drift apart by 1 us in 20 ms.
#ifndef FABRICPULSE_EXPORTERS_ROUND_TRIP_H_
#define FABRICPULSE_EXPORTERS_ROUND_TRIP_H_

#include <algorithm>
#include <cstdint>

#include "packets/wire.h"

namespace fabricpulse {

// The smallest difference of the stamps that both trains have, of the coded pair: the warm-up packet pays for
// cold caches on the way. False if there is none.
inline bool smallest_difference(const TrainStamps& tx, const TrainStamps& rx, std::int64_t* ns) {
  bool found = false;
  for (int i = 1; i < kTrain; ++i) {
    if (!(tx.valid & rx.valid & 1 << i)) continue;
    std::int64_t d;
    if (__builtin_sub_overflow(rx.ns[i], tx.ns[i], &d)) continue;
    if (!found || d < *ns) *ns = d;
    found = true;
  }
  return found;
}

class RoundTrip {
 public:
  static constexpr std::int64_t kApart = 500'000'000;         // ns between the two halves, at most
  static constexpr std::int64_t kPlausible = 10'000'000'000;  // ns; beyond it a clock was stepped in between

  // Half of a round trip, with the clocks' offset in it. at_ns : when, by our host clock.
  void out(std::int64_t ns, std::int64_t at_ns) {
    out_ = ns;
    out_at_ = at_ns;
    known_ = true;
  }
  // Returns whether this made a round trip, which is then latest().
  bool back(std::int64_t ns, std::int64_t at_ns) {
    std::int64_t rtt;
    if (!known_ || at_ns - out_at_ > kApart || out_at_ - at_ns > kApart) return false;
    if (__builtin_add_overflow(out_, ns, &rtt) || rtt < 0 || rtt >= kPlausible) return false;
    recent_[next_] = rtt;
    next_ = (next_ + 1) % kRecent;
    count_ = std::min(count_ + 1, kRecent);
    return true;
  }
  // Our host clock was stepped.
  void forget() { known_ = false; }
  std::int64_t latest() const { return recent_[(next_ + kRecent - 1) % kRecent]; }
  int count() const { return count_; }
  // Of the last ones, 16 at most. Undefined when count() is 0.
  std::int64_t median() const {
    std::int64_t sorted[kRecent];
    std::copy(recent_, recent_ + count_, sorted);
    std::nth_element(sorted, sorted + count_ / 2, sorted + count_);
    return sorted[count_ / 2];
  }

 private:
  static constexpr int kRecent = 16;
  std::int64_t out_ = 0, out_at_ = 0;
  bool known_ = false;
  std::int64_t recent_[kRecent] = {};
  int next_ = 0, count_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_ROUND_TRIP_H_
