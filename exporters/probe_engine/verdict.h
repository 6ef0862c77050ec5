// What the silence of peers means: the state machines of edges and NICs. Pure: time comes in, nothing is
// read.
//
// All times here are attended time: nanoseconds during which this engine was itself awake and on time. A host
// that stalls (SIGSTOP, a hogged CPU, a paused virtual machine) gains next to no attended time, so that its
// own absence never counts as the silence of others; and wall-clock steps do not exist here.
#ifndef FABRICPULSE_EXPORTERS_VERDICT_H_
#define FABRICPULSE_EXPORTERS_VERDICT_H_

#include <algorithm>
#include <cstdint>

namespace fabricpulse {

constexpr std::int64_t kNeverHeard = -1;

// Monotonic time in which the engine did its work. A gap above `max_step` counts as `max_step`.
class AttendedClock {
 public:
  explicit AttendedClock(std::int64_t max_step_ns) : max_step_(max_step_ns) {}

  // Returns the attended time now; *stall is what was left out of it (0 when on time).
  std::int64_t advance(std::int64_t monotonic_ns, std::int64_t* stall) {
    *stall = 0;
    if (started_) {
      std::int64_t step = monotonic_ns - last_;
      if (step > max_step_) {
        *stall = step - max_step_;
        step = max_step_;
      }
      attended_ += std::max<std::int64_t>(step, 0);
    }
    started_ = true;
    last_ = monotonic_ns;
    return attended_;
  }
  std::int64_t now() const { return attended_; }

 private:
  std::int64_t max_step_;
  std::int64_t attended_ = 0;
  std::int64_t last_ = 0;
  bool started_ = false;
};

enum class State : std::uint8_t { kUnknown = 0, kUp = 1, kDown = 2 };

// When a peer was last heard, and when it last heard us (by its own report). Times never go backwards: a
// report that is old because we were stalled does not undo what is known.
struct Presence {
  std::int64_t heard_at = kNeverHeard;
  std::int64_t heard_by_at = kNeverHeard;

