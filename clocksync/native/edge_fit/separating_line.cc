#include "separating_line.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace fabricpulse {
namespace {

// Where a slope is looked for first, to both sides, ppb; wider where the best one lies outside.
constexpr double kRangePpb = 300'000;
// The search stops when no slope can widen the gap by more than this, ns.
constexpr double kToleranceNs = 0.01;
constexpr int kMaxSteps = 60;
// More than what a double loses of some ms in ns, less than what the allowance of a feasible line forgives.
constexpr double kRoundingNs = 1e-7;

struct Tangent {
  double slope, gap, derivative, upper, lower;
};

// Where a line of a slope rests on a cloud: the mean of its `count` first points in the order of sign * (y - slope t).
struct Support {
  double y, t;
};

Support support(const Cloud& cloud, double sign, double slope, std::size_t count) {
  std::vector<std::pair<double, double>> points;
  points.reserve(cloud.y.size());
  for (std::size_t k = 0; k < cloud.y.size(); ++k)
    points.emplace_back(sign * (cloud.y[k] - slope * cloud.t[k]), cloud.t[k]);
  if (count < points.size())
    std::nth_element(points.begin(), points.begin() + static_cast<std::ptrdiff_t>(count - 1), points.end());
  double y = 0, t = 0;
  for (std::size_t k = 0; k < count; ++k) {
    y += points[k].first;
    t += points[k].second;
  }
  const auto n = static_cast<double>(count);
  return {sign * y / n, t / n};
}

// How many points of a cloud carry the line: a share `nu`, at least one.
std::size_t support_count(std::size_t points, double nu) {
  const double share = std::nearbyint(static_cast<double>(points) * nu);
  return static_cast<std::size_t>(std::clamp(share, 1.0, static_cast<double>(points)));
}

}  // namespace

SeparatingLine separate(const Cloud& upper, const Cloud& lower, double nu, double rate_ppb) {
  if (upper.y.empty() || lower.y.empty()) throw std::invalid_argument("both clouds need points");
  const std::size_t upper_count = support_count(upper.y.size(), nu),
                    lower_count = support_count(lower.y.size(), nu);
  const auto tangent = [&](double slope) {
    const Support a = support(upper, 1, slope, upper_count), b = support(lower, -1, slope, lower_count);
    return Tangent{slope, a.y - b.y, b.t - a.t, a.y, b.y};
  };
  double range = kRangePpb;
  Tangent left = tangent(rate_ppb - range), right = tangent(rate_ppb + range);
  int steps = 2;
  // The derivative falls with the slope; it must be positive on the left and negative on the right.
  while ((left.derivative < 0 || right.derivative > 0) && range < kWidestRatePpb) {
    range = std::min(8 * range, kWidestRatePpb);
    if (left.derivative < 0) left = tangent(std::max(rate_ppb - range, -kWidestRatePpb));
    if (right.derivative > 0) right = tangent(std::min(rate_ppb + range, kWidestRatePpb));
    ++steps;
  }
  Tangent best = right.gap > left.gap ? right : left;
  while (steps < kMaxSteps && left.derivative > 0 && right.derivative < 0) {
    double crossing = (right.gap - left.gap + left.derivative * left.slope - right.derivative * right.slope) /
                      (left.derivative - right.derivative);
    const double ceiling = left.gap + left.derivative * (crossing - left.slope);
    if (ceiling - best.gap <= kToleranceNs) break;
    // Tangents that are nearly parallel cross at an end; every third step halves the interval instead.
    if (steps % 3 == 2 || !(left.slope < crossing && crossing < right.slope))
      crossing = (left.slope + right.slope) / 2;
    const Tangent middle = tangent(crossing);
    ++steps;
    if (middle.gap > best.gap) best = middle;
    if (middle.derivative == 0) break;
    (middle.derivative > 0 ? left : right) = middle;
  }
  return {(best.upper + best.lower) / 2, best.slope, best.gap / 2};
}

std::pair<double, double> feasible_rates(const Cloud& upper, const Cloud& lower, double inside_ppb) {
  // Gap between the clouds along a slope, and how it changes with it.
  const auto gap = [&](double slope) {
    std::size_t i = 0, j = 0;
    double high = upper.y[0] - slope * upper.t[0], low = lower.y[0] - slope * lower.t[0];
    for (std::size_t k = 1; k < upper.y.size(); ++k)
      if (const double at = upper.y[k] - slope * upper.t[k]; at < high) high = at, i = k;
    for (std::size_t k = 1; k < lower.y.size(); ++k)
      if (const double at = lower.y[k] - slope * lower.t[k]; at > low) low = at, j = k;
    return std::pair(high - low, lower.t[j] - upper.t[i]);
  };
  const double allowance = std::min(gap(inside_ppb).first, 0.0) - 1e-6;
  // From outside, Newton's method on a concave function walks to its zero and never over it, but for rounding: without
  // a tolerance it would stand before the zero until the steps are used up.
  const auto end = [&](double side) {
    double slope = side * kWidestRatePpb;
    for (int step = 0; step < kMaxSteps; ++step) {
      const auto [value, derivative] = gap(slope);
      if (value >= allowance - kRoundingNs || derivative * side >= 0) break;
      slope += (allowance - value) / derivative;
    }
    return slope;
  };
  return {std::min(end(-1), inside_ppb), std::max(end(1), inside_ppb)};
}

}  // namespace fabricpulse
