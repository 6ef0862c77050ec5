// The exact nu-soft-margin separating line between two clouds of one-way measurements.
//
// Theory of operation. theta(t) is the peer's clock minus ours. A packet from us to the peer gives a point
// u = rx - tx = theta + delay above theta, one from the peer to us a point l = -(rx - tx) = theta - delay below it. The
// line a + b t that lies between the clouds with the largest gap is the best guess of theta if the two fastest paths
// are equally long, and half of the gap bounds its error without any assumption.
//
// For a fixed slope b the best soft-margin line needs no optimiser: its upper support is the mean of the lowest
// nu-share of u - b t (the conditional value at risk), the lower one the mean of the highest nu-share of l - b t. The
// gap between the two is concave and piecewise linear in b, so the whole linear program is a one-dimensional search,
// done here by intersecting tangents. Against an LP solver the result differs by less than 1 ns.
#ifndef FABRICPULSE_CLOCKSYNC_SEPARATING_LINE_H_
#define FABRICPULSE_CLOCKSYNC_SEPARATING_LINE_H_

#include <utility>
#include <vector>

namespace fabricpulse {

// Widest relative rate of two clocks that is looked for, ppb: crystals stay within +-100 ppm each, slewing adds 500 ppm.
inline constexpr double kWidestRatePpb = 1'200'000;

// Points of one direction. t: seconds, best centred on 0, where offset_ns of a line is taken. y: ns.
struct Cloud {
  std::vector<double> t, y;
};

// theta(t) = offset_ns + rate_ppb * t, t in seconds. half_gap_ns may be negative: then the clouds overlap.
struct SeparatingLine {
  double offset_ns, rate_ppb, half_gap_ns;
};

// The line between the clouds with the widest soft margin. nu: share of each cloud that carries the margin, in (0, 1].
// rate_ppb: where its slope is looked for first. Throws std::invalid_argument for an empty cloud.
SeparatingLine separate(const Cloud& upper, const Cloud& lower, double nu, double rate_ppb = 0);

// The slopes of all lines that pass below every upper and above every lower point: lowest, highest, ppb. inside_ppb: a
// slope near which to begin. Where no line passes at all (late stamps made the clouds overlap), the slopes of those
// that come closest. The answer lies within +- kWidestRatePpb, whatever inside_ppb is. Neither cloud is empty.
std::pair<double, double> feasible_rates(const Cloud& upper, const Cloud& lower, double inside_ppb);

}  // namespace fabricpulse

#endif  // FABRICPULSE_CLOCKSYNC_SEPARATING_LINE_H_
