// Whether this host's clock seems to move, sooner than delays prove it (causality.h). Pure.
//
// Theory of operation. What proves that fleet time is wrong takes two trains each way, and twice what bounds allow, as
// clocks may have been wrong by their bounds before. A clock whose rate changes by some ppm is beyond its bound long
// before that; until the next fit nobody would know. But errors of fleet time change slowly while all is well, and one
// that changes makes delays of one way shorter, and those of the other longer. A round trip does not change. So where
// the least delays of the last second or two, one each way, are together shorter than any round trip of some seconds
// before, by 0.3 us or an eighth of their bound, the error has changed meanwhile. Queues, which only add, never look like
// that, nor does a way that is longer. On the edges to half of the peers at once, the same way, that is reason enough to
// say for some tenths of a second that this host may not be synchronized. Nothing else follows from a doubt.
//
// Round trips of seconds in which an edge shows that do not count, as its two trains may have been sent before and after
// a jump; but what several such seconds show does: traffic that changes direction, each time, for an instant shows a
// round trip without the queue in which one of the two ways was all the time before.
#ifndef FABRICPULSE_EXPORTERS_CLOCK_SHIFT_H_
#define FABRICPULSE_EXPORTERS_CLOCK_SHIFT_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <unordered_map>

namespace fabricpulse {

// Of one edge.
class EdgeShift {
 public:
  // The fastest packet of a train of the main path. outbound : its direction. at_ns : when it was sent (outbound) or
  // received (inbound), now_ns : when that is known, monotonic.
  void add(bool outbound, std::int64_t owd_ns, std::int64_t bound_ns, std::int64_t at_ns,
           std::int64_t now_ns) {
    limit_ns_ = std::max(kLeastNs, bound_ns / 8);
    if (now_ns - begin_ns_ >= kPartNs) rotate(now_ns);
    widest_ns_ = std::max(widest_ns_, limit_ns_);
    Way &way = ways_[outbound ? 1 : 0], &other = ways_[outbound ? 0 : 1];
    way.early = owd_ns < -bound_ns ? kTrains : std::max(way.early - 1, 0);
    way.last_ns = now_ns;
    if (owd_ns < way.now.owd_ns - kScatterNs) way.visits = 0;
    if (owd_ns <= way.now.owd_ns) way.now = {owd_ns, now_ns};
    way.visits += owd_ns - way.now.owd_ns <= kScatterNs ? 1 : 0;
    ++way.trains;
    way.last = {owd_ns, at_ns};
    if (std::abs(at_ns - other.last.at_ns) <= kTogetherNs) take_round_trip(owd_ns + other.last.owd_ns);
    shown_ = shown_ || shifted() != 0;
  }
  // A train of another path: of its delay only the sign counts.
  void add_elsewhere(bool outbound, std::int64_t owd_ns, std::int64_t bound_ns, std::int64_t now_ns) {
    if (owd_ns >= -bound_ns) return;
    Way& way = ways_[outbound ? 1 : 0];
    way.early = kTrains;
    way.last_ns = now_ns;
    shown_ = true;
  }
  // What a clock may have moved by, and nothing shows: far more than of other edges where the peer's bound is wide.
  std::int64_t limit_ns() const { return limit_ns_; }
  // -1 : delays to this host are shorter, 1 : those from it; 0 : nothing shows. Delays of one way may be missing for
  // long, as where stamps of a peer do not come: what its last train showed says nothing beside the other way of today.
  int shifted() const {
    const std::int64_t last_ns = std::max(ways_[0].last_ns, ways_[1].last_ns);
    const bool both = last_ns - std::min(ways_[0].last_ns, ways_[1].last_ns) <= kPartNs;
    const bool early_in = ways_[0].early > 0 && (both || ways_[0].last_ns == last_ns);
    const bool early_out = ways_[1].early > 0 && (both || ways_[1].last_ns == last_ns);
    // Earlier than it was sent no queue, or route, lets a train arrive: the other direction is known an interval later.
    if (early_in != early_out) return early_in ? -1 : 1;
    const Delay &in = ways_[0].least(), &out = ways_[1].least();
    if (!both || floor_ == kNone || floor_ - in.owd_ns - out.owd_ns <= limit_ns_) return 0;
    return in.at_ns > out.at_ns ? -1 : 1;
  }

 private:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max() / 4;
  static constexpr std::int64_t kPartNs = 1'000'000'000;
  static constexpr std::int64_t kTogetherNs = 100'000'000;  // trains one after the other
  static constexpr std::int64_t kScatterNs = 500;           // of stamps
  static constexpr std::int64_t kLeastNs = 300;             // less, as several peers see it at once
  static constexpr int kTrains = 3, kParts = 32;
  static constexpr int kWorse = 2;
  static constexpr int kOften = 3, kApart = 3;  // the latter: until a clock with a new rate is corrected

  struct Delay {
    std::int64_t owd_ns = kNone, at_ns = 0;
  };
  struct Way {
    Delay now, before;  // the least of this second, of the one before
    Delay last;
    std::int64_t last_ns = std::numeric_limits<std::int64_t>::min() / 2;  // of the last train
    int trains = 0, visits = 0;  // of this second, and those that met no queue
    int early = 0;               // one of so many next trains, and it is no longer so

    bool queued() const { return 4 * visits < trains; }
    const Delay& least() const { return now.owd_ns <= before.owd_ns ? now : before; }
  };
  struct Part {
    std::int64_t round_trip = kNone;
    std::int64_t limit_ns = 0;  // what a clock may have moved by, and nothing showed
    bool shown = false;         // that a clock may have moved
  };

