#include "edge_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "separating_line.h"

namespace fabricpulse {
namespace {

// Shorter windows say nothing of the rate.
constexpr double kShortestS = 0.05;

// An offset near the truth, so that the rest of the arithmetic is exact in a double; nothing without a packet each way.
std::optional<std::int64_t> base_of(const Trains& outbound, const Trains& inbound) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t out = kNone, into = kNone;
  for (int k = 0; k < FP_PROBE_TRAIN; ++k) {
    for (const Train& train : outbound)
      if (train.valid[k]) out = std::min(out, train.rx_ns[k] - train.tx_ns[k]);
    for (const Train& train : inbound)
      if (train.valid[k]) into = std::min(into, train.rx_ns[k] - train.tx_ns[k]);
  }
  if (out == kNone || into == kNone) return {};
  return (out - into) >> 1;
}

// The packets behind the warm-up packet as points; that one pays for cold caches and is left out.
Cloud cloud_of(const Trains& trains, std::int64_t t_ref, std::int64_t base, int sign) {
  Cloud cloud;
  cloud.t.reserve(2 * trains.size());
  cloud.y.reserve(2 * trains.size());
  for (const Train& train : trains) {
    for (int k = 1; k < FP_PROBE_TRAIN; ++k) {
      if (!train.valid[k]) continue;
      // The stamp of the same packet that our own clock took.
      const std::int64_t own = sign > 0 ? train.tx_ns[k] : train.rx_ns[k];
      cloud.t.push_back(static_cast<double>(own - t_ref) * 1e-9);
      cloud.y.push_back(static_cast<double>(sign * (train.rx_ns[k] - train.tx_ns[k]) - base));
    }
  }
  return cloud;
}

// Where the slope leaves most below (sign 1), or above (-1), a point of the cloud.
std::size_t extreme(const Cloud& cloud, double sign, double slope) {
  std::size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k < cloud.y.size(); ++k)
    if (const double at = sign * (cloud.y[k] - slope * cloud.t[k]); at < least) least = at, best = k;
  return best;
}

// What the rate, and its drift, add until `t` seconds from the end, ns.
double moved(const Prior& prior, double t) { return (prior.rate_ppb + prior.drift_ppb_s / 2 * t) * t; }

// The fastest packets of the window, and those of the ranks of its last `fresh_s`; none without a packet each way.
std::pair<Floor, std::vector<Floor>> floors_of(const Cloud& upper, const Cloud& lower, const Prior& prior,
                                               double end_s, double fresh_s,
                                               const std::vector<double>& ranks) {
  double whole[4];
  std::vector<std::pair<double, double>> ranked[2];
  for (int side = 0; side < 2; ++side) {
    const Cloud& cloud = side ? lower : upper;
    const double sign = side ? -1 : 1;
    std::vector<std::pair<double, std::size_t>> fresh;
    std::size_t fastest = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < cloud.y.size(); ++k) {
      const double t = cloud.t[k] - end_s;
      // Before the end the rate was another one, if it drifts.
      const double delay = sign * (cloud.y[k] - moved(prior, t));
      if (delay < least) least = delay, fastest = k;
      if (t > -fresh_s) fresh.emplace_back(delay, k);
    }
    whole[2 * side] = cloud.y[fastest];
    whole[2 * side + 1] = cloud.t[fastest] - end_s;
    auto begin = fresh.begin();
    for (const double share : ranks) {
      if (fresh.empty()) break;
      const auto at = fresh.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(fresh.size()));
      std::nth_element(begin, at, fresh.end());
      ranked[side].emplace_back(cloud.y[at->second], cloud.t[at->second] - end_s);
      begin = at;
    }
  }
  std::vector<Floor> floors;
  for (std::size_t k = 0; k < std::min(ranked[0].size(), ranked[1].size()); ++k)
    floors.push_back({ranked[0][k].first, ranked[0][k].second, ranked[1][k].first, ranked[1][k].second});
  return {{whole[0], whole[1], whole[2], whole[3]}, floors};
}

// The middle of the window's floor where the prior's rate and drift separate it; else of the newest.
SeparatingLine line_of(const Floor& whole, const std::vector<Floor>& floors, const Prior& prior,
                       double end_s) {
  const auto ends = [&](const Floor& floor) {
    return std::pair(floor.upper_ns - moved(prior, floor.upper_s),
                     floor.lower_ns - moved(prior, floor.lower_s));
  };
  auto [high, low] = ends(whole);
  if (high < low && !floors.empty()) std::tie(high, low) = ends(floors.front());
  return {(high + low) / 2 - prior.rate_ppb * end_s, prior.rate_ppb, (high - low) / 2};
}

