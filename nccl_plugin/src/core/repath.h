// Which lane of a connection should get another path: a new source port, so that the fabric's hash sends it
// elsewhere.
//
// Pure: no clock, no I/O, no allocation. Fed with samples of every lane, it looks at them in windows.
//
//  bad      A lane that is kept busy, shows signs of a queue or of loss on its path, and delivers much less
//  of
//           its NIC's speed than its best sibling, for some windows on end. It gets a new path.
//  search   All lanes are busy and show such signs while more waits to be sent: perhaps they share one link
//  of
//           the fabric. The lane that carries least gets a new path; little is at stake.
//  damping  A lane whose new path is no better waits twice as long for the next one, up to a minute; one that
//           is better, or has been quiet for long, starts anew.
#ifndef FABRICPULSE_CORE_REPATH_H_
#define FABRICPULSE_CORE_REPATH_H_

#include <algorithm>
#include <cstdint>

#include "core/wire.h"

namespace fabricpulse {

class RepathJudge {
 public:
  static constexpr uint32_t kNobody = UINT32_MAX;
  static constexpr uint64_t kWindowNs = 100'000'000;
  static constexpr uint32_t kBadWindows = 3, kSearchWindows = 5;
  static constexpr double kBadShare = 0.6;  // of what the best sibling does; back above it ends the count
  static constexpr double kBetter = 1.25;   // new path over old one: it has helped
  static constexpr uint64_t kSettleNs = 500'000'000;  // a new path is judged after that
  static constexpr uint64_t kFirstHoldNs = 500'000'000, kMaxHoldNs = 64'000'000'000;
  static constexpr uint64_t kForgiveNs = 2 * kMaxHoldNs;

  struct Sample {
    bool up = false;
    bool movable = false;    // may get a new path: wanted, automatic, and not on its way already
    bool busy = false;       // bytes are in flight
    uint64_t delivered = 0;  // bytes, cumulative
    uint64_t speed = 0;      // of its NIC, bytes per second
    uint64_t troubles = 0;   // segments sent again or marked by ECN, cumulative
    uint64_t rtt_ns = 0;
  };

  // Once a tick for each lane, then verdict().
  void sample(uint32_t index, const Sample& sample, uint64_t now) {
    View& lane = lanes_[index];
    if (!sample.up || !lane.latest.up) {  // a new life begins with a clean window
      lane.window_ns = lane.busy_ns = 0;
      lane.bad = 0;
      lane.rate_at_ns = 0;
      lane.delivered_then = sample.delivered;
      lane.troubles_then = sample.troubles;
      lane.rtt_floor_ns = 0;
      lane.queue = false;
    } else {
      uint64_t passed = now > sampled_ns_ ? now - sampled_ns_ : 0;
      lane.window_ns += passed;
      if (sample.busy && lane.latest.busy) lane.busy_ns += passed;
      if (sample.rtt_ns > 0) {
        if (lane.rtt_floor_ns == 0 || sample.rtt_ns < lane.rtt_floor_ns) lane.rtt_floor_ns = sample.rtt_ns;
        lane.queue |= sample.rtt_ns > 2 * lane.rtt_floor_ns + kQueueNs;
      }
    }
    lane.latest = sample;
  }

  // `waiting`: there is more to send than all lanes take now. Returns the lane to re-path, or kNobody.
  uint32_t verdict(uint32_t count, bool waiting, uint64_t now) {
    uint64_t passed = sampled_ns_ != 0 && now > sampled_ns_ ? now - sampled_ns_ : 0;
    sampled_ns_ = now;
    window_ns_ += passed;
    if (waiting) waiting_ns_ += passed;
    if (window_ns_ < kWindowNs) return kNobody;
    bool pressed = waiting_ns_ * 2 >= window_ns_;
    window_ns_ = waiting_ns_ = 0;
    for (uint32_t i = 0; i < count; ++i) end_window(&lanes_[i], now);
    uint32_t chosen = worst(count, now);
    if (chosen == kNobody) chosen = least(count, pressed, now);
    if (chosen != kNobody) searched_ = 0;
    return chosen;
  }

