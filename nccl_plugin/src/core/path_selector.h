// Which lane of a connection should get another path: a new source port, so that the fabric's hash (ECMP)
// sends it elsewhere.
//
// Pure: no clock, no I/O, no allocation. It is fed with samples of every lane, sums them up in windows, and
// decides by the mean of a few windows: one alone proves little, since the throughput of a lane in a tenth of a
// second is noisy.
//
//  bad      A lane that is kept busy, shows signs of a queue or of loss on its path, and delivers much less
//           of its NIC's speed than its best sibling that shows none, for some windows in a row. It gets a new
//           path. Where the siblings' paths are full as well, that it delivers less proves nothing: flows that
//           share a link are seldom fair to each other, and no other path gives back what they lose by that.
//  search   All lanes are busy and show such signs while more waits to be sent: perhaps they share one link
//           of the fabric. The lane that carries least gets a new path; little is at stake. Not before the
//           connection has spent more than a second so: one that lasts no longer has nothing to gain.
//  trial    What all lanes together carry in the second before and after a move is compared. One that has cost
//           more than windows differ by anyway is undone, the lane gets its former path back: jobs that share
//           links would else chase one another over them for ever, and none would keep what it has found. Not
//           where the new path is neither congested nor slower than its siblings': then the job itself sends
//           less. From each search to the connection's next one twice as much time passes as before, after one in
//           vain four times.
//  damping  After a new path that did not help, the pause to the lane's next move doubles, up to about an
//           hour: a slow NIC stays slow on every path. Helped means, for a bad lane, that it keeps up with
//           its siblings now, and for a search that all lanes together carry more; that a lane does better
//           than in the bad moment for which it was moved proves nothing. Help does not end the damping, only a
//           long time without a reason to move.
#ifndef FABRICPULSE_CORE_PATH_SELECTOR_H_
#define FABRICPULSE_CORE_PATH_SELECTOR_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "core/wire.h"

namespace fabricpulse {

class PathSelector {
 public:
  static constexpr uint32_t kNobody = UINT32_MAX;
  static constexpr uint64_t kWindowNs = 100'000'000;
  static constexpr uint32_t kBadWindows = 3, kSearchWindows = 5, kFirstSearchWindows = 15;
  static constexpr uint32_t kMeanWindows = 3, kEvaluateWindows = 4;
  // Of what the best sibling does: below the first a window counts as bad, from the second on it ends the
  // count.
  static constexpr double kBadShare = 0.6, kGoodShare = 0.75;
  static constexpr double kBetter = 1.2;  // all lanes together, after a search that has helped
  // What all lanes carry after a move, by before: below the first, and by more than noise, it is undone, below
  // the second a search was in vain. One that has changed nothing stays: the job may wait for another one of
  // its connections, which searches as well.
  static constexpr double kNoWorse = 0.95, kGained = 1.1;
  static constexpr uint32_t kTrialWindows = 10;
  static constexpr uint64_t kLongestTrialNs = 10'000'000'000;
  static constexpr uint64_t kFirstSearchHoldNs = 2'000'000'000;  // from a search to the next one
  static constexpr uint64_t kSettleNs = 300'000'000;             // of a new path that does not count yet
  static constexpr uint64_t kFirstHoldNs = 500'000'000, kMaxHoldNs = 4096'000'000'000;
  static constexpr uint64_t kForgiveNs = 120'000'000'000;

  struct Sample {
    bool up = false;
    bool movable = false;             // may get a new path: wanted, automatic, and not on its way already
    bool busy = false;                // bytes are in flight
    uint64_t delivered = 0;           // bytes, cumulative
    uint64_t speed = 0;               // of its NIC, bytes per second
    uint64_t congested_segments = 0;  // segments sent again or marked by ECN, cumulative
    uint64_t rtt_ns = 0;
    uint64_t ahead = 0;  // bytes of this process in its NIC's queue that these round trips waited behind
  };

