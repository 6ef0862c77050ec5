#include "health/nic_health.h"

#include <algorithm>

namespace fabricpulse {
namespace {

using State = HealthState;
using Cause = NicCause;
using Event = NicEvent;
using Memory = NicMemory;

constexpr NicTransition stay(State state) {
  return {state, Cause::kNone, true, Event::kNothing, Memory::kKeep};
}
constexpr NicTransition to(State state, Event event = Event::kNothing) {
  return {state, Cause::kNone, false, event, Memory::kKeep};
}
// Not known, and why.
constexpr NicTransition unknown(Cause cause, Memory memory) {
  return {State::kUnknown, cause, false, Event::kNothing, memory};
}
constexpr NicTransition lost(Cause cause) {
  return {State::kDown, cause, false, Event::kDisconnected, Memory::kKeep};
}
// Is down already; the cause has become clearer.
constexpr NicTransition still_down(Cause cause) {
  return {State::kDown, cause, false, Event::kNothing, Memory::kKeep};
}

// Rows: state before. Columns: NicObservation, in its order. What has been measured as down stays down until
// probes pass again, or no peer is left that could show it.
// clang-format off
constexpr NicTransition kTable[kNicRows][kNicObservations] = {
    // unknown
    {to(State::kUp), stay(State::kUnknown), unknown(Cause::kNone, Memory::kRestart),
     unknown(Cause::kNoSocket, Memory::kRestart), stay(State::kUnknown), stay(State::kUnknown),
     lost(Cause::kLink), lost(Cause::kNeverSeen), unknown(Cause::kPeerGone, Memory::kExcuse),
     unknown(Cause::kOnePeerOnly, Memory::kExcuse), stay(State::kUnknown), lost(Cause::kOneWay),
     lost(Cause::kSilent)},
    // up
    {to(State::kUp), to(State::kUp), unknown(Cause::kNone, Memory::kRestart),
     unknown(Cause::kNoSocket, Memory::kRestart), stay(State::kUp), stay(State::kUp),
     lost(Cause::kLink), lost(Cause::kNeverSeen), unknown(Cause::kPeerGone, Memory::kExcuse),
     unknown(Cause::kOnePeerOnly, Memory::kExcuse), stay(State::kUp), lost(Cause::kOneWay),
     lost(Cause::kSilent)},
    // interrupted
    {to(State::kUp, Event::kInterrupted), lost(Cause::kOneWay), unknown(Cause::kNone, Memory::kRestart),
     unknown(Cause::kNoSocket, Memory::kRestart), stay(State::kUp), stay(State::kUp),
     lost(Cause::kLink), lost(Cause::kNeverSeen), unknown(Cause::kPeerGone, Memory::kExcuse),
     unknown(Cause::kOnePeerOnly, Memory::kExcuse), stay(State::kUp), lost(Cause::kOneWay),
     lost(Cause::kSilent)},
    // down
    {to(State::kUp, Event::kConnected), stay(State::kDown), unknown(Cause::kNone, Memory::kRestart),
     stay(State::kDown), stay(State::kDown), still_down(Cause::kLink),
     still_down(Cause::kLink), stay(State::kDown), stay(State::kDown),
     stay(State::kDown), stay(State::kDown), stay(State::kDown),
     stay(State::kDown)},
};
// clang-format on

}  // namespace

const NicTransition& nic_transition(NicRow row, NicObservation observation) {
  return kTable[static_cast<std::size_t>(row)][static_cast<std::size_t>(observation)];
}

PeerLoss peer_loss(const PeerSighting* own, std::size_t own_count, const PeerSighting* others,
                   std::size_t others_count, std::int64_t now, std::int64_t interval) {
  std::int64_t last = kNeverReceived;
  for (std::size_t i = 0; i < own_count; ++i) last = std::max(last, own[i].both);
  if (last == kNeverReceived) return PeerLoss::kSeveral;
  const PeerSighting* only = nullptr;
  for (std::size_t i = 0; i < own_count; ++i) {
    if (own[i].both == kNeverReceived || last - own[i].both >= interval) continue;
    if (only != nullptr && only->host != own[i].host) return PeerLoss::kSeveral;
    only = &own[i];
  }
  if (only == nullptr) return PeerLoss::kSeveral;
  bool seen_by_others = false;
  for (std::size_t i = 0; i < others_count; ++i) {
    if (others[i].host != only->host || others[i].received == kNeverReceived) continue;
    if (recent(others[i].received, now, interval / 2)) return PeerLoss::kReceivedElsewhere;
    seen_by_others = true;
  }
  return seen_by_others ? PeerLoss::kPeerGone : PeerLoss::kOneWitness;
}

void NicHealth::exchanged(std::int64_t both) {
  if (both <= exchanged_) return;
  if (exchanged_ != kNeverReceived && both - std::max(exchanged_, excused_) >= interval_) {
    silent_from_ = exchanged_;
  }
  exchanged_ = both;
}

void NicHealth::restart(std::int64_t now) {
  started_ = now;
  exchanged_ = silent_from_ = lost_at_ = kNeverReceived;
  if (state_ == State::kUp) state_ = State::kUnknown;
}

NicObservation NicHealth::observe(const NicEvidence& e, std::int64_t now) const {
  if (e.edges == 0) return NicObservation::kNoEdges;
  // What was received before a restart was from other peers.
  const bool known = e.both != kNeverReceived && e.both >= started_;
  if (known && recent(e.both, now, interval_)) {
    const bool proven = lost_at_ == kNeverReceived || e.received_by_peer >= lost_at_ + interval_;
    return proven ? NicObservation::kConnected : NicObservation::kUnproven;
  }
  if (e.cannot_probe && !e.link_down) return NicObservation::kNoSocket;
  if (!known) {
    // A port that was never seen up is no fault by itself: only when its link is down or the rest of the host
    // works.
    if (now - started_ < grace_) {
      return e.link_down ? NicObservation::kStartingNoLink : NicObservation::kStarting;
    }
    if (e.link_down) return NicObservation::kLinkDown;
    return e.others_connected ? NicObservation::kNeverSeen : NicObservation::kStarting;
  }
  if (e.link_down) return NicObservation::kLinkDown;
  const bool received = recent(e.received, now, interval_);
  if (!received && e.peers == PeerLoss::kPeerGone) return NicObservation::kPeerGone;
  if (!received && e.peers == PeerLoss::kOneWitness) return NicObservation::kOnePeerOnly;
  if (recent(excused_, now, interval_)) return NicObservation::kExcused;
  return received ? NicObservation::kOneWay : NicObservation::kSilent;
}

NicEvent NicHealth::update(const NicEvidence& e, std::int64_t now) {
  const bool interrupted = state_ == State::kUp && silent_from_ != kNeverReceived;
  if (interrupted) lost_at_ = silent_from_;
  silent_from_ = kNeverReceived;
  const NicObservation observation = observe(e, now);
  const bool passes = observation == NicObservation::kConnected || observation == NicObservation::kUnproven;
  if (state_ == State::kUp && !passes) {
    const bool known = e.both != kNeverReceived && e.both >= started_;
    lost_at_ = known ? e.both : kNeverReceived;
  }
  const NicRow row = interrupted              ? NicRow::kInterrupted
                     : state_ == State::kUp   ? NicRow::kUp
                     : state_ == State::kDown ? NicRow::kDown
                                              : NicRow::kUnknown;
  const NicTransition& t = nic_transition(row, observation);
  if (t.memory == Memory::kRestart) restart(now);
  if (t.memory == Memory::kExcuse) excused_ = now;
  state_ = t.next;
  if (!t.keep_cause) cause_ = t.cause;
  seen_ = seen_ || state_ == State::kUp;
  return t.event;
}

}  // namespace fabricpulse