  // The lane has its new path.
  void moved(uint32_t index, uint64_t now) {
    View& lane = lanes_[index];
    if (now - lane.moved_ns > kForgiveNs) lane.hold_ns = kFirstHoldNs;
    lane.moved_ns = now;
    lane.rate_before = lane.share;
    lane.judging = true;
    lane.next_ns = now + std::max(lane.hold_ns, kSettleNs);
    lane.bad = 0;
    lane.rtt_floor_ns = 0;
  }

  uint32_t bad_windows(uint32_t index) const { return lanes_[index].bad; }

 private:
  static constexpr uint64_t kQueueNs = 1'000'000;

  struct View {
    Sample latest;
    uint64_t window_ns = 0, busy_ns = 0;
    uint64_t delivered_then = 0, troubles_then = 0;
    uint64_t rtt_floor_ns = 0;
    bool queue = false;     // its round trip has grown in this window
    bool troubled = false;  // verdict of the last window: a queue, loss or marks on its path
    bool worked = false;    // it was busy for most of the last window
    double share = 0;       // delivered in the last window in which it was busy, of its NIC's speed
    double carried = 0;     // bytes of the last window
    uint64_t rate_at_ns = 0;
    uint32_t bad = 0;  // windows on end
    // Damping.
    uint64_t moved_ns = 0, next_ns = 0, hold_ns = kFirstHoldNs;
    double rate_before = 0;
    bool judging = false;
  };

  void end_window(View* lane, uint64_t now) {
    uint64_t troubles = lane->latest.troubles - std::min(lane->latest.troubles, lane->troubles_then);
    lane->carried = static_cast<double>(lane->latest.delivered - lane->delivered_then);
    lane->worked = lane->latest.up && lane->window_ns > 0 && lane->busy_ns * 10 >= lane->window_ns * 7;
    lane->troubled = troubles > 0 || lane->queue;
    if (lane->worked) {
      double speed = static_cast<double>(std::max<uint64_t>(lane->latest.speed, 1));
      lane->share = lane->carried * 1e9 / static_cast<double>(lane->window_ns) / speed;
      lane->rate_at_ns = now;
      if (lane->judging && now - lane->moved_ns >= kSettleNs) {
        lane->judging = false;
        lane->hold_ns = lane->share >= kBetter * lane->rate_before ? kFirstHoldNs
                                                                   : std::min(2 * lane->hold_ns, kMaxHoldNs);
        lane->next_ns = lane->moved_ns + lane->hold_ns;
      }
    }
    lane->delivered_then = lane->latest.delivered;
    lane->troubles_then = lane->latest.troubles;
    lane->window_ns = lane->busy_ns = 0;
    lane->queue = false;
  }

  bool may_move(const View& lane, uint64_t now) const {
    return lane.latest.up && lane.latest.movable && now >= lane.next_ns && !lane.judging;
  }

  uint32_t worst(uint32_t count, uint64_t now) {
    uint32_t found = kNobody;
    for (uint32_t i = 0; i < count; ++i) {
      View& lane = lanes_[i];
      double best = 0;  // of its siblings that were at work lately
      for (uint32_t k = 0; k < count; ++k) {
        const View& other = lanes_[k];
        if (k == i || !other.latest.up || other.rate_at_ns == 0) continue;
        if (now - other.rate_at_ns <= 10 * kWindowNs) best = std::max(best, other.share);
      }
      bool bad = lane.worked && lane.troubled && best > 0 && lane.share < kBadShare * best;
      lane.bad = bad ? lane.bad + 1 : 0;
      if (lane.bad >= kBadWindows && may_move(lane, now) &&
          (found == kNobody || lane.share < lanes_[found].share))
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
      // One that is idle although all windows are full has just come up; it is not known to be in trouble.
      all &= lane.worked && lane.troubled;
      if (lane.judging && now - lane.moved_ns < kSettleNs) all = false;
      if (found == kNobody || lane.carried < lanes_[found].carried) found = i;
    }
    searched_ = all && up > 1 ? searched_ + 1 : 0;
    if (searched_ < kSearchWindows || found == kNobody || !may_move(lanes_[found], now)) return kNobody;
    return found;
  }

  View lanes_[kMaxLanes];
  uint64_t sampled_ns_ = 0, window_ns_ = 0, waiting_ns_ = 0;
  uint32_t searched_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_REPATH_H_
