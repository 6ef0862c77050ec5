// Whether delays are possible: no packet arrives before it was sent.
//
// Theory of operation. A one-way delay is wrong by its bound at most, so delay + bound < 0 proves that a clock
// is wrong by more than its bound. A clock that jumps by less shows as well: it shortens all delays of one
// direction and lengthens all of the other by the same amount. A queue that drains one way while another fills looks
// alike, but no queue makes a delay shorter than its floor of minutes (delay_floor.h): only such floors count, and only
// shifts beyond both bounds, as each clock may have been wrong by its bound before and after.
//
// One train may have a broken stamp; two are accepted, unless a train between them came at its floor. One edge does not
// show whose clock it is: a host whose own clock jumped sees it on the edges to most of its peers, by one size, its
// peers on one each. A host with one peer only takes it for its own, as the peer does: neither can know.
//
// Where all trains wait in a queue a jump by less than that can hide (`hidden_ns`): the bound of fleet time has to be
// wider by as much.
//
// Pure: delays and times in ns are passed in.
#ifndef FABRICPULSE_EXPORTERS_CAUSALITY_H_
#define FABRICPULSE_EXPORTERS_CAUSALITY_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <unordered_map>
#include <vector>

#include "evidence/delay_floor.h"

namespace fabricpulse {

enum class Direction : std::uint8_t { kInbound = 0, kOutbound = 1 };

inline constexpr std::int64_t kLongAgo = std::numeric_limits<std::int64_t>::min() / 2;
// Where most trains wait in queues, peers show the same jump one after the other.
inline constexpr std::int64_t kReported = 5'000'000'000;
inline constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 2;

// What two trains of an edge show: a clock of one of its two hosts has jumped, so that delays of `shorter` are shorter
// by least_ns to most_ns. since_ns : when the first of them had arrived.
struct ClockJump {
  Direction shorter = Direction::kInbound;
  std::int64_t least_ns = 0, most_ns = kUnlimited;
  std::int64_t since_ns = kLongAgo;
};

// One edge.
class EdgeCausality {
 public:
  // The fastest packet of a train. main_path : of the source port whose delays share a floor; of others only
  // the sign counts. at_ns : when it was sent (outbound) or received (inbound), on a clock that never runs backward.
  // Returns whether it arrived before it can have been sent.
  bool add(Direction direction, bool main_path, std::int64_t owd_ns, std::int64_t bound_ns,
           std::int64_t at_ns) {
    Way& way = ways_[static_cast<int>(direction)];
    Way& other = ways_[1 - static_cast<int>(direction)];
    // A host that was disrupted meanwhile has set its clock anew. Floors are as before.
    if (at_ns - last_ns_ > kReported) way.forget_jump(), other.forget_jump();
    last_ns_ = at_ns;
    const std::int64_t on_its_way = std::max<std::int64_t>(owd_ns, 0);
    const std::int64_t sent = direction == Direction::kInbound ? at_ns - on_its_way : at_ns;
    const std::int64_t received = direction == Direction::kInbound ? at_ns : at_ns + on_its_way;
    const bool early = owd_ns < -bound_ns;
    if (!main_path) {
      if (early) {
        way.elsewhere.add(-owd_ns - bound_ns, true, received);
      } else {
        way.elsewhere = Run();
      }
      return early;
    }
    way.recent.add(owd_ns, at_ns);
    way.bound_ns = bound_ns;
    const bool known = way.floor.known();
    const std::int64_t limit = way.floor.limit_ns(bound_ns);
    const std::int64_t above = known ? owd_ns - way.floor.ns() : 0;
    if (early || above < -limit) {
      if (way.shorter.trains > 0 && received - way.shorter.first_ns > kTrusted) way = Way{};
      const std::int64_t by =
          std::max(known ? -above - limit : kLongAgo, early ? -owd_ns - bound_ns : kLongAgo);
      way.shorter.add(by, early, received);
      if (other.shorter.trains > 0 && sent >= other.shorter.first_ns) {
        // Both directions are shorter: a route.
        refute(way);
        refute(other);
      }
      return early;
    }
    if (!known) {
      way.shorter = Run();
    } else {
      const bool visit = std::abs(above) <= std::max(kScatterNs, bound_ns / 4);
      if (visit) way.visited_ns = sent;
      if (above <= limit) way.near_ns = sent;
      if (visit || (above <= limit && way.shorter.least() > limit)) {
        // It met no queue, and no clock had jumped.
        way.shorter = Run();
        way.refuted = 0;
      }
      // As much longer as the other direction became shorter, and by queues more, if it was a clock.
      Run& run = other.shorter;
      if (run.trains > 0 && sent >= run.first_ns) {
        run.most = std::min(run.most, above + limit);
        if (above <= limit || run.most < run.least()) refute(other);
      }
    }
    way.floor.add(owd_ns, bound_ns, at_ns);
    return false;
  }
  // A clock of one of the two hosts is wrong by more than its bound.
  bool violated() const {
    ClockJump jump;
    return find_jump(&jump);
  }
  // False while nothing shows a jump.
  bool find_jump(ClockJump* jump) const {
    for (int i = 0; i < 2; ++i) {
      const Way &way = ways_[i], &other = ways_[1 - i];
      const auto direction = static_cast<Direction>(i);
      const Run& run = way.shorter;
      const bool longer = !other.floor.known() || run.most < kUnlimited;
      const bool early = run.early >= kTrains;
      if (early || (run.trains >= kTrains && longer)) {
        // That a packet arrived before it was sent no other one can refute.
        const bool contrary = early && run.most < run.least();
        *jump = {direction, run.least(), contrary ? kUnlimited : run.most,
                 early ? kUnlimited : run.before_ns};
        return true;
      }
      if (way.elsewhere.early >= kTrains) {
        *jump = {direction, way.elsewhere.least(), kUnlimited, kUnlimited};
        return true;
      }
    }
    return false;
  }
  // When the last train was sent that contradicts `jump` (an edge of another NIC may show it).
  std::int64_t refuted_ns(const ClockJump& jump) const {
    const int shorter = static_cast<int>(jump.shorter);
    const Way &way = ways_[shorter], &other = ways_[1 - shorter];
    // At the floor of the direction that should be longer; at the other one's by chance, if the queue was as long as
    // the jump is large.
    const std::int64_t same = jump.least_ns > way.floor.limit_ns(way.bound_ns) ? way.near_ns : way.visited_ns;
    return std::max(same, other.near_ns);
  }
  // By how much a clock may have jumped during the last seconds, and delays of `direction` become shorter, without
  // a train that shows it: by as much as all of them waited in queues, or where there is no floor, by all of the delay.
  // 0 where it is what bounds allow; kUnlimited when nothing was received, or a jump shows.
  std::int64_t hidden_ns(Direction direction, std::int64_t now_ns) const {
    const Way& way = ways_[static_cast<int>(direction)];
    const std::int64_t least = way.recent.least(now_ns);
    if (least == DelayFloor::kNone) return kUnlimited;
    // By the bounds of the time when nothing was hidden: those of now are wider by what is.
    const std::int64_t limit = way.floor.limit_ns(way.floor.bound_ns());
    if (violated()) {
      // Soon the host whose clock it is knows. If none does, it may be this one.
      const Run& run =
          ways_[way.shorter.trains >= kTrains ? static_cast<int>(direction) : 1 - static_cast<int>(direction)]
              .shorter;
      if (now_ns - run.first_ns < kUndecided) return kUnlimited;
      if (&run == &way.shorter) return run.longest + 2 * limit;
    }
    const bool floor = way.floor.known() || way.floor.is_new();
    const std::int64_t hidden = std::max<std::int64_t>(floor ? least - way.floor.ns() : least, 0);
    return hidden > limit ? hidden : 0;
  }
  void clear() { *this = EdgeCausality(); }