  // Once a tick for each lane, then select().
  void sample(uint32_t index, const Sample& sample, uint64_t now) {
    View& lane = lanes_[index];
    if (!sample.up || !lane.latest.up) {  // a new incarnation begins with a clean window
      lane.window_ns = lane.busy_ns = 0;
      lane.bad = 0;
      lane.rate_at_ns = lane.congested_at_ns = 0;
      lane.windows = 0;
      lane.delivered_then = sample.delivered;
      lane.congested_then = sample.congested_segments;
      lane.rtt_floor_ns = 0;
      lane.queue = false;
    } else {
      uint64_t passed = now > sampled_ns_ ? now - sampled_ns_ : 0;
      lane.window_ns += passed;
      if (sample.busy && lane.latest.busy) lane.busy_ns += passed;
      if (sample.rtt_ns > 0) {
        const uint64_t path_ns = of_path(sample);
        if (lane.rtt_floor_ns == 0 || path_ns < lane.rtt_floor_ns) lane.rtt_floor_ns = path_ns;
        lane.queue |= path_ns > 2 * lane.rtt_floor_ns + kQueueNs;
      }
    }
    lane.latest = sample;
  }

  // `waiting`: there is more to send than all lanes take now. Returns the lane to re-path, or kNobody.
  uint32_t select(uint32_t count, bool waiting, uint64_t now) {
    returns_ = false;
    uint64_t passed = sampled_ns_ != 0 && now > sampled_ns_ ? now - sampled_ns_ : 0;
    sampled_ns_ = now;
    window_ns_ += passed;
    if (waiting) waiting_ns_ += passed;
    if (window_ns_ < kWindowNs) return kNobody;
    bool pressed = waiting_ns_ * 2 >= window_ns_;
    double carried = 0;
    bool worked = false;
    up_ = 0;
    for (uint32_t i = 0; i < count; ++i) {
      carried += end_window(&lanes_[i], now);
      worked |= lanes_[i].worked;
      up_ |= static_cast<uint64_t>(lanes_[i].latest.up) << i;
    }
    // One that was idle for most of it says what there was to send, and not what the paths carry.
    carried = worked ? carried * 1e9 / static_cast<double>(window_ns_) : 0;
    window_ns_ = waiting_ns_ = 0;
    evaluate_moves(count, now);
    uint32_t chosen = end_trial(count, carried, now);
    returns_ = chosen != kNobody;
    if (returns_) return chosen;
    chosen = worst(count, now);
    uint32_t searching = least(count, pressed, now);
    if (chosen != kNobody) {
      lanes_[chosen].search = false;
    } else if (searching != kNobody) {
      chosen = searching;
      lanes_[chosen].search = true;
      note_search(now);
    }
    if (chosen != kNobody) {
      searched_ = 0;
      lanes_[chosen].returning = false;
      lanes_[chosen].total_before = total(count, now);
      trial_ = Trial{chosen, lanes_[chosen].search, lately(), now, 0, 0, {}, 0};
    }
    return chosen;
  }

  // Whether the lane that select() has returned is to have its former path again.
  bool returns() const { return returns_; }

  // The lane has its new path. by_command : somebody else has chosen it.
  void moved(uint32_t index, bool by_command, uint64_t now) {
    View& lane = lanes_[index];
    if (now - lane.moved_ns > std::max(kForgiveNs, 2 * lane.hold_ns)) lane.hold_ns = kFirstHoldNs;
    lane.moved_ns = now;
    lane.evaluated = 0;
    const bool returned = std::exchange(lane.returning, false) && !by_command;
    // Away and back is one move that has not helped.
    if (returned && !lane.damped) lane.hold_ns = std::min(2 * lane.hold_ns, kMaxHoldNs);
    lane.damped = returned;
    lane.evaluating = !returned;
    lane.next_ns = now + lane.hold_ns;
    lane.bad = lane.windows = 0;
    lane.rtt_floor_ns = 0;
    searched_ = 0;
    if (!by_command && trial_.lane == index && trial_.moved_ns == 0) {
      trial_.moved_ns = now;
      trial_.up = up_;
    } else {  // by command, or back: what is carried now says nothing of the selector's choice
      trial_ = Trial{};
      windows_ = 0;  // nor what was carried until now of the next one
    }
  }

