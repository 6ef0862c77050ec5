// The clock of a NIC (PHC) against CLOCK_MONOTONIC_RAW, and stamps of the NIC on that clock, each with a bound of its
// error.
//
// Theory of operation. The PHC and the raw clock are read together some times a tick. A reading says that the raw clock
// was within a bracket when the PHC showed its value, and nothing more. The line through the last readings predicts the
// next one; a part of what the middle of its bracket differs from that is taken over, never so much that it leaves the
// bracket. So the estimate at a reading is off by no more than the bracket is wide, whoever steers the PHC.
// A stamp lies between two readings and is interpolated. Between them a daemon (ptp4l, phc2sys) may have changed the
// rate of the PHC, and what is made of the stamp is then wrong by no more than what the second reading may differ from
// the prediction. That is part of the bound; where it is more than the brackets explain, the stamps of that interval are
// given up, and so are those of the next readings, until the line is known again.
// A PHC that stands still, is stepped or runs at another rate than time fails this at each reading, and never gets good.
// Assumed: a daemon leaves kUnsteered readings between two changes.
//
// Pure: readings are passed in.
#ifndef FABRICPULSE_EXPORTERS_PHC_LINE_H_
#define FABRICPULSE_EXPORTERS_PHC_LINE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "fabricpulse/clock_page.h"

namespace fabricpulse {

// CLOCK_MONOTONIC_RAW was in [raw_low_ns, raw_high_ns] when the PHC showed phc_ns.
struct PhcReading {
  std::int64_t phc_ns = 0;
  std::int64_t raw_low_ns = 0, raw_high_ns = 0;
};

// A stamp on the raw clock. error_ns : how far it may be off; 0 = the stamp is not known there.
struct RawStamp {
  std::int64_t raw_ns = 0;
  std::int64_t error_ns = 0;
};

class PhcLine {
 public:
  static constexpr std::size_t kUnsteered = 4;
  static constexpr std::size_t kLearned = 16;                // readings after which a line is known, at first
  static constexpr std::int64_t kAheadNs = 1'000'000;        // after the last reading, at most
  static constexpr std::int64_t kWidestNs = 3'000;           // bracket of a reading that is taken
  static constexpr std::int64_t kLongestNs = 1'000'000'000;  // between two readings

  // The next reading. False when it shows that the PHC was steered or stepped since the last one, or does not run like
  // a clock: what was converted since then is in doubt.
  bool observe(const PhcReading& reading);

  // A stamp of the PHC that is recent, on the raw clock.
  RawStamp from_phc(std::int64_t phc_ns) const;

  // Whether stamps are converted now.
  bool good() const { return since_break_ >= needed_; }
  // How far the last reading may be off, ns; 0 before the first.
  std::int64_t error_ns() const { return count_ > 0 ? back(0).error_ns : 0; }

 private:
  static constexpr std::size_t kReadings = 64;
  static constexpr std::size_t kMostLearned = 4'096, kLongGood = 1'024;
  // Hardware can slow or speed a PHC by this part of time, and oscillators differ by less.
  static constexpr std::int64_t kRate = 500;
  static constexpr std::int64_t kNoiseNs = 20;  // of the clocks' own resolution

  struct Point {
    std::int64_t phc_ns = 0, raw_ns = 0;
    std::int64_t error_ns = 0;  // of raw_ns
    std::int64_t deviation_ns =
        0;  // how far from straight the way from the point before may be; -1 = not known
  };

  const Point& back(std::size_t n) const { return points_[(count_ - 1 - n) % kReadings]; }
  const Point& first() const { return back(std::min(since_break_, kReadings) - 1); }
  bool usual(std::int64_t width_ns);
  void restart();
  // By how much the raw clock goes on while the PHC goes on by phc_ns, by the line.
  std::int64_t on_line(std::int64_t phc_ns) const {
    if (since_break_ < 2) return phc_ns;
    const std::int64_t span = back(0).phc_ns - first().phc_ns;
    return phc_ns + fp_mul_div(phc_ns, back(0).raw_ns - first().raw_ns - span, span);
  }

