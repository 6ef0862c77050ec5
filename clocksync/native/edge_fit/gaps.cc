#include "gaps.h"

#include <algorithm>
#include <cmath>

namespace fabricpulse {

std::pair<double, double> usual_gap(std::vector<double> gaps, double share) {
  if (gaps.size() < 3) return {gaps.front(), std::abs(gaps.front())};
  std::sort(gaps.begin(), gaps.end());
  const auto few = std::max<std::size_t>(
      3, static_cast<std::size_t>(std::nearbyint(static_cast<double>(gaps.size()) * share)));
  std::size_t first = 0;
  const auto width = [&](std::size_t k) { return gaps[k + few - 1] - gaps[k]; };
  for (std::size_t k = 1; k + few <= gaps.size(); ++k)
    if (width(k) < width(first)) first = k;
  return {gaps[first] + width(first) / 2, width(first) / 2};
}

double gap_change(const std::vector<double>& gaps) {
  if (gaps.size() < 2) return 0;
  std::vector<double> changes;
  for (std::size_t k = 1; k < gaps.size(); ++k) changes.push_back(std::abs(gaps[k] - gaps[k - 1]));
  const auto middle = changes.begin() + static_cast<std::ptrdiff_t>(changes.size() / 2);
  std::nth_element(changes.begin(), middle, changes.end());
  return *middle;
}

}  // namespace fabricpulse
