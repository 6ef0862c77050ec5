// What is lost on one edge: counted by the sender's numbering, and while nothing arrives at all, by the rate at
// which it sends. Pure: no clock, no I/O. All counts are packets.
#ifndef FABRICPULSE_EXPORTERS_LOSS_H_
#define FABRICPULSE_EXPORTERS_LOSS_H_

#include <algorithm>
#include <cstdint>

namespace fabricpulse {

// A counter of lost packets that never falls. What is presumed lost in a silence is made good by the numbers
// that end it, so that nothing counts twice.
class LossCounter {
 public:
  // By numbering.
  void count(std::uint64_t packets) {
    total_ += packets - std::min(packets, presumed_);
    presumed_ = 0;
  }
  // The silence that lasts has cost this many packets so far.
  void presume(std::uint64_t packets) {
    if (packets <= presumed_) return;
    total_ += packets - presumed_;
    presumed_ = packets;
  }
  // The peer has begun its numbering anew: what was presumed will never be known.
  void restart() { presumed_ = 0; }
  std::uint64_t total() const { return total_; }

 private:
  std::uint64_t total_ = 0, presumed_ = 0;
};

// How long the peer takes from train to train, by its numbering.
class TrainPeriod {
 public:
  // Train `train` has been received at `now_ns`, and none later.
  void received(std::uint32_t train, std::int64_t now_ns) {
    if (train_ == 0 || train < train_) {
      train_ = train;
      at_ = now_ns;
    } else if (now_ns - at_ >= kSpan && train > train_) {
      period_ = (now_ns - at_) / (train - train_);
      train_ = train;
      at_ = now_ns;
    }
  }
  void restart() { train_ = 0; }
  std::int64_t ns() const { return period_; }  // 0 = not known

 private:
  static constexpr std::int64_t kSpan = 1'000'000'000;
  std::uint32_t train_ = 0;
  std::int64_t at_ = 0, period_ = 0;
};

// Loss of the last minute: twelve buckets of five seconds.
class LossWindow {
 public:
  static constexpr int kBuckets = 12;
  static constexpr std::int64_t kBucketNs = 5'000'000'000;

  // One train of `expected` packets has passed, `lost` of them did not arrive.
  void train(std::uint32_t expected, std::uint32_t lost) {
    Bucket& b = buckets_[current_];
    b.expected += expected;
    b.lost += lost;
    b.trains += lost > 0;
  }
  // A bucket is over.
  void rotate() {
    current_ = (current_ + 1) % kBuckets;
    buckets_[current_] = Bucket{};
  }
  std::uint32_t expected() const { return sum(&Bucket::expected); }
  std::uint32_t lost() const { return sum(&Bucket::lost); }
  // Parts in a million.
  std::uint32_t ratio_ppm() const {
    const std::uint64_t all = expected();
    return all == 0 ? 0 : static_cast<std::uint32_t>(std::uint64_t{lost()} * 1'000'000 / all);
  }
  // More than what a healthy fabric loses: two trains or more of the minute, and one packet in 2,000. One lost
  // train says nothing.
  bool lossy() const { return sum(&Bucket::trains) >= 2 && ratio_ppm() >= 500; }

 private:
  struct Bucket {
    std::uint32_t expected = 0, lost = 0, trains = 0;
  };
  std::uint32_t sum(std::uint32_t Bucket::*field) const {
    std::uint32_t total = 0;
    for (const Bucket& b : buckets_) total += b.*field;
    return total;
  }
  Bucket buckets_[kBuckets];
  int current_ = 0;
};

// What the peer has not received of ours, from the count of packets that it reports. Needs no numbering of the
// peer's: works as long as anything of it is received.
class OutboundLoss {
 public:
  // sent : packets of ours up to a train that the peer reports as received two trains ago or earlier. received :
  // those that it had accepted when it said so; wraps at 2^32.
  void report(std::uint64_t sent, std::uint32_t received) {
    // What is on its way makes this too small by a few packets, never too large: the largest holds.
    const auto missing = static_cast<std::int32_t>(static_cast<std::uint32_t>(sent) - received);
    if (reports_ < kLearn) {
      base_ = reports_ == 0 ? missing : std::max(base_, missing);
      most_ = base_;
      ++reports_;
      return;
    }
    most_ = std::max(most_, missing);
  }
  // The peer counts anew.
  void restart() {
    total_ += static_cast<std::uint64_t>(most_ - base_);
    reports_ = 0;
    base_ = most_ = 0;
  }
  std::uint64_t total() const { return total_ + static_cast<std::uint64_t>(most_ - base_); }

 private:
  static constexpr int kLearn = 16;
  int reports_ = 0;
  std::int32_t base_ = 0, most_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_LOSS_H_