 private:
  static constexpr int kTrains = 2;
  static constexpr int kShorter = 8;  // refuted runs of trains below the floor: another route
  static constexpr std::int64_t kTrusted = 10'000'000'000;   // so is a run that nobody has refuted
  static constexpr std::int64_t kUndecided = 1'000'000'000;  // until the host whose clock it is should know
  static constexpr std::int64_t kScatterNs = 1'000;          // of stamps

  // Trains that are too short, without one at its floor between them.
  struct Run {
    std::int64_t longest = kLongAgo, second = kLongAgo;  // by how much beyond the limit, the most
    std::int64_t most = kUnlimited;                      // that the other direction allows
    std::int64_t first_ns = kLongAgo, before_ns = kLongAgo, last_ns = kLongAgo;
    int trains = 0, early = 0;

    void add(std::int64_t by_ns, bool arrived_early, std::int64_t received_ns) {
      if (by_ns > longest) {
        second = longest;
        longest = by_ns;
      } else {
        second = std::max(second, by_ns);
      }
      if (trains == 0) first_ns = received_ns;
      before_ns = trains == 0 ? received_ns : last_ns;
      last_ns = received_ns;
      ++trains;
      early += arrived_early ? 1 : 0;
    }
    // Two trains say so: one may be a broken stamp.
    std::int64_t least() const { return trains >= kTrains ? second : kLongAgo; }
  };

