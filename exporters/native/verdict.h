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

enum class NicCause : std::uint8_t {
  kNone = 0,
  kSilent = 1,     // carrier is there (or cannot be told), no peer answers
  kLink = 2,       // no carrier, administratively down, or the device or its address is gone
  kOneWay = 3,     // peers are heard, none of them hears us
  kNeverSeen = 4,  // no peer was heard since the start, while other NICs of this host are connected
  kPeerGone = 5,   // unknown: the only host that could bear witness is silent on our other NICs too
};

// What one NIC can know at one moment.
struct NicEvidence {
  int edges = 0;                     // edges that it probes
  std::int64_t heard = kNeverHeard;  // latest Presence::heard_at of its edges
  std::int64_t both = kNeverHeard;   // latest Presence::both() of its edges
  bool link_down = false;
  bool sole_witness_gone =
      false;  // all its edges lead to one host, which other NICs of ours do not hear either
  bool others_connected = false;  // another NIC of this host is connected
};

enum class NicEvent : std::uint8_t { kNothing = 0, kDisconnected = 1, kConnected = 2 };

class NicVerdict {
 public:
  NicVerdict() = default;
  NicVerdict(std::int64_t interval, std::int64_t grace, std::int64_t now)
      : interval_(interval), grace_(grace), started_(now) {}

  // Must be called at each turn of the engine, after the packets of the turn were taken in.
  NicEvent step(const NicEvidence& e, std::int64_t now) {
    if (e.edges > 0 && recent(e.both, now, interval_)) {
      const bool was_down = state_ == State::kDown;
      state_ = State::kUp;
      cause_ = NicCause::kNone;
      seen_ = true;
      return was_down ? NicEvent::kConnected : NicEvent::kNothing;
    }
    if (state_ == State::kDown) {
      // What has been measured as down stays down until something is heard; only the reason may become
      // clearer.
      if (e.link_down) cause_ = NicCause::kLink;
      return NicEvent::kNothing;
    }
    if (e.edges == 0) {
      state_ = State::kUnknown;
      cause_ = NicCause::kNone;
      return NicEvent::kNothing;
    }
    NicCause cause = NicCause::kSilent;
    if (e.both == kNeverHeard) {
      // A port that was never seen up is no fault by itself: only when its link is down or the rest of the
      // host works.
      if (now - started_ < grace_ || !(e.link_down || e.others_connected)) return NicEvent::kNothing;
      cause = e.link_down ? NicCause::kLink : NicCause::kNeverSeen;
    } else if (e.link_down) {
      cause = NicCause::kLink;
    } else if (recent(e.heard, now, interval_)) {
      cause = NicCause::kOneWay;
    } else if (e.sole_witness_gone) {
      state_ = State::kUnknown;
      cause_ = NicCause::kPeerGone;
      return NicEvent::kNothing;
    }
    state_ = State::kDown;
    cause_ = cause;
    return NicEvent::kDisconnected;
  }

  State state() const { return state_; }
  NicCause cause() const { return cause_; }
  // A disconnect is counted only for a NIC that was connected before.
  bool seen() const { return seen_; }

 private:
  std::int64_t interval_ = 1'000'000'000;
  std::int64_t grace_ = 10'000'000'000;
  std::int64_t started_ = 0;
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
