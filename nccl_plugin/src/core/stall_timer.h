// When a lane without progress is declared failed. Pure: no clock, no I/O.
//
// Three rules, all in time that counts only as fast as the service thread really runs:
//  - alone: bytes are in flight, or wait in a kernel that cannot send them, and nothing is acknowledged. Long,
//    since a slow path may look like that. After a kernel's answer, if only a zero window, none is due until the next
//    window probe: the kernel of a stopped process drops data that finds its buffer full, and TCP probes less and less.
//  - beside siblings: the same, while frames of the peer arrived on another lane of the connection, and it acknowledged
//    nothing on any lane of any connection over the same path. Peer and this process are healthy then, and not just a
//    few packets were lost: this path is dead, in this direction at least. Short, from when so much is in flight
//    that the peer's kernel acknowledges it without delay (less may be delayed by 40 ms), or from when the peer, pinged
//    on the lane too, has answered on another: it reads and answers all lanes in turn.
//  - deadline: one chunk has been the oldest on the lane for several times longer than it should take,
//    while frames of the peer arrived on another lane. Catches paths that lose so much that acknowledgements
//    trickle.
#ifndef FABRICPULSE_CORE_STALL_TIMER_H_
#define FABRICPULSE_CORE_STALL_TIMER_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/lane.h"

namespace fabricpulse {

class StallTimer {
 public:
  enum class Finding : uint8_t { kWell, kSilent, kBehind, kLate };

  // The connection's own observations beside the transport's sample.
  struct Surroundings {
    uint64_t least_ns = 25'000'000;  // FABRICPULSE_STALL_MS
    // Of the time since the last sample so much counts at most: what is planned between two.
    uint64_t most_credit_ns = 10'000'000;
    // Another thread that polls the lane has seen it so: something in flight, and what is acknowledged now; the same with
    // more in flight than whose acknowledgement may be put off; and the chunk below as the oldest one.
    uint64_t watched_ns = 0, watched_due_ns = 0, watched_chunk_ns = 0;
    // Since the last frame of the peer's process on another lane of the connection. Its kernel's acknowledgements
    // prove less: while the process is stopped, Linux delays them on some lanes and not on others.
    uint64_t peer_answered_ago_ns = UINT64_MAX;
    // Since the peer last acknowledged something on any lane of this process over the same path.
    uint64_t path_answered_ago_ns = UINT64_MAX;
    // The peer was pinged on this lane, and has answered on another one since.
    bool answer_due = false;
    bool path_failed = false;  // another connection of this process has just given up this path
    // How long the peer's process has taken for its last answer to a ping, on the lane that waited longest.
    uint64_t answered_in_ns = 0;
    uint64_t chunk = UINT64_MAX;  // oldest one on the lane that is not held; UINT64_MAX: none
    uint64_t chunk_ns = 0;        // how long it should take at the lane's rate
  };

  // A new incarnation.
  void reset() { *this = StallTimer{}; }

