// The trains of one direction of an edge, in the order of time, and what each says beside a line.
#ifndef FABRICPULSE_CLOCKSYNC_TRAINS_H_
#define FABRICPULSE_CLOCKSYNC_TRAINS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "fabricpulse/probe_ring.h"

namespace fabricpulse {

// t_ns: our host clock at the first packet that it stamped. valid: both stamps of the packet are there.
struct Train {
  std::int64_t t_ns;
  std::int64_t tx_ns[FP_PROBE_TRAIN];
  std::int64_t rx_ns[FP_PROBE_TRAIN];
  bool valid[FP_PROBE_TRAIN];
  std::int32_t error_ns;  // how far both stamps of a packet may be off together, beyond what the kernel's are
};

// The peer's clock minus ours: offset_ns at our host time t_ns.
struct OffsetLine {
  std::int64_t t_ns;
  std::int64_t offset_ns;
  double rate_ppb;
};

// Which trains since a fit have arrived, by it, before they can have been sent, and of how many since the fit.
struct EarlyTrains {
  std::vector<std::int64_t> t_ns;
  std::size_t fresh;
};

// Trains that must tell of a step: one may be a broken stamp. Fewer are left out: the last two of a short window, from
// a clock that was stepped by 1 ms, would turn its line by hundreds of us.
inline constexpr std::size_t kStepTrains = 3;

// A part of what a window has; copies and parts share the trains, which are never changed.
class Trains {
 public:
  Trains() : Trains(std::vector<Train>()) {}
  explicit Trains(std::vector<Train> trains);

  std::size_t size() const { return end_ - begin_; }
  Train* begin() const { return all_->data() + begin_; }
  Train* end() const { return all_->data() + end_; }

  // The largest error_ns.
  double worst_stamp_ns() const;
  // The place of the first train at `t_ns` or later.
  std::size_t find(std::int64_t t_ns) const;
  // Those from place `begin` on, before `end`.
  Trains part(std::size_t begin, std::size_t end) const;
  Trains without(const std::vector<std::int64_t>& t_ns) const;
  // Without the `count` that are fastest by the line.
  Trains without_fastest(std::size_t count, int sign, const OffsetLine& line) const;
  // With those of the main path among `samples` of `direction` that have a packet with both stamps. Those with
  // stamps that are on no stamp clock are left out.
  Trains joined(const std::vector<std::pair<const fp_probe_sample*, std::size_t>>& samples,
                fp_probe_direction direction) const;

  // sign: 1 to the peer, -1 from it. last_ns, bound_ns: end and bound of the fit. unsure_ppb: how far its rate may be
  // off.
  EarlyTrains early(int sign, const OffsetLine& line, std::int64_t last_ns, double bound_ns,
                    double unsure_ppb) const;
  // The delay of the fastest train by the line, and of the one that two fifths are faster than, ns. Less than the
  // median: a way that changed just before the middle of the window then shows in the next one. Throws
  // std::invalid_argument where there is none.
  std::pair<double, double> floor(int sign, const OffsetLine& line) const;

 private:
  Trains(std::shared_ptr<std::vector<Train>> all, std::size_t begin, std::size_t end);

  std::shared_ptr<std::vector<Train>> all_;
  std::size_t begin_, end_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CLOCKSYNC_TRAINS_H_