  std::array<Point, kReadings> points_{};
  std::size_t count_ = 0;        // points so far
  std::size_t since_break_ = 0;  // points since the line was last lost, the first of the new one included
  std::size_t needed_ = kLearned;
  std::int64_t usual_width_ns_ = 0;
};

inline bool PhcLine::usual(std::int64_t width_ns) {
  if (width_ns < 0 || width_ns > kWidestNs) return false;
  const bool taken = usual_width_ns_ == 0 || width_ns <= usual_width_ns_ + usual_width_ns_ / 2 + kNoiseNs;
  // Follows a machine that has become slower within some hundred readings.
  if (usual_width_ns_ == 0 || width_ns < usual_width_ns_) {
    usual_width_ns_ = std::max<std::int64_t>(width_ns, 1);
  } else {
    usual_width_ns_ += usual_width_ns_ / 64 + 1;
  }
  return taken;
}

inline void PhcLine::restart() {
  // One that is stepped again and again is trusted after ever more readings.
  needed_ = since_break_ > std::max(kLongGood, 8 * needed_) ? kLearned : std::min(4 * needed_, kMostLearned);
  since_break_ = 0;
}

inline bool PhcLine::observe(const PhcReading& reading) {
  const std::int64_t width = reading.raw_high_ns - reading.raw_low_ns;
  if (!usual(width)) return true;
  const std::int64_t middle = reading.raw_low_ns + width / 2;
  Point point{reading.phc_ns, middle, width - width / 2, -1};
  bool held = true;
  // Nobody has looked for long, as on a machine that stood still: that says nothing of the PHC.
  if (since_break_ > 0 && middle - back(0).raw_ns > kLongestNs) since_break_ = 0;
  if (since_break_ > 0) {
    const Point& last = back(0);
    const std::int64_t phc = point.phc_ns - last.phc_ns, raw = middle - last.raw_ns;
    if (raw <= last.error_ns + point.error_ns) return true;  // too soon to say anything
    if (phc <= 0 || fp_distance(phc, raw) > raw / kRate + last.error_ns + point.error_ns) {
      held = false;
    } else if (since_break_ > 1) {
      const std::int64_t predicted = last.raw_ns + on_line(phc);
      const std::int64_t span = last.phc_ns - first().phc_ns;
      const std::int64_t unsure = fp_mul_div(phc, first().error_ns + last.error_ns, span) + kNoiseNs;
      const std::int64_t most = std::max(reading.raw_high_ns - predicted, predicted - reading.raw_low_ns);
      held = most <= width + last.error_ns + unsure;
      if (since_break_ >= needed_) {
        point.raw_ns =
            std::clamp(predicted + (middle - predicted) / 8, reading.raw_low_ns, reading.raw_high_ns);
        point.error_ns = std::max(point.raw_ns - reading.raw_low_ns, reading.raw_high_ns - point.raw_ns);
      }
      point.error_ns += kNoiseNs;
      point.deviation_ns = std::max<std::int64_t>(most, 0) + last.error_ns + unsure + usual_width_ns_ / 2;
    }
  }
  if (!held) {
    restart();
    point = {reading.phc_ns, middle, width - width / 2, -1};
  }
  ++since_break_;
  points_[count_++ % kReadings] = point;
  return held;
}

inline RawStamp PhcLine::from_phc(std::int64_t phc_ns) const {
  if (!good()) return {};
  if (phc_ns > back(0).phc_ns) {
    const std::int64_t ahead = phc_ns - back(0).phc_ns;
    if (ahead > kAheadNs) return {};
    // Nobody has looked since: the rate may have changed by all that hardware can.
    return {back(0).raw_ns + on_line(ahead), back(0).error_ns + 2 * ahead / kRate + kNoiseNs};
  }
  // The first kUnsteered points of a line come after it was lost.
  const std::size_t known = std::min(since_break_ - kUnsteered, kReadings);
  for (std::size_t newer = 0; newer + 1 < known; ++newer) {
    const Point &to = back(newer), &from = back(newer + 1);
    if (from.phc_ns > phc_ns) continue;
    const std::int64_t span = to.phc_ns - from.phc_ns, gained = (to.raw_ns - from.raw_ns) - span;
    return {from.raw_ns + (phc_ns - from.phc_ns) + fp_mul_div(phc_ns - from.phc_ns, gained, span),
            std::max(from.error_ns, to.error_ns) + to.deviation_ns};
  }
  return {};
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_PHC_LINE_H_
