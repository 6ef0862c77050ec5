// Delays of one edge: one-way delays peer to us (quantiles of the main path, the last ones of each source
// port), round trips, and which of them are elevated. Pure.
#ifndef FABRICPULSE_EXPORTERS_EDGE_DELAYS_H_
#define FABRICPULSE_EXPORTERS_EDGE_DELAYS_H_

#include <algorithm>
#include <cstdint>

#include "evidence/owd_window.h"
#include "evidence/round_trip.h"
#include "health/latency_health.h"
#include "packets/wire.h"

namespace fabricpulse {

// Up to N of the values since the last clear, the newest.
template <int N>
class Recent {
 public:
  void add(std::int64_t ns) {
    ns_[next_] = ns;
    next_ = (next_ + 1) % N;
    count_ = std::min(count_ + 1, N);
    ++fresh_;
  }
  int count() const { return count_; }
  // Values added since the last call.
  int take_fresh() {
    const int fresh = fresh_;
    fresh_ = 0;
    return fresh;
  }
  void clear() { next_ = count_ = fresh_ = 0; }
  // Undefined when count() is 0.
  std::int64_t median() const {
    std::int64_t sorted[N];
    std::copy(ns_, ns_ + count_, sorted);
    std::nth_element(sorted, sorted + count_ / 2, sorted + count_);
    return sorted[count_ / 2];
  }

 private:
  std::int64_t ns_[N] = {};
  int next_ = 0, count_ = 0, fresh_ = 0;
};

class EdgeDelays {
 public:
  EdgeDelays() = default;
  explicit EdgeDelays(const LatencyHealth& latency)
      : latency_(latency), rtt_latency_(latency), fresh_latency_(latency) {
    std::fill(path_latency_, path_latency_ + kMaxPaths, latency);
  }

  // Whether those stamps are used for delays now that the kernels of both ends make.
  bool by_kernels() const { return kind_ == 0; }
  // Whether stamps of this kind are used for delays now. The kernel's are taken outside of the NIC's: delays of both
  // kinds would look like a path that changes. Once hardly one train in five is of this kind the most frequent one is
  // used, and what is usual of the edge is learned anew; of four kinds one always makes more than that, so that those of
  // a NIC which stamps some trains only neither change the kind again and again nor leave none that is used.
  // An edge that has just begun has little to forget: it changes once after as many trains as it has used, kFirstTrains
  // at least. sent_by_nic, received_by_nic : or by the kernel.
  bool usual_stamps(bool sent_by_nic, bool received_by_nic) {
    const int kind = sent_by_nic | received_by_nic << 1;
    if (kind == kind_) {
      unusual_ = std::max(unusual_ - kUsualWeight, 0);
      if (unusual_ == 0) std::fill(kind_trains_, kind_trains_ + kKinds, 0);
      usual_ = std::min(usual_ + 1, kKindTrains);
      return true;
    }
    ++kind_trains_[kind];
    if (++unusual_ < std::max(usual_, kFirstTrains)) return false;
    kind_ = static_cast<int>(std::max_element(kind_trains_, kind_trains_ + kKinds) - kind_trains_);
    unusual_ = 0;
    usual_ = kKindTrains;
    std::fill(kind_trains_, kind_trains_ + kKinds, 0);
    latency_ = rtt_latency_ = fresh_latency_;
    std::fill(path_latency_, path_latency_ + kMaxPaths, fresh_latency_);
    second_.clear();
    rtt_second_.clear();
    for (auto& path : recent_) path.clear();
    return kind == kind_;
  }

  // owd_ns : signed; below zero by no more than the clocks' error. bound_ns : of its error.
  void add(std::uint8_t path, std::int64_t owd_ns, std::int64_t bound_ns) {
    if (path == 0) {
      window_.add(owd_ns);
      second_.add(owd_ns);
      ++count_;
      sum_ += std::max<std::int64_t>(owd_ns, 0);
      bound_ = bound_ns;
    }
    recent_[path].add(owd_ns);
  }
  RoundTrip& round_trip() { return round_trip_; }
  const RoundTrip& round_trip() const { return round_trip_; }
  void add_round_trip() { rtt_second_.add(round_trip_.latest()); }

  // A second is over: decides what is elevated.
  void second() {
    update(&second_, &latency_);
    update(&rtt_second_, &rtt_latency_);
    for (int i = 1; i < kMaxPaths; ++i) {
      if (recent_[i].take_fresh() > 0) path_latency_[i].update(recent_[i].median());
    }
  }
  // A window of the quantiles is over.
  void rotate() { window_.rotate(); }

  // Median of the last delays of one source port. False when there are none.
  bool recent_median(int path, std::int64_t* ns) const {
    if (recent_[path].count() == 0) return false;
    *ns = recent_[path].median();
    return true;
  }
  const OwdWindow& window() const { return window_; }
  // By one-way delays, or while fleet time has given none, by round trips.
  const LatencyHealth& latency() const {
    return latency_.state() != HealthState::kUnknown ? latency_ : rtt_latency_;
  }
  HealthState path_latency(int path) const {
    return path == 0 ? latency_.state() : path_latency_[path].state();
  }
  std::uint64_t count() const { return count_; }    // of the main path, since the start
  std::int64_t sum_ns() const { return sum_; }      // of delays above zero, so that it never falls
  std::int64_t bound_ns() const { return bound_; }  // of the last delay

 private:
  static constexpr int kPathTrains = 8;
  static constexpr int kKinds = 4;
  static constexpr int kFirstTrains = 8, kKindTrains = 64;  // of other kinds, before one of them is used
  static constexpr int kUsualWeight = 4;  // of a train of the usual kind against those of others

  static void update(Recent<64>* second, LatencyHealth* health) {
    if (second->count() < 3) return;  // waits for more
    health->update(second->median());
    second->clear();
  }

  OwdWindow window_;
  LatencyHealth latency_, rtt_latency_;
  LatencyHealth fresh_latency_;            // that has seen nothing
  LatencyHealth path_latency_[kMaxPaths];  // of the sweep
  std::uint64_t count_ = 0;
  std::int64_t sum_ = 0, bound_ = 0;
  Recent<64> second_, rtt_second_;
  Recent<kPathTrains> recent_[kMaxPaths];
  RoundTrip round_trip_;
  int kind_ = 0;                   // of stamps
  int usual_ = 0;                  // trains that were used; up to kKindTrains, and that many after a change
  int unusual_ = 0;                // trains of other kinds, less kUsualWeight for each of this one
  int kind_trains_[kKinds] = {0};  // of other kinds, since `unusual_` was 0
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_EDGE_DELAYS_H_
