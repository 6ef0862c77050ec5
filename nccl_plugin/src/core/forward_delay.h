// The delay of chunks to the peer, separated from the delay of their acknowledgements back. Pure.
//
// As LEDBAT (RFC 6817): the receiver reports the delay of each by the two hosts' clocks, whose offset is unknown; the
// least that was seen recently is that of a chunk that did not wait, and the excess over it is queueing.
#ifndef FABRICPULSE_CORE_FORWARD_DELAY_H_
#define FABRICPULSE_CORE_FORWARD_DELAY_H_

#include <algorithm>
#include <cstdint>

namespace fabricpulse {

class ForwardDelay {
 public:
  // `delay_ns`: offset of the clocks included. `clocks`: which ones; earlier values of others are invalid.
  void measured(int64_t delay_ns, uint32_t clocks, uint64_t now) {
    if (!known_ || clocks != clocks_) {
      *this = ForwardDelay{};
      known_ = true;
      clocks_ = clocks;
      least_ = least_before_ = delay_ns;
      since_ns_ = now;
      return;
    }
    if (now - since_ns_ > kSpanNs) {
      least_before_ = least_;
      least_ = delay_ns;
      since_ns_ = now;
    }
    least_ = std::min(least_, delay_ns);
    // Untrusted input of the peer: unsigned, and bounded.
    const uint64_t waited =
        std::min(static_cast<uint64_t>(delay_ns) - static_cast<uint64_t>(std::min(least_, least_before_)),
                 kMostWaitNs);
    waited_ns_ = waited_ns_ - waited_ns_ / 8 + waited / 8;
  }
  // The part of the reverse path in `took_ns`, from a chunk's posting to its acknowledgement; 0 if that is not known.
  // Never more than kMostNs: a path whose reverse delay is longer is faulty, and more in flight would not help it.
  uint64_t way_back(uint64_t took_ns) const {
    if (!known_ || took_ns <= waited_ns_) return 0;
    return std::min(took_ns - waited_ns_, kMostNs);
  }

  static constexpr uint64_t kMostNs = 50'000'000;

 private:
  static constexpr uint64_t kMostWaitNs = 10'000'000'000;
  // The least of this time and of as much before: clocks drift apart by 1 ms in it at most.
  static constexpr uint64_t kSpanNs = 10'000'000'000;

  bool known_ = false;
  uint32_t clocks_ = 0;
  int64_t least_ = 0, least_before_ = 0;
  uint64_t since_ns_ = 0;
  uint64_t waited_ns_ = 0;  // of chunks of late, smoothed
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_FORWARD_DELAY_H_
