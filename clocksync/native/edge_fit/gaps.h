// What is usual of the gaps of an edge: half of the round trip of its fast packets, one a round.
#ifndef FABRICPULSE_CLOCKSYNC_GAPS_H_
#define FABRICPULSE_CLOCKSYNC_GAPS_H_

#include <utility>
#include <vector>

namespace fabricpulse {

// The usual gap, where `share` of them are densest, and how far they scatter there; ns. At least one is given.
std::pair<double, double> usual_gap(std::vector<double> gaps, double share);

// By how much the gap changes from one to the next, median; 0 of a single one.
double gap_change(const std::vector<double>& gaps);

}  // namespace fabricpulse

#endif  // FABRICPULSE_CLOCKSYNC_GAPS_H_