  // The least delay of the last one to two seconds.
  struct Recent {
    std::int64_t half_ns = kLongAgo, now = DelayFloor::kNone, before = DelayFloor::kNone;

    void add(std::int64_t owd_ns, std::int64_t at_ns) {
      rotate(at_ns);
      now = std::min(now, owd_ns);
    }
    std::int64_t least(std::int64_t now_ns) const {
      Recent rotated = *this;
      rotated.rotate(now_ns);
      return std::min(rotated.now, rotated.before);
    }
    void rotate(std::int64_t at_ns) {
      if (at_ns - half_ns < kHalfNs) return;
      before = at_ns - half_ns < 2 * kHalfNs ? now : DelayFloor::kNone;
      now = DelayFloor::kNone;
      half_ns = at_ns;
    }
    static constexpr std::int64_t kHalfNs = 1'000'000'000;
  };

  struct Way {
    DelayFloor floor;
    Recent recent;
    Run shorter;
    Run elsewhere;  // other source ports: trains in a row that arrived before they were sent
    std::int64_t bound_ns = 0;
    std::int64_t visited_ns = kLongAgo,
                 near_ns = kLongAgo;  // a train at the floor was sent, one within bounds of it
    int refuted = 0;

    void forget_jump() {
      shorter = elsewhere = Run();
      refuted = 0;
    }
  };

  // The delays of `way` are shorter, and it was no clock. If that lasts, its path is a shorter one now.
  static void refute(Way& way) {
    const int refuted = way.refuted + 1;
    if (way.shorter.early >= kTrains) return;
    way.shorter = Run();
    way.refuted = refuted;
    if (refuted >= kShorter) way = Way{};
  }

