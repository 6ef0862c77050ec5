// Whether a NIC reaches the fabric, and why not: a state machine that is one table (nic_health.cc). Pure:
// time comes in, nothing is read. All times are unstalled time, ns.
#ifndef FABRICPULSE_EXPORTERS_NIC_HEALTH_H_
#define FABRICPULSE_EXPORTERS_NIC_HEALTH_H_

#include <cstddef>
#include <cstdint>

#include "health/health.h"

namespace fabricpulse {

enum class NicCause : std::uint8_t {
  kNone = 0,
  kSilent = 1,  // carrier is up (or not known), no probe of any peer arrives
  kLink = 2,    // no carrier, administratively down, or the device or its address is gone
  kOneWay = 3,  // probes of peers arrive, ours arrive nowhere
  kNeverSeen =
      4,  // nothing was received from a peer since the start, while other NICs of this host are connected
  kPeerGone = 5,     // unknown: the only host it exchanged probes with is silent on our other NICs too
  kNoSocket = 6,     // unknown: the probe socket cannot be opened, for a reason that is not the link
  kOnePeerOnly = 7,  // unknown: its only peer host is silent, and it is not known which end has failed
};

// What the edges of a NIC know of one peer host.
struct PeerSighting {
  std::uint64_t host = 0;                  // identity of the peer's host
  std::int64_t received = kNeverReceived;  // Presence::received_at
  std::int64_t both = kNeverReceived;      // Presence::both()
};

// How many peer hosts the NIC was still exchanging probes with when it fell silent, and what our other NICs
// know of them.
enum class PeerLoss : std::uint8_t {
  kSeveral,   // several hosts at once, or none ever: the NIC's side
  kPeerGone,  // one host, and our other NICs, where they had received from it, do not now either: its side
  kReceivedElsewhere,  // one host, from which another of our NICs receives: the NIC's side
  kOneWitness,         // one host, and none of our other NICs has ever received from it: not known
};

// Peers that had died before the NIC fell silent say nothing. Half an interval is enough for our other NICs:
// the NICs of a host do not fall silent in the same instant.
PeerLoss peer_loss(const PeerSighting* own, std::size_t own_count, const PeerSighting* others,
                   std::size_t others_count, std::int64_t now, std::int64_t interval);

// What one NIC can know at one moment.
struct NicEvidence {
  int edges = 0;                                   // edges that it probes
  std::int64_t received = kNeverReceived;          // latest Presence::received_at of its edges
  std::int64_t both = kNeverReceived;              // latest Presence::both() of its edges
  std::int64_t received_by_peer = kNeverReceived;  // latest Presence::received_by_peer_at of its edges
  bool link_down = false;
  PeerLoss peers = PeerLoss::kSeveral;
  bool cannot_probe = false;      // no socket, and not because of the link
  bool others_connected = false;  // another NIC of this host is connected
};

// kInterrupted: disconnected and connected again since the last update.
enum class NicEvent : std::uint8_t { kNothing = 0, kDisconnected = 1, kConnected = 2, kInterrupted = 3 };

// What the evidence amounts to; the columns of the table.
enum class NicObservation : std::uint8_t {
  kConnected,       // probes pass both ways, and a peer has received us since the last outage began
  kUnproven,        // probes pass both ways, but reports of peers are from before the outage
  kNoEdges,         // no peer is left in the membership
  kNoSocket,        // our own fault, which proves nothing about the NIC
  kStarting,        // nothing has arrived since the start, which is no fault by itself
  kStartingNoLink,  // the same, without a link
  kLinkDown,
  kNeverSeen,  // nothing was received for the grace, while other NICs of this host are connected
  kPeerGone,
  kOnePeerOnly,
  kExcused,  // the only peer came back on another NIC a moment ago: it has an interval to follow here
  kOneWay,
  kSilent,
};
constexpr std::size_t kNicObservations = 13;

// The rows of the table. kInterrupted: up, with a silence of an interval or more since the last update, which
// no update has seen.
enum class NicRow : std::uint8_t { kUnknown, kUp, kInterrupted, kDown };
constexpr std::size_t kNicRows = 4;

// What a transition does beside changing the state.
enum class NicMemory : std::uint8_t {
  kKeep,
  kRestart,  // what arrived before counts no more
  kExcuse,   // the silence until now was not this NIC's
};

struct NicTransition {
  HealthState next;
  NicCause cause;
  bool keep_cause;  // the cause stays what it was, whatever `cause` says
  NicEvent event;
  NicMemory memory;
};
const NicTransition& nic_transition(NicRow row, NicObservation observation);

class NicHealth {
 public:
  NicHealth() = default;
  NicHealth(std::int64_t interval, std::int64_t grace, std::int64_t now)
      : interval_(interval), grace_(grace), started_(now) {}

  // A packet of any edge has shown that both directions worked at `both`. Called for each packet, so that a
  // silence longer than the interval counts even if it ended just before the update that would have seen it.
  void exchanged(std::int64_t both);
  // The peers that were received from were taken out of the membership: the new ones get the grace of a start.
  void restart(std::int64_t now);
  // Must be called at each tick of the engine, after the packets of the tick were taken in.
  NicEvent update(const NicEvidence& e, std::int64_t now);

  HealthState state() const { return state_; }
  NicCause cause() const { return cause_; }
  // A disconnect is counted only for a NIC that was connected before.
  bool seen() const { return seen_; }
  // The last sign of a peer before the NIC was lost, kNeverReceived if there was none.
  std::int64_t lost_at() const { return lost_at_; }

 private:
  NicObservation observe(const NicEvidence& e, std::int64_t now) const;

  std::int64_t interval_ = 1'000'000'000;
  std::int64_t grace_ = 10'000'000'000;
  std::int64_t started_ = 0;
  std::int64_t exchanged_ = kNeverReceived;    // latest exchanged()
  std::int64_t silent_from_ = kNeverReceived;  // begin of a long silence that has ended since the last update
  std::int64_t lost_at_ = kNeverReceived;      // lost_at()
  std::int64_t excused_ = kNeverReceived;      // until then the silence was the peer's, or nobody's
  HealthState state_ = HealthState::kUnknown;
  NicCause cause_ = NicCause::kNone;
  bool seen_ = false;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_NIC_HEALTH_H_
