// Delay of an edge against a ceiling and against its own baseline. Pure.
//
// The baseline follows the median of each window: at once downwards, slowly upwards, and not at all while the
// delay is elevated, so that a long incident does not become the baseline.
#ifndef FABRICPULSE_EXPORTERS_LATENCY_HEALTH_H_
#define FABRICPULSE_EXPORTERS_LATENCY_HEALTH_H_

#include <algorithm>
#include <cstdint>

#include "health.h"

namespace fabricpulse {

class LatencyHealth {
 public:
  LatencyHealth() = default;
  LatencyHealth(std::int64_t ceiling_ns, double factor, std::int64_t slack_ns)
      : ceiling_(ceiling_ns), factor_(factor), slack_(slack_ns) {}

  // One window is over. median_ns : of its delays, signed.
  void window(std::int64_t median_ns) {
    if (windows_ < kLearn) {
      baseline_ = windows_ == 0 ? median_ns : std::min(baseline_, median_ns);
      ++windows_;
    } else if (median_ns < baseline_) {
      baseline_ = median_ns;
    } else if (median_ns <= limit()) {
      baseline_ += (median_ns - baseline_) / 64;
    }
    if (windows_ < kLearn && median_ns <= ceiling_) {
      state_ = HealthState::kUnknown;
    } else {
      state_ = median_ns > limit() ? HealthState::kDown : HealthState::kUp;
    }
  }
  std::int64_t limit() const {
    // A baseline below zero is the error of two clocks; a multiple of it is no delay.
    const double base = static_cast<double>(baseline_);
    const auto relative = static_cast<std::int64_t>(baseline_ < 0 ? base : base * factor_) + slack_;
    return windows_ < kLearn ? ceiling_ : std::min(ceiling_, relative);
  }
  std::int64_t baseline() const { return baseline_; }
  bool learned() const { return windows_ >= kLearn; }
  HealthState state() const { return state_; }  // kDown = elevated

 private:
  static constexpr int kLearn = 10;  // windows
  std::int64_t ceiling_ = 10'000'000;
  double factor_ = 3;
  std::int64_t slack_ = 20'000;
  std::int64_t baseline_ = 0;
  int windows_ = 0;
  HealthState state_ = HealthState::kUnknown;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_LATENCY_HEALTH_H_
