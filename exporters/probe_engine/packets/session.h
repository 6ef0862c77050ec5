// Which authentic packets are also fresh: one session for each edge. Pure: no clock, no I/O.
//
// Within an epoch of the peer a sliding window takes each (train, position) once. A new epoch (the peer has
// restarted, or we have) is accepted only when the packet proves that its sender receives us now: it echoes our
// own epoch and one of our trains that we sent after we last accepted anything. A recorded packet of any
// earlier time cannot do that, so neither a restart of ours nor one of the peer's allows a
// replay.
//
// The price: after a restart nothing is accepted until a packet has gone each way, one train period more.
#ifndef FABRICPULSE_EXPORTERS_SESSION_H_
#define FABRICPULSE_EXPORTERS_SESSION_H_

#include <cstdint>

#include "packets/wire.h"

namespace fabricpulse {

enum class Admitted { kFresh, kReplay, kUnconfirmed };

class Session {
 public:
  // A peer that echoes no later train of ours is a recording of an edge to it that was removed.
  void begin(std::uint32_t our_train) { mark_ = our_train; }
  // `our_train` is the number of the last train that we have sent to this peer in our epoch `our_epoch`.
  Admitted admit(const Packet& packet, std::uint32_t our_epoch, std::uint32_t our_train) {
    if (live_ && packet.epoch == epoch_) {
      if (!admit_number(packet)) return Admitted::kReplay;
      mark_ = our_train;
      return Admitted::kFresh;
    }
    const bool echoes =
        packet.rx_epoch == our_epoch && packet.rx.train > mark_ && packet.rx.train <= our_train;
    if (!echoes) {
      // Echo it, so that it can prove itself. Keep the newest start that asks: epochs count up with wall
      // time.
      const std::int32_t newer = static_cast<std::int32_t>(packet.epoch - candidate_epoch_);
      if (candidate_train_ == 0 || newer >= 0 || our_train - candidate_mark_ > kCandidateTrains) {
        candidate_epoch_ = packet.epoch;
        candidate_train_ = packet.train;
        candidate_mark_ = our_train;
      }
      return Admitted::kUnconfirmed;
    }
    live_ = true;
    restarted_ = true;
    epoch_ = packet.epoch;
    highest_ = number(packet);
    for (std::uint64_t& word : seen_) word = 0;
    set(highest_);
    mark_ = our_train;
    candidate_train_ = 0;
    return Admitted::kFresh;
  }

  bool live() const { return live_; }
  std::uint32_t epoch() const { return epoch_; }
  // True once after a new epoch of the peer was accepted: its counters and trains begin anew.
  bool take_restarted() {
    const bool restarted = restarted_;
    restarted_ = false;
    return restarted;
  }
  // The start that waits for its proof, if there is one: what to echo in its place.
  bool candidate(std::uint32_t our_train, std::uint32_t* epoch, std::uint32_t* train) const {
    if (candidate_train_ == 0 || our_train - candidate_mark_ > kCandidateTrains) return false;
    *epoch = candidate_epoch_;
    *train = candidate_train_;
    return true;
  }

 private:
  static constexpr std::uint32_t kWindow = 256;  // numbers behind the highest that may still arrive
  static constexpr std::uint32_t kCandidateTrains =
      25;  // own trains after which a silent candidate gives way

  static std::uint64_t number(const Packet& p) {
    return static_cast<std::uint64_t>(p.train) * kTrain + p.position;
  }
  void set(std::uint64_t n) { seen_[n / 64 % (kWindow / 64)] |= std::uint64_t{1} << n % 64; }
  bool test(std::uint64_t n) const { return seen_[n / 64 % (kWindow / 64)] >> n % 64 & 1; }

  // The word of the highest number and the words before it are in use; one word less than kWindow is
  // guaranteed.
  bool admit_number(const Packet& packet) {
    const std::uint64_t n = number(packet);
    if (n > highest_) {
      const std::uint64_t words = n / 64 - highest_ / 64;
      for (std::uint64_t i = 1; i <= words && i <= kWindow / 64; ++i) {
        seen_[(highest_ / 64 + i) % (kWindow / 64)] = 0;
      }
      highest_ = n;
      set(n);
      return true;
    }
    if (highest_ / 64 - n / 64 >= kWindow / 64 || test(n)) return false;
    set(n);
    return true;
  }

  bool live_ = false;
  bool restarted_ = false;
  std::uint32_t epoch_ = 0;
  std::uint32_t mark_ = 0;  // our last train when we last accepted a packet
  std::uint32_t candidate_epoch_ = 0;
  std::uint32_t candidate_train_ = 0;
  std::uint32_t candidate_mark_ = 0;
  std::uint64_t highest_ = 0;
  std::uint64_t seen_[kWindow / 64] = {};
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_SESSION_H_