// Lowest and highest rate that causality allows, by this window and by the fastest packets of those before.
//
// The longer the time between two packets, the less the queues can pretend about the rate: half a gap of 2 us allows
// 1 ppm over 4 s and 0.25 ppm over 16 s.
std::pair<double, double> rate_limits(const Cloud& upper, const Cloud& lower, double rate_ppb,
                                      std::int64_t t_ref, std::int64_t base, const Prior* prior) {
  if (prior && !prior->extremes.empty()) {
    Cloud above, below;
    for (const Extremes& old : prior->extremes) {
      above.t.push_back(static_cast<double>(old.upper_t_ns - t_ref) * 1e-9);
      above.y.push_back(static_cast<double>(old.upper_ns - base));
      below.t.push_back(static_cast<double>(old.lower_t_ns - t_ref) * 1e-9);
      below.y.push_back(static_cast<double>(old.lower_ns - base));
    }
    for (const auto& [all, newer] : {std::pair(&above, &upper), std::pair(&below, &lower)}) {
      all->t.insert(all->t.end(), newer->t.begin(), newer->t.end());
      all->y.insert(all->y.end(), newer->y.begin(), newer->y.end());
    }
    const double slope = prior->rate_ppb;
    const std::size_t i = extreme(above, 1, slope), j = extreme(below, -1, slope);
    // Packets that no line can separate tell of a clock whose rate was changed: then only what is new counts.
    if (above.y[i] - slope * above.t[i] >= below.y[j] - slope * below.t[j])
      return feasible_rates(above, below, slope);
  }
  return feasible_rates(upper, lower, rate_ppb);
}

// How far the truth can be above and below the line at the end of the window.
//
// theta lies below each point of the upper cloud, and since then has risen by the highest possible rate at most; so for
// the other side. All points count.
std::pair<double, double> causal_limits(const Cloud& upper, const Cloud& lower, const SeparatingLine& line,
                                        double end_s, std::pair<double, double> rates, double stray_ppb) {
  const auto [low, high] = rates;
  const double up = std::max(high - line.rate_ppb, 0.0) + stray_ppb;
  const double down = std::max(line.rate_ppb - low, 0.0) + stray_ppb;
  double above = std::numeric_limits<double>::infinity(), below = above;
  for (std::size_t k = 0; k < upper.y.size(); ++k)
    above =
        std::min(above, upper.y[k] - line.offset_ns - line.rate_ppb * upper.t[k] + up * (end_s - upper.t[k]));
  for (std::size_t k = 0; k < lower.y.size(); ++k)
    below = std::min(below,
                     line.offset_ns + line.rate_ppb * lower.t[k] - lower.y[k] + down * (end_s - lower.t[k]));
  return {above, below};
}

// Expected error of the offset, ns: how thinly the edges of both clouds are populated.
//
// Where n points lie within a distance d of the extreme one, the true edge is about d / n beyond it.
double scatter(const Cloud& upper, const Cloud& lower, const SeparatingLine& line, double stamp_noise_ns) {
  double variance = 0;
  for (const auto& [cloud, sign] : {std::pair(&upper, 1.0), std::pair(&lower, -1.0)}) {
    std::vector<double> distance;
    for (std::size_t k = 0; k < cloud->y.size(); ++k)
      distance.push_back(sign * (cloud->y[k] - line.offset_ns - line.rate_ppb * cloud->t[k]));
    const std::size_t count = std::min(distance.size(), std::max<std::size_t>(3, distance.size() / 20));
    const auto last = distance.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(distance.begin(), last, distance.end());
    const double nearest = *std::min_element(distance.begin(), last + 1);
    variance += std::pow((*last - nearest) / static_cast<double>(std::max<std::size_t>(count - 1, 1)), 2);
  }
  return std::sqrt(stamp_noise_ns * stamp_noise_ns + variance);
}

}  // namespace