  // It has kept its path: no other was to be had.
  void stayed(uint32_t index) {
    if (trial_.lane == index && trial_.moved_ns == 0) trial_ = Trial{};
    lanes_[index].returning = false;
  }

 private:
  static constexpr uint64_t kQueueNs = 1'000'000;
  static constexpr uint64_t kRecentNs = 10 * kWindowNs;

  struct View {
    Sample latest;
    uint64_t window_ns = 0, busy_ns = 0;
    uint64_t delivered_then = 0;  // bytes, cumulative, when the window began
    uint64_t congested_then = 0;  // the same of congested segments
    uint64_t rtt_floor_ns = 0;
    uint64_t congested_at_ns = 0;  // the last window with signs of congestion
    // What it delivered in the last windows in which it worked, bytes a second.
    double rates[kMeanWindows] = {};
    uint64_t rate_at_ns = 0;
    // Damping.
    uint64_t moved_ns = 0, next_ns = 0, hold_ns = kFirstHoldNs;
    double total_before = 0;  // of all lanes, bytes a second
    double share_sum = 0, total_sum = 0;
    uint32_t evaluated = 0;   // windows in these sums
    uint32_t windows = 0;     // in `rates` so far, on this path
    uint32_t bad = 0;         // windows on end
    bool queue = false;       // its round trip has grown in this window
    bool congested = false;   // the last window: a queue, loss or marks on its path
    bool worked = false;      // it was busy for most of the last window
    bool search = false;      // why it was moved
    bool evaluating = false;  // whether that has helped
    bool damped = false;      // it has not, and the pause to the next move was doubled
    bool returning = false;   // it is to have its former path again
  };

  // Sum of what was carried in some windows, bytes a second, and of its squares.
  struct Sums {
    double sum = 0, squares = 0;
    uint32_t windows = 0;

    void add(double carried) {
      sum += carried;
      squares += carried * carried;
      ++windows;
    }
    double mean() const { return sum / std::max(1U, windows); }
    // Of the mean, by what the windows differ.
    double variance() const {
      if (windows < 2) return 0;
      return std::max(0.0, squares - sum * mean()) / (windows - 1) / windows;
    }
  };

  // The last move that the selector has chosen.
  struct Trial {
    uint32_t lane = kNobody;
    bool search = false;
    Sums before;  // carried by all lanes
    uint64_t chosen_ns = 0;
    uint64_t moved_ns = 0;  // 0: not yet
    uint64_t up = 0;        // which lanes were up then, a bit each
    Sums after;
    uint32_t held_up = 0;  // windows of it with the lane's new path congested, or slower than its siblings'
  };

  // A round trip less what the NIC takes for this process's own bytes: a full lane is no congested path.
  static uint64_t of_path(const Sample& sample) {
    const double own_ns =
        static_cast<double>(sample.ahead) * 1e9 / static_cast<double>(std::max<uint64_t>(sample.speed, 1));
    const double path_ns = static_cast<double>(sample.rtt_ns) - own_ns;
    return path_ns > 1 ? static_cast<uint64_t>(path_ns) : 1;
  }

  // What all lanes have carried lately.
  Sums lately() const {
    Sums sums;
    for (uint32_t i = 0; i < std::min(windows_, kTrialWindows); ++i) sums.add(carried_[i]);
    return sums;
  }

