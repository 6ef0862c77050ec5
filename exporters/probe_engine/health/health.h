// Health of an edge and of its source ports, from the times of received packets. Pure: time is passed in, no clock is
// read. All times are unstalled time (unstalled_clock.h), ns.
#ifndef FABRICPULSE_EXPORTERS_HEALTH_H_
#define FABRICPULSE_EXPORTERS_HEALTH_H_

#include <algorithm>
#include <cstdint>

namespace fabricpulse {

constexpr std::int64_t kNeverReceived = -1;

enum class HealthState : std::uint8_t { kUnknown = 0, kUp = 1, kDown = 2 };

inline bool recent(std::int64_t at, std::int64_t now, std::int64_t interval) {
  return at != kNeverReceived && now - at < interval;
}

// When a peer was last received, and when it last received us (by its own report). Times never go backwards: a
// report that is old because we were stalled does not undo what is known.
struct Presence {
  std::int64_t received_at = kNeverReceived;          // ns, unstalled time
  std::int64_t received_by_peer_at = kNeverReceived;  // ns, unstalled time

  void received(std::int64_t at) { received_at = std::max(received_at, at); }
  void received_by_peer(std::int64_t at) { received_by_peer_at = std::max(received_by_peer_at, at); }
  // The last moment at which both directions were known to work. What a peer reports of us is as old as its
  // last packet: a peer that has fallen silent has not thereby stopped receiving us, so its report is held
  // against that packet and not against now.
  std::int64_t both(std::int64_t interval) const {
    if (received_at == kNeverReceived || received_by_peer_at == kNeverReceived) return kNeverReceived;
    return received_at - received_by_peer_at < interval ? received_at : received_by_peer_at;
  }
};

struct EdgeStates {
  HealthState edge = HealthState::kUnknown;
  HealthState inbound = HealthState::kUnknown;  // peer -> us
  HealthState outbound =
      HealthState::kUnknown;  // us -> peer; unknown while nothing is received that could show it
};

inline EdgeStates edge_states(const Presence& p, std::int64_t now, std::int64_t interval) {
  auto up_if = [](bool up) { return up ? HealthState::kUp : HealthState::kDown; };
  EdgeStates s;
  if (p.received_at == kNeverReceived) return s;
  s.inbound = up_if(recent(p.received_at, now, interval));
  if (p.received_by_peer_at == kNeverReceived) return s;
  if (s.inbound == HealthState::kUp) s.outbound = up_if(p.received_at - p.received_by_peer_at < interval);
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
    if (states_.edge == HealthState::kDown && next.edge == HealthState::kUp &&
        p.received_by_peer_at < proof_from_) {
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
  std::int64_t proof_from_ = kNeverReceived;
};

// One source port of the sweep. Down when `kMissed` trains of it in a row were lost while the edge was received.
class PathHealth {
 public:
  static constexpr std::uint32_t kMissed = 3;
  void received() {
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