std::optional<EdgeFit> fit_edge(const Trains& outbound, const Trains& inbound,
                                const FitParameters& parameters, const Prior* prior) {
  const std::optional<std::int64_t> base = base_of(outbound, inbound);
  if (!base) return {};
  const auto earlier = [](const Train& one, const Train& other) { return one.t_ns < other.t_ns; };
  const auto [out_first, out_last] = std::minmax_element(outbound.begin(), outbound.end(), earlier);
  const auto [in_first, in_last] = std::minmax_element(inbound.begin(), inbound.end(), earlier);
  const std::int64_t first = std::min(out_first->t_ns, in_first->t_ns);
  const std::int64_t last = std::max(out_last->t_ns, in_last->t_ns);
  const std::int64_t t_ref = first + (last - first) / 2;
  const Cloud upper = cloud_of(outbound, t_ref, *base, 1), lower = cloud_of(inbound, t_ref, *base, -1);
  const double window_s = static_cast<double>(last - first) * 1e-9;
  const double end_s = static_cast<double>(last - t_ref) * 1e-9;
  const bool few =
      std::min(upper.y.size(), lower.y.size()) < parameters.fewest_points || window_s < kShortestS;
  if (upper.y.empty() || lower.y.empty() || (few && !prior)) return {};

  EdgeFit fit{};
  SeparatingLine line{};
  double changed_ppb = 0;
  if (prior) {
    const double fresh_s = static_cast<double>(last - prior->t_ns) * 1e-9;
    Floor whole;
    std::tie(whole, fit.floors) = floors_of(upper, lower, *prior, end_s, fresh_s, parameters.ranks);
    line = line_of(whole, fit.floors, *prior, end_s);
    fit.sigma_ns = std::max(line.half_gap_ns / 2, parameters.stamp_noise_ns);
    fit.rate_sigma_ppb = std::numeric_limits<double>::infinity();
    fit.quality = few ? FitQuality::kMinimum : FitQuality::kFiltered;
  }
  if (!few && (!prior || line.half_gap_ns < 0)) {
    // Nothing is known of the rate, or what is known fits no packets: a clock has changed its rate.
    line = separate(upper, lower, parameters.nu);
    fit.sigma_ns = scatter(upper, lower, line, parameters.stamp_noise_ns);
    fit.floors.clear();
    fit.quality = FitQuality::kWindow;
    fit.rate_sigma_ppb = std::sqrt(12.0) * fit.sigma_ns / window_s;
    // In a window the rate may have changed by twice what its mean has.
    if (prior) changed_ppb = 2 * std::abs(line.rate_ppb - prior->rate_ppb);
    prior = nullptr;
  }
  // Where the rate is seen to drift, a straight line is not what bounds it, and less so with the seconds before.
  double stray_ppb = parameters.drift_ppb;
  if (prior && prior->most_ppb_s * window_s > parameters.drift_ppb / 10) {
    stray_ppb += prior->most_ppb_s * window_s;
    prior = nullptr;
  }
  const std::pair<double, double> rates = rate_limits(upper, lower, line.rate_ppb, t_ref, *base, prior);
  std::tie(fit.above_ns, fit.below_ns) = causal_limits(upper, lower, line, end_s, rates, stray_ppb);
  double most = std::max({fit.above_ns, fit.below_ns, 0.0});
  if (changed_ppb > 0) {
    const auto [above, below] = causal_limits(upper, lower, line, end_s, rates, stray_ppb + changed_ppb);
    most = std::max({most, above, below});
  }
  const std::size_t i = extreme(upper, 1, line.rate_ppb), j = extreme(lower, -1, line.rate_ppb);
  const auto at = [&](double t) { return t_ref + std::llrint(t * 1e9); };
  fit.t_ns = t_ref;
  fit.t_last_ns = last;
  fit.offset_ns = *base + std::llrint(line.offset_ns);
  fit.rate_ppb = line.rate_ppb;
  fit.half_gap_ns = line.half_gap_ns;
  std::tie(fit.rate_low_ppb, fit.rate_high_ppb) = rates;
  fit.bound_ns =
      most + parameters.asymmetry_ns + std::max(outbound.worst_stamp_ns(), inbound.worst_stamp_ns());
  fit.trains = outbound.size() + inbound.size();
  fit.window_s = 2 * end_s;
  fit.extremes = {at(upper.t[i]), *base + std::llrint(upper.y[i]), at(lower.t[j]),
                  *base + std::llrint(lower.y[j])};
  fit.base_ns = *base;
  return fit;
}

}  // namespace fabricpulse
