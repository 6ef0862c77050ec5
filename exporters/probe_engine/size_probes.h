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
#include <cstddef>
#include <cstdint>

namespace fabricpulse {

// A larger MTU, that of the loopback device, is not probed in full.
constexpr std::uint16_t kMostMtu = 16'384;
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
// trains as the sweep takes for all of them, or several times that many if it is a quick one.
inline std::uint16_t size_after_train(std::uint32_t train, std::uint8_t paths, std::uint8_t sweep,
                                      std::uint16_t mtu) {
  constexpr std::uint32_t kWithoutSweep = 70;
  if (mtu == 0) return 0;
  const bool sweeps = sweep != 0 && paths >= 2;
  const std::uint32_t cycle = sweeps ? sweep * (paths - 1u) : kWithoutSweep;
  const std::uint32_t thinned = sweeps && sweep < 10 ? 10u / sweep : 1;
  // Each train that leaves the main flow, and one of the others.
  const bool takes_turn = (sweeps && train % sweep == 0) || train % cycle == 1 % cycle;
  if (!takes_turn || train / cycle % thinned != 0) return 0;
  const SizeLadder ladder(mtu);
  return ladder.sizes[train / cycle / thinned % ladder.count];
}

// What arrives of the size probes from one source port of the peer.
class PathSizes {
 public:
  // A train that size_after_train says `size` of has arrived, `mtu` is what the peer announces. 0 : none follows.
  void due(std::uint32_t train, std::uint16_t size, std::uint16_t mtu) {
    if (mtu != mtu_) restart(mtu);
    if (size != 0 && train > train_) expect(train, size, false);
  }
  // The size probe behind `train` has arrived, maybe before the rest of it.
  void arrived(std::uint32_t train, std::uint16_t size) {
    const int place = SizeLadder(mtu_).place(size);
    if (place < 0 || train < train_) return;
    if (train > train_) {
      expect(train, size, true);
    } else if (place == place_) {
      came_ = true;
      missed_[static_cast<std::size_t>(place)] = 0;
    }
  }
  // The peer's numbering begins anew, or its MTU is another.
  void restart(std::uint16_t mtu) { *this = PathSizes(mtu); }

  // The smallest size that does not get through, 0 = none or not known. loss_ppm : what this source port loses of small
  // packets: so many size probes in a row must be missing that chance would take one in a million to do it.
  // Sizes take turns: of one that misses as many as a larger one, but for the last turn, it is not known yet whether
  // it is the smallest.
  std::uint16_t black_hole(std::uint32_t loss_ppm) const {
    const SizeLadder ladder(mtu_);
    int below = 0;  // most that a smaller size has missed
    for (std::size_t i = 0; i < ladder.count; ++i) {
      const int smaller = below;
      below = std::max<int>(below, missed_[i]);
      if (missed_[i] < kLeastMissed) continue;
      double chance = 1;
      const double loss = loss_ppm < 10'000 ? 0.01 : loss_ppm / 1e6;
      for (int k = 0; k < missed_[i]; ++k) chance *= loss;
      if (chance > 1.0001e-6) continue;
      return smaller + 1 >= missed_[i] ? 0 : ladder.sizes[i];
    }
    return 0;
  }

  PathSizes() = default;

 private:
  // One more than chance asks for at 1 % loss: a full queue drops large packets sooner than small ones.
  static constexpr std::uint8_t kLeastMissed = 4;

  explicit PathSizes(std::uint16_t mtu) : mtu_(mtu) {}

  // Closes the books on the probe before and waits for the next.
  void expect(std::uint32_t train, std::uint16_t size, bool came) {
    if (train_ != 0 && !came_ && missed_[place_] < 255) ++missed_[place_];
    train_ = train;
    place_ = SizeLadder(mtu_).place(size);
    came_ = came;
    if (came) missed_[place_] = 0;
  }

  std::uint16_t mtu_ = 0;
  std::uint32_t train_ = 0;  // the last one that a probe follows, 0 = none yet
  int place_ = 0;
  bool came_ = false;
  std::array<std::uint8_t, kMostSizes> missed_{};  // in a row
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_SIZE_PROBES_H_