  void take_round_trip(std::int64_t ns) {
    round_trip_ = std::min(round_trip_, ns);
    // Of a clock that jumps, or turns, only each second pair of trains is shorter: all are where the way is.
    shorter_ = floor_ != kNone && floor_ - ns > limit_ns_ ? shorter_ + 1 : 0;
    if (shorter_ < kTrains) return;
    floor_ = ns;
    shown_ = false;
  }
  void rotate(std::int64_t now_ns) {
    const bool next = now_ns - begin_ns_ < 2 * kPartNs;
    // Where few trains meet no queue two in a row are too rare.
    if (!shown_ && (ways_[0].queued() || ways_[1].queued()))
      round_trip_ = std::min(round_trip_, ways_[0].now.owd_ns + ways_[1].now.owd_ns);
    for (Way& way : ways_) {
      way.before = next ? way.now : Delay();
      way.now = Delay();
      way.trains = way.visits = 0;
    }
    for (int i = kParts - 1; i > 0; --i) parts_[i] = parts_[i - 1];
    parts_[0] = {round_trip_, widest_ns_, shown_};
    widest_ns_ = 0;
    round_trip_ = kNone;
    shown_ = false;
    begin_ns_ = now_ns;
    floor_ = kNone;
    for (int i = 0; i < kParts; ++i) {
      // What wide bounds have hidden is worth nothing to narrow ones.
      const bool sharp = parts_[i].limit_ns <= kWorse * limit_ns_;
      if (sharp && (!parts_[i].shown || seen_often(i))) floor_ = std::min(floor_, parts_[i].round_trip);
    }
  }
  // Whether seconds that are apart show the same round trip as this one, in which a clock may have moved. Each clock that
  // moved showed another one: those that are shorter still say nothing of this one.
  bool seen_often(int part) const {
    int times = 0;
    for (int i = 0; i < kParts && times < kOften; ++i) {
      if (std::abs(parts_[i].round_trip - parts_[part].round_trip) > kScatterNs) continue;
      ++times;
      i += kApart - 1;
    }
    return times >= kOften;
  }

  Way ways_[2];
  std::int64_t begin_ns_ = std::numeric_limits<std::int64_t>::min() / 2;  // of this second
  std::int64_t limit_ns_ = 0, widest_ns_ = 0, round_trip_ = kNone,
               floor_ = kNone;  // the least of this second, of those before
  int shorter_ = 0;             // round trips in a row that are shorter than floor_
  bool shown_ = false;
  Part parts_[kParts];
};

// Of all edges, by the host at their other end.
class HostShift {
 public:
  // limit_ns : EdgeShift's.
  void received(std::uint64_t peer, int shifted, std::int64_t limit_ns, std::int64_t now_ns) {
    // Hosts come and go; while nothing shifts nobody asks, and those that are gone would stay.
    if (now_ns - swept_ns_ > kForget) forget(now_ns);
    Peer& known = peers_[peer];
    if (now_ns - known.received_ns > kForget) known = Peer();
    known.times = shifted == known.shifted ? known.times + 1 : 1;
    known.received_ns = now_ns;
    known.limit_ns = limit_ns;
    known.shifted = shifted;
    if (shifted != 0) shifted_ns_ = now_ns;
  }
  // Whether half of the peers that lately sent see it, two at least, or again the only one that there has been for a
  // minute: one train may have a broken stamp. A peer with a bound that is far wider than others' could not see it.
  bool own_clock(std::int64_t now_ns) {
    if (now_ns - shifted_ns_ > kLately) return false;
    forget(now_ns);
    int recent = 0, times = 0, senses[3] = {0, 0, 0};
    std::int64_t least_ns = std::numeric_limits<std::int64_t>::max();
    for (const auto& [name, peer] : peers_) {
      if (now_ns - peer.received_ns <= kLately) least_ns = std::min(least_ns, peer.limit_ns);
    }
    for (const auto& [name, peer] : peers_) {
      if (now_ns - peer.received_ns > kLately || (peer.shifted == 0 && peer.limit_ns / kBlind > least_ns))
        continue;
      ++recent;
      ++senses[peer.shifted + 1];
      times = peer.times;
    }
    const int most = std::max(senses[0], senses[2]);
    return 2 * most >= recent && (most >= 2 || (peers_.size() == 1 && times >= kTimes));
  }
  // Peers that are remembered: of the last two minutes at most.
  std::size_t peers() const { return peers_.size(); }

 private:
  void forget(std::int64_t now_ns) {
    swept_ns_ = now_ns;
    for (auto at = peers_.begin(); at != peers_.end();)
      at = now_ns - at->second.received_ns > kForget ? peers_.erase(at) : std::next(at);
  }

  // Peers that see it may take it for their own clock, and tell no more of fleet time, before most have seen it.
  static constexpr std::int64_t kLately = 2'000'000'000, kForget = 60'000'000'000;
  static constexpr int kTimes = 3;  // of trains either way
  static constexpr std::int64_t kBlind = 10;

  struct Peer {
    std::int64_t received_ns = 0, limit_ns = 0;
    int shifted = 0, times = 0;
  };
  std::unordered_map<std::uint64_t, Peer> peers_;
  std::int64_t shifted_ns_ = std::numeric_limits<std::int64_t>::min() / 2, swept_ns_ = shifted_ns_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_CLOCK_SHIFT_H_
