// The stamp clock: what the samples of probes are stamped with. CLOCK_MONOTONIC_RAW plus a constant, the epoch,
// so that nobody steps or slews it.
//
// Theory of operation. The kernel stamps packets with CLOCK_REALTIME. Both clocks are read together each tick, some
// milliseconds apart; a stamp lies between two such readings and is interpolated. That is exact while the host
// clock keeps its rate between the two, and wrong by a quarter of the deviation from a straight line where its rate
// is changed in the middle. So each reading is compared with the line through those before: where it is off by more
// than kTolerated, the host clock was steered, and the stamps of that interval are given up. What stays below is
// part of what a stamp may be late, `estimator.asymmetry_ns` of the sidecar.
//
// Pure: readings are passed in.
#ifndef FABRICPULSE_EXPORTERS_STAMP_CLOCK_H_
#define FABRICPULSE_EXPORTERS_STAMP_CLOCK_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "fabricpulse/clock_page.h"

namespace fabricpulse {

// Both clocks at one moment, ns. width_ns : within which the raw clock was read around the host clock.
struct ClockReading {
  std::int64_t host_ns = 0;
  std::int64_t raw_ns = 0;
  std::int64_t width_ns = 0;
};

class StampClock {
 public:
  static constexpr std::int64_t kTolerated = 100;  // ns

  explicit StampClock(std::int64_t epoch_ns) : epoch_ns_(epoch_ns) {}

  // Stamp clock minus CLOCK_MONOTONIC_RAW.
  std::int64_t epoch_ns() const { return epoch_ns_; }

  // The next reading. False when it shows that the host clock was steered, or stepped, since the last one: what was
  // converted since then is in doubt. A reading much wider than usual, during which the program was interrupted, is
  // not taken.
  bool observe(const ClockReading& reading);

  // Whether the host clock still shows what the readings before this one say. Once it does not, stamps since the last of
  // those are in doubt, before the next one is observed.
  bool holds(const ClockReading& now) const;

  // Whether a reception that the kernel has stamped with the host clock can have been at `stamp_ns` on the stamp clock, give
  // or take error_ns, as a NIC says: before the kernel's, and not by more than packets wait for it. Known while the host
  // clock is steered too. The stamp of a NIC by another clock than the one that is followed fails it, unless that one is a
  // little late.
  bool agrees(std::int64_t host_ns, std::int64_t stamp_ns, std::int64_t error_ns) const;

  // A stamp of the host clock that is recent: on the stamp clock, or 0 where the host clock was steered then, or
  // that is not known yet.
  std::int64_t from_host(std::int64_t host_ns) const;

 private:
  static constexpr std::size_t kReadings = 64;
  static constexpr std::int64_t kAhead = 20'000'000;  // ns after the last reading, at most
  static constexpr std::int64_t kMostWait = 10'000'000;
  static constexpr std::int64_t kUnsure = 1'000;  // ns; and of the time to the last reading this part:
  static constexpr std::int64_t kUnsurePart = 1'000;
  static constexpr std::int64_t kUnsureRate = 100'000;  // this part of it by the rate between two readings

  struct Point {
    std::int64_t host_ns = 0, raw_ns = 0;
    bool straight = false;  // the host clock kept its rate since the point before
  };

  const Point& back(std::size_t n) const { return points_[(count_ - 1 - n) % kReadings]; }
  bool usual(std::int64_t width_ns);

  std::int64_t epoch_ns_;
  std::array<Point, kReadings> points_{};
  std::size_t count_ = 0;        // points so far
  std::size_t since_break_ = 0;  // points since the host clock was last steered, that one included
  std::int64_t usual_width_ns_ = 0;
};

inline bool StampClock::usual(std::int64_t width_ns) {
  if (width_ns < 0) return false;
  const bool taken = count_ == 0 || width_ns <= 2 * usual_width_ns_ + kTolerated / 2;
  // Follows a machine that has become slower within some hundred readings.
  if (count_ == 0 || width_ns < usual_width_ns_) {
    usual_width_ns_ = width_ns;
  } else {
    usual_width_ns_ += usual_width_ns_ / 64 + 1;
  }
  return taken;
}

inline bool StampClock::observe(const ClockReading& reading) {
  if (!usual(reading.width_ns)) return true;
  Point point{reading.host_ns, reading.raw_ns, false};
  bool steered = false;
  if (since_break_ > 0) {
    const Point& last = back(0);
    const std::int64_t host = point.host_ns - last.host_ns, raw = point.raw_ns - last.raw_ns;
    if (raw <= 0) return true;
    if (since_break_ > 1) {
      const Point& first = back(since_break_ < kReadings ? since_break_ - 1 : kReadings - 1);
      const std::int64_t gained = (last.raw_ns - first.raw_ns) - (last.host_ns - first.host_ns);
      const std::int64_t expected = host + fp_mul_div(host, gained, last.host_ns - first.host_ns);
      point.straight = host > 0 && fp_distance(raw, expected) <= kTolerated + usual_width_ns_ / 4;
      steered = !point.straight;
    } else {
      // Nothing to compare with; but no daemon slews a clock by a tenth.
      steered = fp_distance(raw, host) > raw / 10;
    }
  }
  since_break_ = steered ? 1 : since_break_ + 1;
  points_[count_++ % kReadings] = point;
  return !steered;
}

inline bool StampClock::holds(const ClockReading& now) const {
  if (since_break_ < 2 || !back(0).straight || now.width_ns < 0) return false;
  const std::int64_t since = now.host_ns - back(0).host_ns, span = back(0).host_ns - back(1).host_ns;
  const std::int64_t gained = (back(0).raw_ns - back(1).raw_ns) - span;
  const std::int64_t expected = back(0).raw_ns + since + fp_mul_div(since, gained, span);
  const std::int64_t tolerated = kTolerated + now.width_ns + fp_distance(since, 0) / kUnsureRate;
  return fp_distance(expected, now.raw_ns) <= tolerated;
}

inline bool StampClock::agrees(std::int64_t host_ns, std::int64_t stamp_ns, std::int64_t error_ns) const {
  if (count_ == 0) return false;
  const std::int64_t since = host_ns - back(0).host_ns;
  const std::int64_t waited = back(0).raw_ns + since + epoch_ns_ - stamp_ns;
  const std::int64_t unsure = error_ns + kUnsure + fp_distance(since, 0) / kUnsurePart;
  return waited >= -unsure && waited <= kMostWait + unsure;
}

inline std::int64_t StampClock::from_host(std::int64_t host_ns) const {
  // CLOCK_REALTIME that was stepped back shows the same values twice: stamps taken after the step look older.
  if (since_break_ < 2) return 0;
  std::size_t newer = 0;
  const std::size_t known = count_ < kReadings ? count_ : kReadings;
  if (host_ns > back(0).host_ns) {
    if (host_ns - back(0).host_ns > kAhead) return 0;
  } else {
    while (newer + 1 < known && back(newer + 1).host_ns > host_ns) ++newer;
    if (newer + 1 == known) return 0;  // too old
  }
  const Point &to = back(newer), &from = back(newer + 1);
  if (!to.straight) return 0;
  const std::int64_t span = to.host_ns - from.host_ns;
  const std::int64_t gained = (to.raw_ns - from.raw_ns) - span;
  return from.raw_ns + (host_ns - from.host_ns) + fp_mul_div(host_ns - from.host_ns, gained, span) +
         epoch_ns_;
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_STAMP_CLOCK_H_
