// Whether this host's clock seems to move, sooner than delays prove it (causality.h). Pure.
//
// Theory of operation. What proves that fleet time is wrong takes two trains each way, and twice what bounds allow, as
// clocks may have been wrong by their bounds before. A clock whose rate changes by some ppm is beyond its bound long
// before that; until the next fit nobody would know. But errors of fleet time change slowly while all is well. So a
// delay that is below the least of one of the two seconds before by a fifth of its bound (half, where most packets met
// queues), while the other direction is above its own by as much, on the edges to half of the peers at once, is reason
// enough to say for some tenths of a second that this host may not be synchronized. Traffic that changes its direction
// looks alike, as one queue ends and the other begins; but it shortens no way below what that was some seconds before, so
// that is asked as well, of seconds in which nothing showed. Nothing else follows from a doubt: queues of both directions
// that change at once after ten seconds still look alike.
#ifndef FABRICPULSE_EXPORTERS_CLOCK_SHIFT_H_
#define FABRICPULSE_EXPORTERS_CLOCK_SHIFT_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <unordered_map>

namespace fabricpulse {

// Of one edge.
class EdgeShift {
 public:
  // The fastest packet of a train of the main path. outbound : its direction. now_ns : monotonic.
  void add(bool outbound, std::int64_t owd_ns, std::int64_t bound_ns, std::int64_t now_ns) {
    Way& way = ways_[outbound ? 1 : 0];
    way.last_ns = now_ns;
    if (now_ns - way.begin_ns >= kPartNs) {
      const bool next = now_ns - way.begin_ns < 2 * kPartNs;
      for (int i = kHistory - 1; i > 0; --i) way.history[i] = next ? way.history[i - 1] : Part();
      way.history[0] = next && !way.older.shown ? way.older : Part();
      way.older = next ? way.before : Part();
      way.before = next ? way.now : Part();
      way.now = Part();
      way.begin_ns = now_ns;
    }
    way.now.add(owd_ns);
    way.early = owd_ns < -bound_ns ? kTrains : std::max(way.early - 1, 0);
    if (way.before.trains == 0) {
      way.shorter = 0;
      way.longer = false;
      return;
    }
    // By the part before that as well: a clock that turns by few ppm has shortened delays of the last one already.
    const Part& older = way.older.trains == 0 ? way.before : way.older;
    const bool quiet = way.before.quiet() && older.quiet();
    const std::int64_t limit = std::max(kScatterNs, bound_ns / (quiet ? 5 : 2));
    way.longer = owd_ns - std::min(way.before.least, older.least) > limit;
    // One that met a queue says nothing of that.
    const bool shorter = owd_ns - std::max(way.before.least, older.least) < -limit;
    std::int64_t floor = std::numeric_limits<std::int64_t>::max();
    for (const Part& part : way.history) floor = std::min(floor, part.least);
    const bool below = floor == std::numeric_limits<std::int64_t>::max() || owd_ns - floor < -limit;
    way.now.shown = way.now.shown || (shorter && below) || way.early > 0;
    way.shorter = shorter && below ? kTrains : std::max(way.shorter - 1, 0);
  }
  // -1 : delays to this host are shorter, 1 : those from it; 0 : nothing shows. Delays of one way may be missing for
  // long, as where stamps of a peer do not come: what its last train showed says nothing beside the other way of today.
  int shifted() const {
    const std::int64_t last_ns = std::max(ways_[0].last_ns, ways_[1].last_ns);
    const bool both = last_ns - std::min(ways_[0].last_ns, ways_[1].last_ns) <= kPartNs;
    const bool early_in = ways_[0].early > 0 && (both || ways_[0].last_ns == last_ns);
    const bool early_out = ways_[1].early > 0 && (both || ways_[1].last_ns == last_ns);
    // Earlier than it was sent no queue, or route, lets a train arrive: the other direction is known an interval later.
    if (early_in != early_out) return early_in ? -1 : 1;
    if (!both) return 0;
    const bool in = ways_[0].shorter > 0, out = ways_[1].shorter > 0;
    if (in && out) return 0;  // a route
    if (in && ways_[1].longer) return -1;
    return out && ways_[0].longer ? 1 : 0;
  }

 private:
  static constexpr std::int64_t kPartNs = 1'000'000'000;
  static constexpr std::int64_t kScatterNs = 500;  // of stamps, as several peers see it at once
  static constexpr int kTrains = 3, kHistory = 8;

  // Delays of a second.
  struct Part {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    bool shown = false;          // that the clock may move: no measure for later
    int trains = 0, visits = 0;  // of them near the least

    void add(std::int64_t owd_ns) {
      ++trains;
      if (owd_ns - least < -kScatterNs) visits = 0;
      least = std::min(least, owd_ns);
      if (owd_ns - least <= kScatterNs) ++visits;
    }
    bool quiet() const { return 4 * visits >= trains; }  // its least met no queue
  };
  struct Way {
    std::int64_t begin_ns = std::numeric_limits<std::int64_t>::min() / 2;
    std::int64_t last_ns = std::numeric_limits<std::int64_t>::min() / 2;  // of the last train
    Part now, before, older, history[kHistory];  // of seconds one after the other, the last ones first
    int shorter = 0, early = 0;                  // one of so many next trains, and it is no longer so
    bool longer = false;
  };
  Way ways_[2];
};

// Of all edges, by the host at their other end.
class HostShift {
 public:
  void received(std::uint64_t peer, int shifted, std::int64_t now_ns) {
    Peer& known = peers_[peer];
    known.times = shifted == known.shifted ? known.times + 1 : 1;
    known.received_ns = now_ns;
    known.shifted = shifted;
    if (shifted != 0) shifted_ns_ = now_ns;
  }
  // Whether half of the peers that lately sent see it, two at least, or again the only one that there has been for a
  // minute: one train may have a broken stamp.
  bool own_clock(std::int64_t now_ns) {
    if (now_ns - shifted_ns_ > kLately) return false;
    int recent = 0, times = 0, senses[3] = {0, 0, 0};
    for (auto at = peers_.begin(); at != peers_.end();) {
      if (now_ns - at->second.received_ns > kForget) {
        at = peers_.erase(at);
        continue;
      }
      if (now_ns - at->second.received_ns <= kLately) {
        ++recent;
        ++senses[at->second.shifted + 1];
        times = at->second.times;
      }
      ++at;
    }
    const int most = std::max(senses[0], senses[2]);
    return 2 * most >= recent && (most >= 2 || (peers_.size() == 1 && times >= kTimes));
  }

 private:
  // Peers that see it may take it for their own clock, and tell no more of fleet time, before most have seen it.
  static constexpr std::int64_t kLately = 2'000'000'000, kForget = 60'000'000'000;
  static constexpr int kTimes = 3;  // of trains either way

  struct Peer {
    std::int64_t received_ns = 0;
    int shifted = 0, times = 0;
  };
  std::unordered_map<std::uint64_t, Peer> peers_;
  std::int64_t shifted_ns_ = std::numeric_limits<std::int64_t>::min() / 2;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_CLOCK_SHIFT_H_