  void heard(std::int64_t at) { heard_at = std::max(heard_at, at); }
  void heard_by(std::int64_t at) { heard_by_at = std::max(heard_by_at, at); }
  // The last moment at which both directions were known to work. What a peer says of us is as old as its last
  // packet: a peer that has fallen silent has not thereby stopped to hear us, so its report is held against
  // that packet and not against now.
  std::int64_t both(std::int64_t interval) const {
    if (heard_at == kNeverHeard || heard_by_at == kNeverHeard) return kNeverHeard;
    return heard_at - heard_by_at < interval ? heard_at : heard_by_at;
  }
};

struct EdgeStates {
  State edge = State::kUnknown;
  State inbound = State::kUnknown;   // peer -> us
  State outbound = State::kUnknown;  // us -> peer; unknown while nothing is heard that could tell
};

inline bool recent(std::int64_t at, std::int64_t now, std::int64_t interval) {
  return at != kNeverHeard && now - at < interval;
}

inline EdgeStates judge_edge(const Presence& p, std::int64_t now, std::int64_t interval) {
  EdgeStates s;
  if (p.heard_at == kNeverHeard) return s;
  s.inbound = recent(p.heard_at, now, interval) ? State::kUp : State::kDown;
  if (s.inbound == State::kUp && p.heard_by_at != kNeverHeard) {
    s.outbound = p.heard_at - p.heard_by_at < interval ? State::kUp : State::kDown;
  }
  if (p.heard_by_at != kNeverHeard) {
    s.edge = recent(p.both(interval), now, interval) ? State::kUp : State::kDown;
  }
  return s;
}

// An edge that is down comes up only by a report that the peer has heard us since. Reports from before the
// silence, which the first packets after it may still carry, would take the edge up and, as they get too old,
// down again: two outages told where there was one.
class EdgeVerdict {
 public:
  const EdgeStates& step(const Presence& p, std::int64_t now, std::int64_t interval) {
    EdgeStates next = judge_edge(p, now, interval);
    if (states_.edge == State::kDown && next.edge == State::kUp && p.heard_by_at < proof_from_) {
      next.edge = State::kDown;
    } else if (states_.edge != State::kDown && next.edge == State::kDown) {
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

enum class NicCause : std::uint8_t {
  kNone = 0,
  kSilent = 1,     // carrier is there (or cannot be told), no peer answers
  kLink = 2,       // no carrier, administratively down, or the device or its address is gone
  kOneWay = 3,     // peers are heard, none of them hears us
  kNeverSeen = 4,  // no peer was heard since the start, while other NICs of this host are connected
  kPeerGone = 5,   // unknown: the only host that could bear witness is silent on our other NICs too
  kNoSocket = 6,   // unknown: the probe socket cannot be opened, for a reason that is not the link
};

// An edge as a witness of its NIC.
struct Witness {
  std::uint64_t host = 0;            // identity of the peer's host
  std::int64_t heard = kNeverHeard;  // Presence::heard_at
  std::int64_t both = kNeverHeard;   // Presence::both()
};

// Whether the silence on a NIC is rather that of its last peer: all that were still heard when it began
// belong to one host, and our other NICs, where they had heard that host, do not hear it either. Peers that
// had died before say nothing. Half an interval is enough for the others: the NICs of a host do not fall
// silent in the same instant.
inline bool sole_witness_gone(const Witness* own, std::size_t own_count, const Witness* others,
                              std::size_t others_count, std::int64_t now, std::int64_t interval) {
  std::int64_t last = kNeverHeard;
  for (std::size_t i = 0; i < own_count; ++i) last = std::max(last, own[i].both);
  if (last == kNeverHeard) return false;
  const Witness* sole = nullptr;
  for (std::size_t i = 0; i < own_count; ++i) {
    if (own[i].both == kNeverHeard || last - own[i].both >= interval) continue;
    if (sole != nullptr && sole->host != own[i].host) return false;
    sole = &own[i];
  }
  if (sole == nullptr) return false;
  bool asked = false;
  for (std::size_t i = 0; i < others_count; ++i) {
    if (others[i].host != sole->host || others[i].heard == kNeverHeard) continue;
    if (recent(others[i].heard, now, interval / 2)) return false;
    asked = true;
  }
  return asked;
}

// What one NIC can know at one moment.
struct NicEvidence {
  int edges = 0;                        // edges that it probes
  std::int64_t heard = kNeverHeard;     // latest Presence::heard_at of its edges
  std::int64_t both = kNeverHeard;      // latest Presence::both() of its edges
  std::int64_t heard_by = kNeverHeard;  // latest Presence::heard_by_at of its edges
  bool link_down = false;
  bool sole_witness_gone = false;  // the function above
  bool cannot_probe = false;       // no socket, and not because of the link
  bool others_connected = false;   // another NIC of this host is connected
};

// kInterrupted: disconnected and connected again since the last step.
enum class NicEvent : std::uint8_t { kNothing = 0, kDisconnected = 1, kConnected = 2, kInterrupted = 3 };

class NicVerdict {
 public:
  NicVerdict() = default;
  NicVerdict(std::int64_t interval, std::int64_t grace, std::int64_t now)
      : interval_(interval), grace_(grace), started_(now) {}

  // A packet of any edge has shown that both directions worked at `both`. Called for each packet, so that a
  // silence longer than the interval counts even if it ended just before the step that would have seen it.
  void exchanged(std::int64_t both) {
    if (both <= exchanged_) return;
    if (exchanged_ != kNeverHeard && both - std::max(exchanged_, excused_) >= interval_) {
      silent_from_ = exchanged_;
    }
    exchanged_ = both;
  }

  // The peers that could bear witness were taken out of the membership: the new ones get the grace of a
  // start.
  void restart(std::int64_t now) {
    started_ = now;
    exchanged_ = silent_from_ = lost_at_ = kNeverHeard;
    if (state_ == State::kUp) state_ = State::kUnknown;
  }

  // Must be called at each turn of the engine, after the packets of the turn were taken in.
  NicEvent step(const NicEvidence& e, std::int64_t now) {
    const bool interrupted = state_ == State::kUp && silent_from_ != kNeverHeard;
    if (interrupted) lost_at_ = silent_from_;
    silent_from_ = kNeverHeard;
    // What was heard before a restart was heard from others.
    const bool known = e.both != kNeverHeard && e.both >= started_;
    if (e.edges > 0 && known && recent(e.both, now, interval_)) {
      const State before = state_;
      // After a silence only a report proves anything that says that a peer has heard us since: see
      // EdgeVerdict.
      const bool proven = lost_at_ == kNeverHeard || e.heard_by >= lost_at_ + interval_;
      if ((before == State::kUp && !interrupted) || proven) {
        state_ = State::kUp;
        cause_ = NicCause::kNone;
        seen_ = true;
        if (interrupted) return NicEvent::kInterrupted;
        return before == State::kDown ? NicEvent::kConnected : NicEvent::kNothing;
      }
      if (!interrupted) return NicEvent::kNothing;
      state_ = State::kDown;
      cause_ = NicCause::kOneWay;
      return NicEvent::kDisconnected;
    }
    if (state_ == State::kUp) lost_at_ = known ? e.both : kNeverHeard;
    if (e.edges == 0) {
      // Nobody is left in the membership who could tell that it is still down.
      restart(now);
      state_ = State::kUnknown;
      cause_ = NicCause::kNone;
      return NicEvent::kNothing;
    }
    if (state_ == State::kDown) {
      // What has been measured as down stays down until something is heard; only the reason may become
      // clearer.
      if (e.link_down) cause_ = NicCause::kLink;
      return NicEvent::kNothing;
    }
    if (e.cannot_probe && !e.link_down) {
      // A port in use or a permission that lacks: our own trouble, which says nothing of the NIC.
      restart(now);
      cause_ = NicCause::kNoSocket;
      return NicEvent::kNothing;
    }
    NicCause cause = NicCause::kSilent;
    if (!known) {
      // A port that was never seen up is no fault by itself: only when its link is down or the rest of the
      // host works.
      if (now - started_ < grace_ || !(e.link_down || e.others_connected)) return NicEvent::kNothing;
      cause = e.link_down ? NicCause::kLink : NicCause::kNeverSeen;
    } else if (e.link_down) {
      cause = NicCause::kLink;
    } else if (e.sole_witness_gone && !recent(e.heard, now, interval_)) {
      state_ = State::kUnknown;
      cause_ = NicCause::kPeerGone;
      excused_ = now;
      return NicEvent::kNothing;
    } else if (recent(excused_, now, interval_)) {
      // The witness is back on another NIC: it may take as long as any silence to be back on this one.
      return NicEvent::kNothing;
    } else if (recent(e.heard, now, interval_)) {
      cause = NicCause::kOneWay;
    }
    state_ = State::kDown;
    cause_ = cause;
    return NicEvent::kDisconnected;
  }

  State state() const { return state_; }
  NicCause cause() const { return cause_; }
  // A disconnect is counted only for a NIC that was connected before.
  bool seen() const { return seen_; }
  // The last sign of a peer before the NIC was lost, kNeverHeard if there was none.
  std::int64_t lost_at() const { return lost_at_; }

 private:
  std::int64_t interval_ = 1'000'000'000;
  std::int64_t grace_ = 10'000'000'000;
  std::int64_t started_ = 0;
  std::int64_t exchanged_ = kNeverHeard;    // latest exchanged()
  std::int64_t silent_from_ = kNeverHeard;  // begin of a long silence that has ended since the last step
  std::int64_t lost_at_ = kNeverHeard;      // lost_at()
  std::int64_t excused_ = kNeverHeard;      // until then the silence was the peer's
  State state_ = State::kUnknown;
  NicCause cause_ = NicCause::kNone;
  bool seen_ = false;
};

// One source port of the sweep. Dead when `kMissed` trains of it in a row were lost while the edge was heard.
class PathVerdict {
 public:
  static constexpr std::uint32_t kMissed = 3;
  void heard() {
    missed_ = 0;
    seen_ = true;
  }
  void missed() { ++missed_; }
  // After a silence of the whole edge nothing is known of a single path.
  void reset() { missed_ = 0; }
  State state() const {
    if (missed_ >= kMissed) return State::kDown;
    return seen_ ? State::kUp : State::kUnknown;
  }

 private:
  std::uint32_t missed_ = 0;
  bool seen_ = false;
};

// Delay against a ceiling and against the edge's own habit. The baseline follows the median of each window:
// at once downwards, slowly upwards, and not at all while the delay is elevated, so that a long incident does
// not become the habit.
class LatencyVerdict {
 public:
  LatencyVerdict() = default;
  LatencyVerdict(std::int64_t absolute_ns, double factor, std::int64_t slack_ns)
      : absolute_(absolute_ns), factor_(factor), slack_(slack_ns) {}

  void window(std::int64_t median_ns) {
    if (windows_ < kLearn) {
      baseline_ = windows_ == 0 ? median_ns : std::min(baseline_, median_ns);
      ++windows_;
    } else if (median_ns < baseline_) {
      baseline_ = median_ns;
    } else if (median_ns <= limit()) {
      baseline_ += (median_ns - baseline_) / 64;
    }
    if (windows_ < kLearn && median_ns <= absolute_) {
      state_ = State::kUnknown;
    } else {
      state_ = median_ns > limit() ? State::kDown : State::kUp;
    }
  }
  std::int64_t limit() const {
    const auto relative = static_cast<std::int64_t>(static_cast<double>(baseline_) * factor_) + slack_;
    return windows_ < kLearn ? absolute_ : std::min(absolute_, relative);
  }
  std::int64_t baseline() const { return baseline_; }
  bool learned() const { return windows_ >= kLearn; }
  State state() const { return state_; }  // kDown = elevated

 private:
  static constexpr int kLearn = 10;  // windows
  std::int64_t absolute_ = 10'000'000;
  double factor_ = 3;
  std::int64_t slack_ = 20'000;
  std::int64_t baseline_ = 0;
  int windows_ = 0;
  State state_ = State::kUnknown;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_VERDICT_H_