  // The lane whose move has brought less, or kNobody. carried : by all lanes in the window that ends.
  uint32_t end_trial(uint32_t count, double carried, uint64_t now) {
    if (carried > 0) {
      if (now - carried_at_ns_ > kRecentNs) windows_ = 0;  // of another phase of the job
      carried_[windows_++ % kTrialWindows] = carried;
      carried_at_ns_ = now;
    }
    // It lasts too long, or a sibling has come or gone: that is what the difference would say.
    if (now - std::max(trial_.chosen_ns, trial_.moved_ns) > kLongestTrialNs) trial_ = Trial{};
    if (trial_.moved_ns != 0 && trial_.up != up_) trial_ = Trial{};
    if (trial_.moved_ns == 0 || now - trial_.moved_ns < kSettleNs || carried <= 0) return kNobody;
    trial_.after.add(carried);
    trial_.held_up += held_up(trial_.lane, count, now);
    if (trial_.after.windows < kTrialWindows) return kNobody;
    const Trial trial = std::exchange(trial_, Trial{});
    View& lane = lanes_[trial.lane];
    const double before = trial.before.mean(), after = trial.after.mean();
    const double noise = std::sqrt(trial.before.variance() + trial.after.variance());
    if (trial.search && after < kGained * before) search_hold_ns_ = std::min(2 * search_hold_ns_, kMaxHoldNs);
    if (after >= kNoWorse * before || before - after <= 2 * noise) return kNobody;
    if (2 * trial.held_up < trial.after.windows) return kNobody;
    lane.returning = lane.latest.up && lane.latest.movable;
    return lane.returning ? trial.lane : kNobody;
  }

  bool held_up(uint32_t index, uint32_t count, uint64_t now) const {
    const View& lane = lanes_[index];
    if (!lane.worked) return false;
    return lane.congested || share(lane) < kGoodShare * best_sibling(index, count, now);
  }

  // Ever longer pauses, twice as long after a search that has gained and four times after any other: where several
  // connections share links each of them gains also when another one moves, and with the best paths found each search
  // costs goodput.
  void note_search(uint64_t now) {
    if (now - searched_ns_ > std::max(kForgiveNs, 2 * search_hold_ns_)) search_hold_ns_ = 0;
    search_hold_ns_ = std::clamp(2 * search_hold_ns_, kFirstSearchHoldNs, kMaxHoldNs);
    searched_ns_ = now;
  }

  // Bytes that the lane has delivered in it.
  double end_window(View* lane, uint64_t now) {
    uint64_t congested_segments =
        lane->latest.congested_segments - std::min(lane->latest.congested_segments, lane->congested_then);
    auto carried = static_cast<double>(lane->latest.delivered - lane->delivered_then);
    lane->worked = lane->latest.up && lane->window_ns > 0 && lane->busy_ns * 10 >= lane->window_ns * 7;
    lane->congested = congested_segments > 0 || lane->queue;
    if (lane->congested) lane->congested_at_ns = now;
    bool settles = lane->moved_ns != 0 && now - lane->moved_ns < kSettleNs;
    if (lane->worked && !settles) {
      if (now - lane->rate_at_ns > kRecentNs) lane->windows = 0;
      lane->rates[lane->windows++ % kMeanWindows] = carried * 1e9 / static_cast<double>(lane->window_ns);
      lane->rate_at_ns = now;
    }
    lane->delivered_then = lane->latest.delivered;
    lane->congested_then = lane->latest.congested_segments;
    lane->window_ns = lane->busy_ns = 0;
    lane->queue = false;
    return carried;
  }

  // Bytes a second.
  static double mean(const View& lane) {
    uint32_t count = std::min(lane.windows, kMeanWindows);
    double sum = 0;
    for (uint32_t i = 0; i < count; ++i) sum += lane.rates[i];
    return count > 0 ? sum / count : 0;
  }
  // Of its NIC's speed.
  static double share(const View& lane) {
    return mean(lane) / static_cast<double>(std::max<uint64_t>(lane.latest.speed, 1));
  }
  static bool known(const View& lane, uint64_t now) {
    return lane.latest.up && lane.windows > 0 && now - lane.rate_at_ns <= kRecentNs;
  }

  double total(uint32_t count, uint64_t now) const {
    double sum = 0;
    for (uint32_t i = 0; i < count; ++i)
      if (known(lanes_[i], now)) sum += mean(lanes_[i]);
    return sum;
  }

  static bool congested_lately(const View& lane, uint64_t now) {
    return lane.congested_at_ns != 0 && now - lane.congested_at_ns < kBadWindows * kWindowNs;
  }

  // The share of the lane's best sibling that was at work lately; 0: there is none. `with_room`: of those
  // whose paths are not full.
  double best_sibling(uint32_t index, uint32_t count, uint64_t now, bool with_room = false) const {
    double best = 0;
    for (uint32_t k = 0; k < count; ++k)
      if (k != index && known(lanes_[k], now) && !(with_room && congested_lately(lanes_[k], now)))
        best = std::max(best, share(lanes_[k]));
    return best;
  }

