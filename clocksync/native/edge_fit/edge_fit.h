// What the trains of a window say about two clocks: offset, rate, and how wrong that can be.
//
// A minimum filter: of the packets that are new the fast ones each way tell most, seen along the rate that is known, or
// along the line that separates both directions while no rate is known. The hard bound follows from causality: no
// packet arrives before it was sent. What was tried beside it, and lost: docs/decisions/0016. What the fields mean, and
// in which units, is said where Python has them: clocksync/edge/estimator.py.
#ifndef FABRICPULSE_CLOCKSYNC_EDGE_FIT_H_
#define FABRICPULSE_CLOCKSYNC_EDGE_FIT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "trains.h"

namespace fabricpulse {

struct FitParameters {
  double nu;
  std::size_t fewest_points;
  double asymmetry_ns, drift_ppb, stamp_noise_ns;
  std::vector<double> ranks;  // ascending, in [0, 1)
};

struct Extremes {
  std::int64_t upper_t_ns, upper_ns, lower_t_ns, lower_ns;
};

struct Floor {
  double upper_ns, upper_s, lower_ns, lower_s;
};

struct Prior {
  double rate_ppb, drift_ppb_s, most_ppb_s;
  std::int64_t t_ns;
  std::vector<Extremes> extremes;
};

// As Quality of Python numbers them.
enum class FitQuality { kFiltered, kWindow, kMinimum };

struct EdgeFit {
  std::int64_t t_ns, t_last_ns, offset_ns;
  double rate_ppb, half_gap_ns, above_ns, below_ns, rate_low_ppb, rate_high_ppb, bound_ns, sigma_ns,
      rate_sigma_ppb;
  std::size_t trains;
  double window_s;
  FitQuality quality;
  Extremes extremes;
  std::int64_t base_ns;
  std::vector<Floor> floors;
};

// Nothing while one direction has no packet after the warm-up of its trains, or there are too few of them and no prior.
// outbound: us to the peer. prior: null before the first window.
std::optional<EdgeFit> fit_edge(const Trains& outbound, const Trains& inbound,
                                const FitParameters& parameters, const Prior* prior);

}  // namespace fabricpulse

#endif  // FABRICPULSE_CLOCKSYNC_EDGE_FIT_H_
