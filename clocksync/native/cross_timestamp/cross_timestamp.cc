#include "cross_timestamp.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <stdexcept>

namespace fabricpulse {
namespace {

constexpr double kHardlySlower = 1.2;

int64_t read_clock(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

int64_t took(const ClockReading& reading) { return reading.after - reading.before; }

}  // namespace

CrossTimestamp combine(const std::vector<ClockReading>& readings) {
  if (readings.empty()) throw std::invalid_argument("at least one reading is needed");
  // As unsigned, in which one during which the raw clock ran backward took longest: processors whose counters
  // differ a little let it, when a program moves from one to another.
  const ClockReading fastest =
      *std::min_element(readings.begin(), readings.end(), [](const ClockReading& a, const ClockReading& b) {
        return static_cast<uint64_t>(took(a)) < static_cast<uint64_t>(took(b));
      });
  if (took(fastest) < 0) {
    throw std::runtime_error(
        "CLOCK_MONOTONIC_RAW ran backward in all readings: counters of this host's processors differ; "
        "boot it with another clocksource");
  }
  const double longest = static_cast<double>(took(fastest)) * kHardlySlower;
  const double middle_of_fastest = static_cast<double>(took(fastest)) / 2;
  double sum = 0;
  int count = 0;
  int64_t widest = 0;
  for (const ClockReading& reading : readings) {
    if (took(reading) < 0 || static_cast<double>(took(reading)) > longest) continue;
    // Where the real clock shows what it did in the fastest reading, the raw one is so far after that began.
    const int64_t begun = (reading.before - fastest.before) - (reading.real - fastest.real);
    const double middle = static_cast<double>(begun) + static_cast<double>(took(reading)) / 2;
    // Another was taken before, or after, a step of the real clock.
    if (std::abs(middle - middle_of_fastest) > longest) continue;
    sum += middle;
    ++count;
    widest = std::max(widest, took(reading));
  }
  return {fastest.real, fastest.before + std::llround(sum / count), (widest + 1) / 2};
}

CrossTimestamp cross_timestamp(int tries) {
  std::vector<ClockReading> readings(static_cast<size_t>(std::max(tries, 0)));
  for (ClockReading& reading : readings) {
    reading.before = read_clock(CLOCK_MONOTONIC_RAW);
    reading.real = read_clock(CLOCK_REALTIME);
    reading.after = read_clock(CLOCK_MONOTONIC_RAW);
  }
  return combine(readings);
}

}  // namespace fabricpulse