  // Whether new paths have helped.
  void evaluate_moves(uint32_t count, uint64_t now) {
    for (uint32_t i = 0; i < count; ++i) {
      View& lane = lanes_[i];
      if (!lane.evaluating || !lane.worked || lane.rate_at_ns != now) continue;
      if (lane.evaluated == 0) lane.share_sum = lane.total_sum = 0;
      double best = best_sibling(i, count, now);
      double own = lane.rates[(lane.windows - 1) % kMeanWindows];
      double speed = static_cast<double>(std::max<uint64_t>(lane.latest.speed, 1));
      lane.share_sum += best > 0 ? own / speed / best : 1;
      lane.total_sum += total(count, now);
      if (++lane.evaluated < kEvaluateWindows) continue;
      lane.evaluating = false;
      bool helped = lane.search ? lane.total_sum / lane.evaluated >= kBetter * lane.total_before
                                : lane.share_sum / lane.evaluated >= kGoodShare;
      lane.search = false;
      if (!helped) lane.hold_ns = std::min(2 * lane.hold_ns, kMaxHoldNs);
      lane.damped = !helped;
      lane.next_ns = lane.moved_ns + lane.hold_ns;
    }
  }

  // Not while a move is on trial, as of two nobody would know which has cost something, and not without anything to
  // compare it with.
  bool may_move(const View& lane, uint64_t now) const {
    return lane.latest.up && lane.latest.movable && now >= lane.next_ns && !lane.evaluating &&
           trial_.lane == kNobody && windows_ >= kMeanWindows;
  }

  uint32_t worst(uint32_t count, uint64_t now) {
    uint32_t found = kNobody;
    for (uint32_t i = 0; i < count; ++i) {
      View& lane = lanes_[i];
      double best = best_sibling(i, count, now), with_room = best_sibling(i, count, now, true);
      double own = share(lane);
      bool full = lane.windows >= kMeanWindows;
      if (!lane.worked || !congested_lately(lane, now) || best <= 0 || own >= kGoodShare * best) {
        lane.bad = 0;
      } else if (full && own < kBadShare * with_room) {
        ++lane.bad;
      }
      if (lane.bad >= kBadWindows && may_move(lane, now) && (found == kNobody || own < share(lanes_[found])))
        found = i;
    }
    return found;
  }

  uint32_t least(uint32_t count, bool pressed, uint64_t now) {
    uint32_t found = kNobody, up = 0;
    bool all = pressed;
    for (uint32_t i = 0; i < count; ++i) {
      const View& lane = lanes_[i];
      if (!lane.latest.up) continue;
      ++up;
      // One that is idle although all windows are full has just come up; it is not known to be congested.
      all &= lane.worked && congested_lately(lane, now) && !lane.evaluating;
      if (found == kNobody || mean(lane) < mean(lanes_[found])) found = i;
    }
    searched_ = all && up > 1 ? searched_ + 1 : 0;
    if (searched_ > 0) ++held_up_windows_;
    if (searched_ < kSearchWindows || held_up_windows_ < kFirstSearchWindows) return kNobody;
    if (now - searched_ns_ < search_hold_ns_) return kNobody;
    if (found == kNobody || !may_move(lanes_[found], now)) return kNobody;
    return found;
  }

  View lanes_[kMaxLanes];
  uint64_t sampled_ns_ = 0, window_ns_ = 0, waiting_ns_ = 0;
  uint32_t searched_ = 0;
  uint64_t held_up_windows_ = 0;        // ever
  double carried_[kTrialWindows] = {};  // by all lanes in the last windows with anything, bytes a second
  uint32_t windows_ = 0;
  uint64_t carried_at_ns_ = 0;
  uint64_t up_ = 0;  // which lanes were up in the last window, a bit each
  Trial trial_;
  bool returns_ = false;
  uint64_t searched_ns_ = 0, search_hold_ns_ = 0;  // when the last one began, time to the next
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_PATH_SELECTOR_H_
