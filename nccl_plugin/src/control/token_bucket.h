// How often something may happen: so much at once, and so much a second. Pure: the caller brings the clocks.
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
  // From the last advance() on.
  void set_rate(double per_second) { per_second_ = per_second; }
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
  double per_second_;
  const double most_;
  double tokens_;
  uint64_t at_ns_ = 0;
};

// How many tokens a second a process may spend: what it uses itself tells.
class CostShare {
 public:
  struct Terms {
    double share;                              // of its processor time
    double token_ns;                           // of a processor
    double least_per_second, most_per_second;  // tokens
  };
  explicit CostShare(const Terms& terms) : terms_(terms) {}

  // To ask a process of many threads for its processor time is not free.
  bool due(uint64_t now_ns) const { return now_ns > at_ns_ && now_ns - at_ns_ >= kEveryNs; }
  // cpu_ns: what the process has used so far. Returns the rate from what it has used since the last time.
  double note(uint64_t now_ns, uint64_t cpu_ns) {
    const double passed = now_ns > at_ns_ ? static_cast<double>(now_ns - at_ns_) : 0;
    const double used = cpu_ns > cpu_ns_ ? static_cast<double>(cpu_ns - cpu_ns_) : 0;
    const double processors = at_ns_ != 0 && passed > 0 ? used / passed : 0;
    at_ns_ = now_ns;
    cpu_ns_ = cpu_ns;
    return std::clamp(processors * terms_.share * 1e9 / terms_.token_ns, terms_.least_per_second,
                      terms_.most_per_second);
  }

 private:
  static constexpr uint64_t kEveryNs = 100'000'000;

  const Terms terms_;
  uint64_t at_ns_ = 0, cpu_ns_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CONTROL_TOKEN_BUCKET_H_
