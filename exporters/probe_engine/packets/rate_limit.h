// A token bucket: how many packets a second are taken from one peer. Pure.
#ifndef FABRICPULSE_EXPORTERS_RATE_LIMIT_H_
#define FABRICPULSE_EXPORTERS_RATE_LIMIT_H_

#include <algorithm>
#include <cstdint>

namespace fabricpulse {

class RateLimit {
 public:
  // Full at the start: a burst of one second's worth is admitted.
  void start(double rate, std::int64_t now_ns) {
    tokens_ = rate;
    at_ = now_ns;
  }
  bool admit(double rate, std::int64_t now_ns) {
    tokens_ = std::min(rate, tokens_ + static_cast<double>(now_ns - at_) * 1e-9 * rate);
    at_ = now_ns;
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }

 private:
  double tokens_ = 0;
  std::int64_t at_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_RATE_LIMIT_H_
