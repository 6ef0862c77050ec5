// Whether delays can be true: no packet arrives before it was sent.
//
// Theory of operation. A one-way delay is wrong by its bound at most, so delay + bound < 0 proves that a clock
// is wrong by more than it says. A clock that jumps by less shows as well: it shortens all delays of one
// direction and lengthens all of the other by the same amount, which no queue and no route does. Each clock
// may have been wrong by its bound before and after, so only a shift beyond both bounds counts.
//
// One train may have a broken stamp; two in a row, of one direction, are believed. Whose clock it is, one edge
// cannot tell: a host whose own clock jumped sees it on the edges to most of its peers, its peers on one each. A
// host that hears one peer only takes it for its own, as the peer does: neither can know, and neither says that it
// does.
//
// Pure: delays and times in ns are passed in.
#ifndef FABRICPULSE_EXPORTERS_CAUSALITY_H_
#define FABRICPULSE_EXPORTERS_CAUSALITY_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <unordered_map>

namespace fabricpulse {

enum class Direction : std::uint8_t { kInbound = 0, kOutbound = 1 };

// One edge.
class EdgeCausality {
 public:
  // The fastest packet of a train. main_path : of the source port whose delays share a floor; of others only
  // the sign counts. Returns whether it arrived before it can have been sent.
  bool add(Direction direction, bool main_path, std::int64_t owd_ns, std::int64_t bound_ns) {
    Way& way = ways_[static_cast<int>(direction)];
    const bool early = owd_ns < -bound_ns;
    way.early = early ? way.early + 1 : 0;
    if (main_path) follow_floor(way, owd_ns, bound_ns);
    return early;
  }
  // A clock of one of the two hosts is wrong by more than its bound.
  bool violated() const {
    const Way &in = ways_[0], &out = ways_[1];
    return std::max(in.early, out.early) >= kTrains || (in.below >= kTrains && out.above >= kTrains) ||
           (out.below >= kTrains && in.above >= kTrains);
  }
  void clear() { *this = EdgeCausality(); }

 private:
  static constexpr int kTrains = 2;
  static constexpr int kKnown = 16;  // trains until a floor is one
  static constexpr int kHalf = 64;   // trains of half of the floor's memory
  static constexpr int kShorter =
      8;  // trains below the floor in a row, without the other direction: a new route
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

  struct Way {
    std::int64_t floor = kNone, last_floor = kNone;  // of this half and the one before
    std::int64_t widest = 0, last_widest = 0;        // bounds of these delays
    int trains = 0;
    int early = 0, below = 0, above = 0;  // trains in a row
  };

  static void follow_floor(Way& way, std::int64_t owd_ns, std::int64_t bound_ns) {
    const bool known = way.last_floor != kNone || way.trains >= kKnown;
    if (known) {
      const std::int64_t floor = std::min(way.floor, way.last_floor);
      const std::int64_t limit = bound_ns + std::max(way.widest, way.last_widest);
      way.below = owd_ns < floor - limit ? way.below + 1 : 0;
      way.above = owd_ns > floor + limit ? way.above + 1 : 0;
      if (way.below >= kShorter) {
        way = Way{};
      } else if (way.below > 0) {
        return;  // it would be the next one's floor
      }
    }
    way.floor = std::min(way.floor, owd_ns);
    way.widest = std::max(way.widest, bound_ns);
    if (++way.trains < kHalf) return;
    way.last_floor = way.floor;
    way.last_widest = way.widest;
    way.floor = kNone;
    way.widest = 0;
    way.trains = 0;
  }

  Way ways_[2];
};

// All edges of this host, by the host at their other end.
class HostCausality {
 public:
  // A train came by an edge to `peer`. violated : as that edge says.
  void heard(std::uint64_t peer, bool violated, std::int64_t now_ns) {
    Peer& known = peers_[peer];
    known.heard_ns = now_ns;
    if (violated) known.violated_ns = last_violated_ns_ = now_ns;
  }
  // Whether it may be this host's clock: the edges to more than half of the peers heard lately are violated, two
  // at least, or that to the only peer that there has been for a minute. One of several that is left, while the
  // others restart say, proves nothing: queues that drain one way and fill the other way look alike on one edge.
  bool own_clock(std::int64_t now_ns) {
    if (now_ns - last_violated_ns_ > kLately) return false;
    int heard = 0, violated = 0;
    for (auto at = peers_.begin(); at != peers_.end();) {
      if (now_ns - at->second.heard_ns > kForget) {
        at = peers_.erase(at);
        continue;
      }
      heard += now_ns - at->second.heard_ns <= kLately ? 1 : 0;
      violated += now_ns - at->second.violated_ns <= kLately ? 1 : 0;
      ++at;
    }
    return 2 * violated > heard && (violated >= kFewest || (heard == 1 && peers_.size() == 1));
  }
  void clear() {
    peers_.clear();
    last_violated_ns_ = kNever;
  }

 private:
  static constexpr int kFewest = 2;
  static constexpr std::int64_t kLately = 500'000'000, kForget = 60'000'000'000;
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min() / 2;

  struct Peer {
    std::int64_t heard_ns = kNever, violated_ns = kNever;
  };

  std::unordered_map<std::uint64_t, Peer> peers_;
  std::int64_t last_violated_ns_ = kNever;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_CAUSALITY_H_
