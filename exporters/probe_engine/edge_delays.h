// One-way delays of one edge, peer to us: quantiles of the main path, recent delays of each source port, and
// whether the delay is elevated. Pure.
#ifndef FABRICPULSE_EXPORTERS_EDGE_DELAYS_H_
#define FABRICPULSE_EXPORTERS_EDGE_DELAYS_H_

#include <algorithm>
#include <cstdint>

#include "latency_health.h"
#include "owd_window.h"
#include "wire.h"

namespace fabricpulse {

class EdgeDelays {
 public:
  EdgeDelays() = default;
  explicit EdgeDelays(const LatencyHealth& latency) : latency_(latency) {}

  // owd_ns : signed; below zero by no more than the clocks' error. bound_ns : of its error.
  void add(std::uint8_t path, std::int64_t owd_ns, std::int64_t bound_ns) {
    if (path == 0) {
      window_.add(owd_ns);
      ++count_;
      sum_ += std::max<std::int64_t>(owd_ns, 0);
      bound_ = bound_ns;
    }
    Recent& recent = recent_[path];
    recent.ns[recent.next] = owd_ns;
    recent.next = static_cast<std::uint8_t>((recent.next + 1) % kRecent);
    if (recent.count < kRecent) ++recent.count;
  }
  // One window is over.
  void rotate() {
    if (window_.current_count() > 0) latency_.window(window_.current_quantile(0.5));
    window_.rotate();
  }
  // Median of the last delays of one source port. False when there are none.
  bool recent_median(int path, std::int64_t* ns) const {
    const Recent& recent = recent_[path];
    if (recent.count == 0) return false;
    std::int64_t sorted[kRecent];
    std::copy(recent.ns, recent.ns + recent.count, sorted);
    std::nth_element(sorted, sorted + recent.count / 2, sorted + recent.count);
    *ns = sorted[recent.count / 2];
    return true;
  }
  const OwdWindow& window() const { return window_; }
  const LatencyHealth& latency() const { return latency_; }
  std::uint64_t count() const { return count_; }    // of the main path, since the start
  std::int64_t sum_ns() const { return sum_; }      // of delays above zero, so that it never falls
  std::int64_t bound_ns() const { return bound_; }  // of the last delay

 private:
  static constexpr std::uint8_t kRecent = 8;
  struct Recent {
    std::int64_t ns[kRecent] = {};
    std::uint8_t count = 0, next = 0;
  };

  OwdWindow window_;
  LatencyHealth latency_;
  std::uint64_t count_ = 0;
  std::int64_t sum_ = 0, bound_ = 0;
  Recent recent_[kMaxPaths];
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_EDGE_DELAYS_H_