  Way ways_[2];
  std::int64_t last_ns_ = kLongAgo;  // of any train
};

// All edges of this host, by the host at their other end.
class HostCausality {
 public:
  // A train came by an edge to `peer`, and `edge` is what is known of it now. now_ns : monotonic.
  void received(std::uint64_t peer, const EdgeCausality& edge, std::int64_t now_ns) {
    // Hosts come and go; while nothing jumps nobody asks, and those that are gone would stay.
    if (now_ns - swept_ns_ > kForget) forget(now_ns);
    Peer& known = peers_[peer];
    known.received_ns = now_ns;
    ClockJump jump;
    if (!edge.find_jump(&jump)) {
      if (now_ns - known.jumped_ns <= kReported)
        known.refuted_ns = std::max(known.refuted_ns, edge.refuted_ns(known.jump));
      return;
    }
    known.jump = jump;
    known.jumped_ns = last_jump_ns_ = now_ns;
  }
  // Whether it may be this host's clock: the edges to more than half of the peers that lately sent show one
  // jump, two at least, or that to the only peer that there has been for a minute. One of several that is left,
  // while the others restart say, proves nothing.
  bool own_clock(std::int64_t now_ns) {
    if (now_ns - last_jump_ns_ > kReported) return false;
    forget(now_ns);
    int recent = 0;
    jumps_.clear();
    for (const auto& [name, peer] : peers_) {
      if (now_ns - peer.received_ns > kLately) continue;
      ++recent;
      // A train of any edge to that peer that was sent since then, and came at its floor, knows better.
      if (now_ns - peer.jumped_ns <= kReported && peer.refuted_ns < peer.jump.since_ns)
        jumps_.push_back(peer.jump);
    }
    const int agreed = agreeing();
    return 2 * agreed > recent && (agreed >= kFewest || (recent == 1 && peers_.size() == 1));
  }
  void clear() {
    peers_.clear();
    last_jump_ns_ = kLongAgo;
  }
  // Peers that are remembered: of the last two minutes at most.
  std::size_t peers() const { return peers_.size(); }

 private:
  void forget(std::int64_t now_ns) {
    swept_ns_ = now_ns;
    for (auto at = peers_.begin(); at != peers_.end();)
      at = now_ns - at->second.received_ns > kForget ? peers_.erase(at) : std::next(at);
  }

  static constexpr int kFewest = 2;
  static constexpr std::int64_t kLately = 500'000'000, kForget = 60'000'000'000;

  struct Peer {
    std::int64_t received_ns = kLongAgo, jumped_ns = kLongAgo, refuted_ns = kLongAgo;
    ClockJump jump;
  };

  // The most peers that one and the same jump explains.
  int agreeing() const {
    int most = 0;
    for (const ClockJump& one : jumps_) {
      int with = 0;
      for (const ClockJump& other : jumps_) {
        const bool same =
            other.shorter == one.shorter && other.least_ns <= one.least_ns && one.least_ns <= other.most_ns;
        with += same ? 1 : 0;
      }
      most = std::max(most, with);
    }
    return most;
  }

  std::unordered_map<std::uint64_t, Peer> peers_;
  std::vector<ClockJump> jumps_;
  std::int64_t last_jump_ns_ = kLongAgo, swept_ns_ = kLongAgo;
};

// How large a jump of this host's clock can hide from the edges to most of its peers.
class HiddenJump {
 public:
  void begin() { peers_.clear(); }
  // by_ns : of one edge, inbound and outbound.
  void edge(std::uint64_t peer, std::int64_t inbound_ns, std::int64_t outbound_ns) {
    auto [at, fresh] = peers_.try_emplace(peer, Both{inbound_ns, outbound_ns});
    if (fresh) return;
    at->second.inbound = std::min(at->second.inbound, inbound_ns);
    at->second.outbound = std::min(at->second.outbound, outbound_ns);
  }
  // 0 when nothing hides one, or nothing was received of any peer.
  std::int64_t ns() { return std::max(of_most(&Both::inbound), of_most(&Both::outbound)); }

 private:
  struct Both {
    std::int64_t inbound = kUnlimited, outbound = kUnlimited;
  };
  std::int64_t of_most(std::int64_t Both::*way) {
    sorted_.clear();
    for (const auto& [peer, both] : peers_) {
      if (both.*way < kUnlimited) sorted_.push_back(both.*way);
    }
    if (sorted_.empty()) return 0;
    std::nth_element(sorted_.begin(), sorted_.begin() + static_cast<std::ptrdiff_t>(sorted_.size() / 2),
                     sorted_.end());
    return sorted_[sorted_.size() / 2];
  }

  std::unordered_map<std::uint64_t, Both> peers_;
  std::vector<std::int64_t> sorted_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_CAUSALITY_H_