  // One sample. `passed`: time since the last one, of which no more than most_credit_ns counts: what this process
  // slept through is not the lane's fault.
  Finding update(const PathSample& sample, const Surroundings& around, uint64_t passed) {
    const uint64_t credit = std::min(passed, around.most_credit_ns);
    own_late_ns_ = std::max(own_late_ns_, passed - credit);
    if (sample.answers != answers_ || sample.acknowledged != acknowledged_) answered_ = sample.sent;
    answers_ = sample.answers;
    // Out of room, and not probed again since then.
    const bool full = !sample.window_open && sample.sent == answered_;
    const bool waits = (sample.unacknowledged > 0 && !full) || stuck(sample) || sample.probes >= kProbesDead;
    const bool due = waits && (!put_off(sample) || around.answer_due);
    const bool same = sample.acknowledged == acknowledged_;
    silent_ns_ = waits && waited_ && same ? silent_ns_ + credit : 0;
    overdue_ns_ = due && due_ && same ? overdue_ns_ + credit : 0;
    // At the first look no more than makes it suspect: what was watched while this thread did not run is no evidence
    // beside what it knows of other lanes, which is as old. The next look is soon.
    const uint64_t most_watched_ns = suspect() ? UINT64_MAX : suspect_ns_;
    if (waits) silent_ns_ = std::max(silent_ns_, std::min(around.watched_ns, most_watched_ns));
    if (due) overdue_ns_ = std::max(overdue_ns_, std::min(around.watched_due_ns, most_watched_ns));
    // The first look at an incarnation compares with nothing.
    measured_ = measured_ || (looked_ && !same);
    looked_ = true;
    waited_ = waits;
    due_ = due;
    acknowledged_ = sample.acknowledged;
    // The kernel sends on this path but not from this socket: it is behind with its own work.
    const bool kernel_late = stuck(sample) && around.path_answered_ago_ns < silent_ns_ / 2;
    if (around.chunk == UINT64_MAX || around.chunk != chunk_) {
      oldest_ns_ = late_ns_ = 0;
    } else if (!kernel_late) {
      oldest_ns_ += credit;
      // A peer that was stopped has had no chance to deliver.
      late_ns_ = around.peer_answered_ago_ns < kAnswerNs ? late_ns_ + credit : 0;
    }
    if (around.chunk != UINT64_MAX) {
      oldest_ns_ = std::max(oldest_ns_, around.watched_chunk_ns);
      if (around.peer_answered_ago_ns < kAnswerNs)
        late_ns_ = std::max(late_ns_, std::min(around.watched_chunk_ns, around.most_credit_ns));
    }
    chunk_ = around.chunk;
    if (silent_ns_ == 0 && oldest_ns_ == 0) own_late_ns_ = 0;
    // Where round trips are long a silence of 8 ms is usual, and to ask about it would load a slow host further.
    suspect_ns_ = std::max(kSuspectNs, std::min(2 * sample.rtt_ns, 4 * kSuspectNs));
    if (silent_ns_ >= alone(sample, around) && !kernel_late) return Finding::kSilent;
    if (sample.probes >= kProbesDead && silent_ns_ > 0) return Finding::kSilent;
    auto alive_but_here = [&](uint64_t silence) {
      return around.path_answered_ago_ns >= silence / 2 && around.peer_answered_ago_ns < silence / 2;
    };
    if (around.path_failed && overdue_ns_ >= kSecondOpinion && around.path_answered_ago_ns >= overdue_ns_ / 2)
      return Finding::kBehind;
    if (overdue_ns_ >= beside(sample, around) && alive_but_here(overdue_ns_)) return Finding::kBehind;
    if (silent_ns_ >= put_off_limit(sample, around) && alive_but_here(silent_ns_)) return Finding::kBehind;
    if (late_ns_ >= deadline(around)) return Finding::kLate;
    return Finding::kWell;
  }

  // How long bytes have waited for an acknowledgement.
  uint64_t silent_ns() const { return silent_ns_; }
  // How long the oldest chunk has been the oldest while the peer's process answered elsewhere.
  uint64_t late_ns() const { return late_ns_; }
  // Suspected: the peer is asked about it over another lane.
  bool suspect() const { return silent_ns_ >= suspect_ns_ || oldest_ns_ >= old_chunk_ns(); }
  // From so much silence on, or with a chunk that has been the oldest for so long.
  uint64_t suspect_ns() const { return suspect_ns_; }
  uint64_t old_chunk_ns() const { return 4 * suspect_ns_; }
  // An acknowledgement of no more than so many may be put off.
  static constexpr uint32_t kFewPackets = 2;

