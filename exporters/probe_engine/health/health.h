// Health of an edge and of its source ports, from the times of received packets. Pure: time is passed in, no clock is
// read. All times are unstalled time (unstalled_clock.h), ns.
#ifndef FABRICPULSE_EXPORTERS_HEALTH_H_
#define FABRICPULSE_EXPORTERS_HEALTH_H_

#include <algorithm>
#include <cstdint>

namespace fabricpulse {

constexpr std::int64_t kNeverHeard = -1;

enum class HealthState : std::uint8_t { kUnknown = 0, kUp = 1, kDown = 2 };

inline bool recent(std::int64_t at, std::int64_t now, std::int64_t interval) {
  return at != kNeverHeard && now - at < interval;
}

// When a peer was last heard, and when it last heard us (by its own report). Times never go backwards: a
// report that is old because we were stalled does not undo what is known.
struct Presence {
  std::int64_t heard_at = kNeverHeard;     // ns, unstalled time
  std::int64_t heard_by_at = kNeverHeard;  // ns, unstalled time

  void heard(std::int64_t at) { heard_at = std::max(heard_at, at); }
  void heard_by(std::int64_t at) { heard_by_at = std::max(heard_by_at, at); }
  // The last moment at which both directions were known to work. What a peer reports of us is as old as its
  // last packet: a peer that has fallen silent has not thereby stopped to hear us, so its report is held
  // against that packet and not against now.
  std::int64_t both(std::int64_t interval) const {
    if (heard_at == kNeverHeard || heard_by_at == kNeverHeard) return kNeverHeard;
    return heard_at - heard_by_at < interval ? heard_at : heard_by_at;
  }
};

struct EdgeStates {
  HealthState edge = HealthState::kUnknown;
  HealthState inbound = HealthState::kUnknown;   // peer -> us
  HealthState outbound = HealthState::kUnknown;  // us -> peer; unknown while nothing is heard that could tell
};

inline EdgeStates edge_states(const Presence& p, std::int64_t now, std::int64_t interval) {
  auto up_if = [](bool up) { return up ? HealthState::kUp : HealthState::kDown; };
  EdgeStates s;
  if (p.heard_at == kNeverHeard) return s;
  s.inbound = up_if(recent(p.heard_at, now, interval));
  if (p.heard_by_at == kNeverHeard) return s;
  if (s.inbound == HealthState::kUp) s.outbound = up_if(p.heard_at - p.heard_by_at < interval);
  s.edge = up_if(recent(p.both(interval), now, interval));
  return s;
}

// An edge that is down comes up only by a report that the peer has received us since the outage began. Older
// reports, which the first packets after it may still carry, would take the edge up and, as they age, down
// again: two outages counted where there was one.
class EdgeHealth {
 public:
  const EdgeStates& update(const Presence& p, std::int64_t now, std::int64_t interval) {
    EdgeStates next = edge_states(p, now, interval);
    if (states_.edge == HealthState::kDown && next.edge == HealthState::kUp && p.heard_by_at < proof_from_) {
      next.edge = HealthState::kDown;
    } else if (states_.edge != HealthState::kDown && next.edge == HealthState::kDown) {
      proof_from_ = p.both(interval) + interval;
    }
    states_ = next;
    return states_;
  }
  const EdgeStates& states() const { return states_; }

 private:
  EdgeStates states_;
  std::int64_t proof_from_ = kNeverHeard;
};

// One source port of the sweep. Down when `kMissed` trains of it in a row were lost while the edge was heard.
class PathHealth {
 public:
  static constexpr std::uint32_t kMissed = 3;
  void heard() {
    missed_ = 0;
    seen_ = true;
  }
  void missed() { ++missed_; }
  // After a silence of the whole edge nothing is known of a single path.
  void reset() { missed_ = 0; }
  HealthState state() const {
    if (missed_ >= kMissed) return HealthState::kDown;
    return seen_ ? HealthState::kUp : HealthState::kUnknown;
  }

 private:
  std::uint32_t missed_ = 0;
  bool seen_ = false;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_HEALTH_H_
