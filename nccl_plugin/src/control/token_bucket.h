// How often something may happen: so much at once, and so much a second. Pure: the caller brings the clock.
#ifndef FABRICPULSE_CONTROL_TOKEN_BUCKET_H_
#define FABRICPULSE_CONTROL_TOKEN_BUCKET_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace fabricpulse {

class TokenBucket {
 public:
  // `at_once`: most tokens, and those that are there at first.
  TokenBucket(double per_second, double at_once)
      : per_second_(per_second), most_(at_once), tokens_(at_once) {}

  // Time passes. A clock that goes back counts as one that stands still.
  void advance(uint64_t now_ns) {
    uint64_t passed = at_ns_ != 0 && now_ns > at_ns_ ? now_ns - at_ns_ : 0;
    at_ns_ = std::max(at_ns_, now_ns);
    tokens_ = std::min(most_, tokens_ + static_cast<double>(passed) * 1e-9 * per_second_);
  }
  bool any() const { return tokens_ >= 1; }
  // More than there are is a debt, which time pays first: at most a whole bucket, so that one expensive request, on a
  // slow processor or under an emulator, holds up the next for a bounded time.
  void take(double count = 1) { tokens_ = std::max(tokens_ - count, -most_); }
  void empty() { tokens_ = 0; }
  // Until the next token, from the last advance() on; 0 if there is one.
  uint64_t wait_ns() const {
    return any() ? 0 : static_cast<uint64_t>(std::ceil((1 - tokens_) * 1e9 / per_second_)) + 1;
  }

 private:
  const double per_second_, most_;
  double tokens_;
  uint64_t at_ns_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CONTROL_TOKEN_BUCKET_H_