  // Why a lane is given up, for the log: the finding and what it was made of.
  std::string explain(Finding finding, const PathSample& sample, const Surroundings& around) const {
    static constexpr const char* kFindings[] = {"nothing", "silence", "silence beside lanes that answer",
                                                "a chunk that does not arrive"};
    auto ms = [](uint64_t ns) {
      return ns == UINT64_MAX ? std::string("never") : std::to_string(ns / 1'000'000);
    };
    return std::string(kFindings[static_cast<int>(finding)]) + " (silent_ms=" + ms(silent_ns_) +
           " overdue_ms=" + ms(overdue_ns_) + " late_ms=" + ms(late_ns_) + " chunk_ms=" + ms(oldest_ns_) +
           " deadline_ms=" + ms(deadline(around)) +
           " unacknowledged=" + std::to_string(sample.unacknowledged) +
           " unsent=" + std::to_string(sample.unsent) +
           " window=" + (sample.window_open ? "open" : "closed") +
           " probes=" + std::to_string(sample.probes) + " retransmits=" + std::to_string(sample.retransmits) +
           " rtt_us=" + std::to_string(sample.rtt_ns / 1000) + " peer_ms=" + ms(around.peer_answered_ago_ns) +
           " path_ms=" + ms(around.path_answered_ago_ns) +
           " path_failed=" + std::to_string(around.path_failed) +
           " answer_due=" + std::to_string(around.answer_due) +
           " peer_answered_in_ms=" + ms(around.answered_in_ns) + " own_late_ms=" + ms(own_late_ns_) + ")";
  }

  static constexpr uint64_t kSuspectNs = 8'000'000;
  static constexpr uint64_t kAloneNs = 80'000'000;

 private:
  static constexpr uint64_t kMaxStallNs =
      1'000'000'000;                                   // the round trip lengthens the timer to this at most
  static constexpr uint64_t kDelayedAck = 50'000'000;  // Linux delays one for 40 ms at most
  static constexpr uint64_t kAnswerNs = 40'000'000;    // a running peer answers this often
  // However long the round trips are: a path on which they have become long is better left alone (simulated: a NIC at
  // a 25th of its speed cost its job half of the other one when this was 10 ms beyond the round trip).
  static constexpr uint64_t kSecondOpinion = 10'000'000;
  static constexpr uint64_t kMaxDeadlineNs = 200'000'000;  // with siblings there is no reason to wait longer
  static constexpr uint32_t kProbesDead = 3;               // unanswered probes of a closed window

  // Bytes that the kernel has, may send and does not: its address or its route was removed.
  static bool stuck(const PathSample& sample) {
    return sample.unsent > 0 && sample.unacknowledged == 0 && sample.window_open;
  }
  static uint64_t alone(const PathSample& sample, const Surroundings& around) {
    return std::max({kAloneNs, around.least_ns, std::min(4 * sample.rtt_ns, kMaxStallNs)});
  }
  // The peer's kernel may put off its acknowledgement.
  static bool put_off(const PathSample& sample) {
    return !stuck(sample) && (sample.few || sample.unacknowledged <= kFewPackets);
  }
  // Until something of this incarnation was acknowledged, the round trip is that of a handshake, which waited behind
  // nothing: on a slow link what all lanes of the path send first waits longer than any timer.
  uint64_t beside(const PathSample& sample, const Surroundings& around) const {
    uint64_t usual = std::max(2 * sample.rtt_ns, sample.rtt_ns + 4 * sample.rtt_deviation_ns);
    if (!measured_) usual = std::max(usual, kAloneNs);
    return std::max(around.least_ns, std::min(usual, kMaxStallNs));
  }
  // Nothing waits for a lane that carries only state frames of ours, and the peer polls it seldom.
  uint64_t put_off_limit(const PathSample& sample, const Surroundings& around) const {
    return std::max(beside(sample, around), around.chunk == UINT64_MAX ? kAloneNs : kDelayedAck);
  }
  static uint64_t deadline(const Surroundings& around) {
    return std::max(4 * around.least_ns, std::min(4 * around.chunk_ns, kMaxDeadlineNs));
  }

  uint64_t suspect_ns_ = kSuspectNs;
  bool waited_ = false, due_ = false;
  bool looked_ = false, measured_ = false;
  uint64_t acknowledged_ = 0, answers_ = 0;
  uint64_t answered_ = 0;    // segments sent when the peer's kernel last answered
  uint64_t silent_ns_ = 0;   // since something waits for an acknowledgement, or the last one
  uint64_t overdue_ns_ = 0;  // the same, as long as it should come at once
  uint64_t chunk_ = UINT64_MAX;
  uint64_t oldest_ns_ = 0, late_ns_ = 0;  // of chunk_; of that, while the peer answered
  uint64_t own_late_ns_ = 0;  // the most that one look came too late and was not counted, since then
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_STALL_TIMER_H_
