// Whether a delay is elevated, against a ceiling and against its own baseline. Pure.
//
// Fed with one median a second. Steps and ramps are both found as medians that stay above the limit:
//   limit = baseline + max(slack, (factor - 1) x baseline, 4 x noise), or the ceiling if that is lower.
// The baseline cannot be dragged along. It follows downwards within seconds, upwards over ten minutes, not at
// all while medians are above the limit, and never further above the lowest baseline, which itself takes a day
// to follow, than one such margin: a ramp of hours is elevated once it has risen by two margins.
// Noise is how much a median differs from the one before, while they are well: that, a ramp does not change.
#ifndef FABRICPULSE_EXPORTERS_LATENCY_HEALTH_H_
#define FABRICPULSE_EXPORTERS_LATENCY_HEALTH_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "health/health.h"

namespace fabricpulse {

class LatencyHealth {
 public:
  static constexpr int kLearn = 10;     // medians until the baseline is known
  static constexpr int kElevated = 4;   // this many more medians above the limit than below it: elevated
  static constexpr int kMostScore = 6;  // so that it ends at most that many medians after the delay did

  LatencyHealth() = default;
  LatencyHealth(std::int64_t ceiling_ns, double factor, std::int64_t slack_ns)
      : ceiling_(ceiling_ns), factor_(factor), slack_(slack_ns) {}

  // The median delay of about a second, signed.
  void update(std::int64_t median_ns) {
    if (learned_ < kLearn) {
      learning_[learned_++] = median_ns;
      if (learned_ == kLearn) learn();
      state_ = median_ns > ceiling_ ? HealthState::kDown : HealthState::kUnknown;
      return;
    }
    const auto median = static_cast<double>(median_ns);
    const bool above = median_ns > limit();
    if (!above) follow(median);
    score_ = std::clamp(score_ + (above ? 1 : -1), 0, kMostScore);
    if (median_ns > ceiling_ || score_ >= kElevated) {
      state_ = HealthState::kDown;
    } else if (score_ == 0 || state_ == HealthState::kUnknown) {
      state_ = HealthState::kUp;
    }
  }
  std::int64_t limit() const {
    if (learned_ < kLearn) return ceiling_;
    return std::min(ceiling_, static_cast<std::int64_t>(baseline_ + margin(baseline_)));
  }
  std::int64_t baseline() const { return static_cast<std::int64_t>(baseline_); }
  HealthState state() const { return state_; }  // kDown = elevated

 private:
  static constexpr double kFast = 1.0 / 4, kSlow = 1.0 / 600, kNoise = 1.0 / 300, kDay = 1.0 / 86'400;

  double margin(double from) const {
    // A baseline below zero is the error of two clocks; a multiple of it is no delay.
    return std::max({static_cast<double>(slack_), (factor_ - 1) * from, 4 * noise_});
  }
  void learn() {
    std::int64_t sorted[kLearn];
    std::copy(learning_, learning_ + kLearn, sorted);
    std::sort(sorted, sorted + kLearn);
    const std::int64_t median = sorted[kLearn / 2];
    baseline_ = lowest_ = static_cast<double>(median);
    double differences[kLearn - 1];
    for (int i = 1; i < kLearn; ++i) {
      differences[i - 1] = std::fabs(static_cast<double>(learning_[i] - learning_[i - 1]));
    }
    std::sort(differences, differences + kLearn - 1);
    noise_ = 1.05 * differences[kLearn / 2 - 1];  // of a normal distribution: its standard deviation
    last_ = static_cast<double>(learning_[kLearn - 1]);
  }
  void follow(double median) {
    // Its mean is 1.13 standard deviations; a jump counts as some noise and no more.
    const double difference = std::min(std::fabs(median - last_), 6 * noise_ + 100);
    noise_ += (0.89 * difference - noise_) * kNoise;
    last_ = median;
    // A better path shows as medians that stay below what noise explains; single ones are noise.
    below_ = median < baseline_ - 2 * noise_ ? below_ + 1 : 0;
    baseline_ += (median - baseline_) * (below_ >= kElevated ? kFast : kSlow);
    lowest_ = std::min(lowest_, baseline_);
    baseline_ = std::min(baseline_, lowest_ + margin(lowest_));
    lowest_ += (baseline_ - lowest_) * kDay;
  }

  std::int64_t ceiling_ = 10'000'000;
  double factor_ = 1.25;
  std::int64_t slack_ = 5'000;
  std::int64_t learning_[kLearn] = {};
  int learned_ = 0;
  int score_ = 0, below_ = 0;
  double baseline_ = 0, lowest_ = 0, noise_ = 0, last_ = 0;
  HealthState state_ = HealthState::kUnknown;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_LATENCY_HEALTH_H_
