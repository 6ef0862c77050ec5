// The least delay of one direction of an edge: what a packet takes that meets no queue. Pure.
//
// A queue only adds to a delay, so the floor is the least delay of minutes, not of seconds: a queue that has not been
// empty for some seconds looks like a longer path, and when it drains like a clock that jumped. It is known while
// trains come back to it often enough; the least delays of a queue that is never empty differ each time.
#ifndef FABRICPULSE_EXPORTERS_DELAY_FLOOR_H_
#define FABRICPULSE_EXPORTERS_DELAY_FLOOR_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace fabricpulse {

class DelayFloor {
 public:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

  // A delay and its bound, ns. at_ns : when, on one clock, which does not run backward.
  void add(std::int64_t owd_ns, std::int64_t bound_ns, std::int64_t at_ns) {
    advance(at_ns);
    // A worse clock adds nothing, a far better one makes what was learned by the worse one worthless.
    if (trains_ > 0 && bound_ns > kWorse * bound_) return;
    if (trains_ > 0 && bound_ > kFarBetter * bound_ns) *this = DelayFloor();
    if (trains_ == 0) since_ns_ = at_ns;
    Part& part = parts_[newest_];
    const std::int64_t near = near_ns(bound_ns);
    if (part.trains == 0) part.begin_ns = at_ns;
    if (part.trains == 0 || owd_ns < part.floor - near) {
      part.floor = owd_ns;
      part.visits = 1;
    } else {
      part.visits += owd_ns <= part.floor + near ? 1 : 0;
      part.floor = std::min(part.floor, owd_ns);
    }
    ++part.trains;
    part.bound = std::max(part.bound, bound_ns);
    sum_up();
  }
  // Whether it is a floor: trains come back to it. Soon where most do, later where a queue is seldom empty.
  bool known() const {
    const std::int64_t age = last_ns_ - since_ns_;
    return visits_ >= kVisits && ((kMostShare * visits_ >= trains_ && age >= kSoonNs) ||
                                  (kLeastShare * visits_ >= trains_ && age >= kLaterNs));
  }
  // Too young to say that there is none: the least delay so far stands for it.
  bool is_new() const { return trains_ > 0 && last_ns_ - since_ns_ < kLaterNs; }
  std::int64_t ns() const { return floor_; }        // kNone before the first train
  std::int64_t bound_ns() const { return bound_; }  // the widest of its delays
  // A shift by less proves nothing: clocks may be wrong by their bounds, in one sense then and in the other now.
  std::int64_t limit_ns(std::int64_t bound_ns) const { return std::max(kScatterNs, bound_ns + bound_); }

 private:
  static constexpr int kParts = 10;
  static constexpr std::int64_t kPartNs = 60'000'000'000;
  static constexpr std::int64_t kSoonNs = 30'000'000'000, kLaterNs = 60'000'000'000;
  static constexpr std::int64_t kVisits = 8, kMostShare = 4, kLeastShare = 16;
  static constexpr std::int64_t kWorse = 2, kFarBetter = 4;
  static constexpr std::int64_t kScatterNs = 1'000;  // of stamps

  struct Part {
    std::int64_t begin_ns = 0, floor = kNone, bound = 0;
    std::int64_t trains = 0, visits = 0;
  };

  static std::int64_t near_ns(std::int64_t bound_ns) { return std::max(kScatterNs, 2 * bound_ns); }

  void advance(std::int64_t at_ns) {
    last_ns_ = std::max(last_ns_, at_ns);
    if (parts_[newest_].trains == 0 || last_ns_ - parts_[newest_].begin_ns < kPartNs) return;
    newest_ = (newest_ + 1) % kParts;
    parts_[newest_] = Part();
    for (Part& part : parts_) {
      if (part.trains > 0 && last_ns_ - part.begin_ns > kParts * kPartNs) part = Part();
    }
    sum_up();
  }
  void sum_up() {
    floor_ = kNone;
    bound_ = trains_ = visits_ = 0;
    std::int64_t since = last_ns_;
    for (const Part& part : parts_) {
      if (part.trains == 0) continue;
      floor_ = std::min(floor_, part.floor);
      bound_ = std::max(bound_, part.bound);
      trains_ += part.trains;
      since = std::min(since, part.begin_ns);
    }
    since_ns_ = since;
    for (const Part& part : parts_) {
      if (part.trains > 0 && part.floor <= floor_ + near_ns(bound_)) visits_ += part.visits;
    }
  }

  Part parts_[kParts];
  int newest_ = 0;
  std::int64_t last_ns_ = std::numeric_limits<std::int64_t>::min() / 2, since_ns_ = 0;
  std::int64_t floor_ = kNone, bound_ = 0, trains_ = 0, visits_ = 0;  // of all parts
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_DELAY_FLOOR_H_
