// Size probes: packets that fill the path MTU and are never fragmented. What drops them, and lets the small packets of
// the same source port pass, is an MTU black hole. Pure: no clock, no I/O.
//
// The sender announces its MTU in every packet of a train (wire.h); which trains are followed by a size probe, and of
// which size, both ends know from the number of the train. So the receiver knows what it has missed when not one size
// probe arrives. Sizes are those of the IP packet, bytes.
#ifndef FABRICPULSE_EXPORTERS_SIZE_PROBES_H_
#define FABRICPULSE_EXPORTERS_SIZE_PROBES_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "packets/wire.h"

namespace fabricpulse {

// The path MTUs of RoCE with their headers (2,108 and 4,156), rounded up, and that of Ethernet without jumbo frames.
constexpr std::array<std::uint16_t, 3> kCommonSizes = {1'500, 2'200, 4'200};
constexpr std::size_t kMostSizes = kCommonSizes.size() + 1;

// The sizes that are probed for an MTU, ascending; the last is the MTU itself.
struct SizeLadder {
  std::array<std::uint16_t, kMostSizes> sizes{};
  std::size_t count = 0;

  explicit SizeLadder(std::uint16_t mtu) {
    for (const std::uint16_t size : kCommonSizes) {
      if (size < mtu) sizes[count++] = size;
    }
    if (mtu != 0) sizes[count++] = mtu;
  }
  // Place of a size, -1 = is none of them.
  int place(std::uint16_t size) const {
    for (std::size_t i = 0; i < count; ++i) {
      if (sizes[i] == size) return static_cast<int>(i);
    }
    return -1;
  }
};

// The size of the probe that follows a train, 0 = none does. Each source port has its turn as often: once in so many
// trains as the sweep takes for all of them, or several times that many if it is a quick one. Every second turn is the
// MTU's, which any black hole drops; the other sizes share the rest.
inline std::uint16_t size_after_train(std::uint32_t train, std::uint8_t paths, std::uint8_t sweep,
                                      std::uint16_t mtu) {
  constexpr std::uint32_t kWithoutSweep = 70;
  if (mtu == 0) return 0;
  const bool sweeps = sweep != 0 && paths >= 2;
  const std::uint32_t cycle = sweeps ? sweep * (paths - 1u) : kWithoutSweep;
  const std::uint32_t thinned = sweeps && sweep < 10 ? (9u + sweep) / sweep : 1;
  // Each train that leaves the main path, and one of the others.
  const bool takes_turn = (sweeps && train % sweep == 0) || train % cycle == 1 % cycle;
  if (!takes_turn || train / cycle % thinned != 0) return 0;
  const SizeLadder ladder(mtu);
  const std::uint32_t turn = train / cycle / thinned;
  if (turn % 2 == 0 || ladder.count == 1) return mtu;
  return ladder.sizes[turn / 2 % (ladder.count - 1)];
}

// The packets of trains of one source port so far, which are small: those that were sent, and those of them that did
// not arrive. Both may wrap.
struct SmallPackets {
  std::uint32_t expected = 0, lost = 0;
};

// How many size probes are lost beyond what is lost of small packets, by size: what says that a path drops some large
// packets, which is congestion, and not all of them. The places are those of kCommonSizes, and last the MTU's.
class SizeLoss {
 public:
  // Adds one source port's size: so many lost beyond that, with the variance that the loss of small packets gives it,
  // and so many received.
  void add(std::size_t place, float beyond, float variance, float received) {
    beyond_[place] += beyond;
    variance_[place] += variance;
    received_[place] += received;
  }
  void add(const SizeLoss& other) {
    for (std::size_t i = 0; i < kMostSizes; ++i)
      add(i, other.beyond_[i], other.variance_[i], other.received_[i]);
  }
  // The share of packets that is lost for its size, of this size or of one above it, and no more but by bad luck: two
  // standard deviations above what was seen. 0 : none has been lost, or what has may well be the loss of small ones.
  double most(std::size_t place) const {
    double most = 0;
    for (std::size_t i = place; i < kMostSizes; ++i) {
      if (beyond_[i] <= 3 * std::sqrt(variance_[i])) continue;
      const double lost = beyond_[i], seen = lost + received_[i];
      const double sigma = std::sqrt(lost * received_[i] / seen + variance_[i]);
      most = std::max(most, (lost + 1 + 2 * sigma) / (seen + 1));
    }
    return std::min(most, 1.0);
  }

 private:
  std::array<float, kMostSizes> beyond_{}, variance_{},
      received_{};  // packets; beyond_ is below 0 now and then
};

// What one source port has lost of each size, and meanwhile of small packets.
class SizeTally {
 public:
  // One has arrived, behind so many that did not.
  void add(std::size_t place, int missing, SmallPackets meanwhile) {
    Counts& c = counts_[place];
    c.received += 1;
    // What ends so late was a black hole.
    if (missing < kNoLoss) {
      c.lost += static_cast<float>(missing);
      c.small += static_cast<float>(meanwhile.expected);
      c.small_lost += static_cast<float>(meanwhile.lost);
    }
    if (c.lost + c.received < kMemory) return;
    const bool clean = c.lost < kForgotten && c.small_lost < kForgotten;
    c = {clean ? 0 : c.lost / 2, c.received / 2, clean ? 0 : c.small / 2, clean ? 0 : c.small_lost / 2};
  }
  // Without the sizes of which nothing is lost, nor of small packets meanwhile: where a NIC's ports are added up, those
  // do not cross what the others suffer from.
  SizeLoss loss() const {
    SizeLoss loss;
    for (std::size_t i = 0; i < kMostSizes; ++i) {
      const Counts& c = counts_[i];
      if (c.lost == 0 && c.small_lost == 0) continue;
      const float all = c.lost + c.received;
      const float share = c.small_lost == 0 ? 0 : std::min(c.small_lost / c.small, kMostShare);
      const float variance = share == 0 ? 0 : all * share * (1 - share) * (1 + all / c.small);
      loss.add(i, c.lost - all * share, variance, c.received);
    }
    return loss;
  }

 private:
  static constexpr float kMemory = 64, kForgotten = 0.3F;  // packets
  static constexpr float kMostShare = 0.98F;
  static constexpr int kNoLoss = 24;

  struct Counts {
    float lost = 0, received = 0, small = 0, small_lost = 0;
  };
  std::array<Counts, kMostSizes> counts_{};
};

// What arrives of the size probes from one source port of the peer.
class PathSizes {
 public:
  // A train that size_after_train says `size` of has arrived, `mtu` is what the peer announces. 0 : none follows.
  void due(std::uint32_t train, std::uint16_t size, std::uint16_t mtu, SmallPackets small) {
    if (mtu != mtu_) *this = PathSizes(mtu, small);
    if (size != 0 && train > train_) expect(train, size);
  }
  // The size probe behind `train` has arrived, maybe before the rest of it. hole : black_hole() until now.
  void arrived(std::uint32_t train, std::uint16_t size, SmallPackets small, std::uint16_t hole) {
    const int place = SizeLadder(mtu_).place(size);
    if (place < 0 || train < train_) return;
    if (train > train_) expect(train, size);
    if (place == place_ && !came_) take(place, small, SizeLadder(mtu_).place(hole));
  }
  // The peer's numbering begins anew.
  void restart() { *this = PathSizes(); }

  // The smallest size that does not get through, 0 = none or not known. loss_ppm : what this source port loses of small
  // packets. beside : what the NIC's source ports lose beyond that of large ones. Of that size and all above it so many
  // probes in a row must be missing that loss would take one in 10^12 to do it: once a month among a million of source
  // ports.
  std::uint16_t black_hole(std::uint32_t loss_ppm, const SizeLoss& beside) const {
    const SizeLadder ladder(mtu_);
    std::size_t below = 0;  // most that a smaller size has missed
    for (std::size_t i = 0; i < ladder.count; ++i) {
      const std::size_t smaller = below;
      below = std::max<std::size_t>(below, missed_[i]);
      if (missed_[i] < 2 || log_chance(ladder, i, loss_ppm, beside) > kLogChance) continue;
      // Sizes take turns, the MTU more often: of a smaller one that was missing just as long it is not known yet
      // whether it is dropped.
      const std::size_t others = ladder.count - 1;
      const std::size_t turns =
          i == others ? (missed_[i] + others - 1) / std::max<std::size_t>(others, 1) : missed_[i];
      return smaller > 0 && smaller + 1 >= turns ? 0 : ladder.sizes[i];
    }
    return 0;
  }
  // Whether so many are missing that it may be one, too few to be sure: by chance, one in 10^4 is. As one begins, all
  // source ports that it hits are soon of these, and become sure one after the other.
  bool maybe_black_hole(std::uint32_t loss_ppm, const SizeLoss& beside) const {
    const SizeLadder ladder(mtu_);
    for (std::size_t i = 0; i < ladder.count; ++i) {
      if (row_[i] >= 2 && log_chance(ladder, i, loss_ppm, beside) <= kLogMaybe) return true;
    }
    return false;
  }
  // What is lost now and then, beyond what is lost of small packets.
  SizeLoss loss() const { return tally_.loss(); }

  PathSizes() = default;

 private:
  static constexpr double kLogChance = -27.64;  // of 1e-12
  static constexpr double kLogMaybe = -9.21;    // of 1e-4
  // What a path may lose of large packets that has not lost any yet: six must be missing.
  static constexpr double kLeastLoss = 0.00999;

  PathSizes(std::uint16_t mtu, SmallPackets small) : mtu_(mtu) { taken_.fill(small); }

  static std::size_t slot(const SizeLadder& ladder, std::size_t place) {
    return place + 1 == ladder.count ? kMostSizes - 1 : place;
  }

  // Closes the books on the probe before and waits for the next.
  void expect(std::uint32_t train, std::uint16_t size) {
    if (train_ != 0 && !came_) {
      missed_[place_] = grown(missed_[place_]);
      for (int i = 0; i <= place_; ++i) row_[i] = grown(row_[i]);
    }
    train_ = train;
    place_ = SizeLadder(mtu_).place(size);
    came_ = false;
  }
  // One has come: nothing up to its size is dropped for its size. hole : place of the smallest size that was, -1 = none.
  void take(int place, SmallPackets small, int hole) {
    came_ = true;
    // What was missing of those was dropped for its size, and not by chance: it does not make a path one that loses
    // large packets now and then, whose next black hole would be believed minutes later, or not at all.
    for (int i = hole; i >= 0 && i <= place; ++i) {
      missed_[i] = 0;
      taken_[i] = small;
    }
    const SmallPackets since{small.expected - taken_[place].expected, small.lost - taken_[place].lost};
    tally_.add(slot(SizeLadder(mtu_), static_cast<std::size_t>(place)), missed_[place], since);
    taken_[place] = small;
    missed_[place] = 0;
    for (int i = 0; i <= place; ++i) row_[i] = 0;
  }
  // That loss takes so many in a row of this size and above it, as a logarithm.
  double log_chance(const SizeLadder& ladder, std::size_t i, std::uint32_t loss_ppm,
                    const SizeLoss& beside) const {
    const std::size_t place = slot(ladder, i);
    const double large = std::max(loss().most(place), beside.most(place));
    return row_[i] * std::log(std::clamp(1 - (1 - large) * (1 - loss_ppm / 1e6), kLeastLoss, 0.999));
  }
  static std::uint8_t grown(std::uint8_t count) {
    return static_cast<std::uint8_t>(count < 255 ? count + 1 : count);
  }

  std::uint16_t mtu_ = 0;
  std::uint32_t train_ = 0;  // the last one that a probe follows, 0 = none yet
  int place_ = 0;
  bool came_ = false;
  std::array<std::uint8_t, kMostSizes> missed_{};  // of a size, in a row
  std::array<std::uint8_t, kMostSizes> row_{};     // of a size and all above it, in a row
  std::array<SmallPackets, kMostSizes> taken_{};   // what was when the last one of a size came
  SizeTally tally_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_SIZE_PROBES_H_
