#include "evidence/edge_trains.h"

#include <algorithm>
#include <utility>

namespace fabricpulse {
namespace {

constexpr std::int64_t kTrainSettled = 1'000'000;  // ns after which a train gets no more packets, normally
constexpr std::int64_t kStampAge = 1'000'000'000;  // ns from the send to its TX stamp, at most
// A packet waits in the NIC for so long, after the kernel has stamped it, which some drivers do a little late. ns.
constexpr std::int64_t kNicWait = 10'000'000, kDriverLate = 5'000;
// Trains; a longer gap says nothing about single paths. What is left of six dead paths of eight is received more often.
constexpr std::uint32_t kLongGap = 30;
constexpr std::uint8_t kWhole = (1 << kTrain) - 1;
constexpr std::uint8_t kCodedPair = kWhole & ~1;  // all but the warm-up packet

}  // namespace

void StampedTrain::add_stamp(int position, std::int64_t stamp_ns, std::uint16_t stamp_error_ns) {
  const bool by_nic = stamp_error_ns != 0, used_by_nic = error_ns != 0;
  const auto bit = static_cast<std::uint8_t>(1 << position);
  if (valid == 0 || by_nic == used_by_nic) {
    error_ns = std::max(error_ns, stamp_error_ns);
    ns[position] = stamp_ns;
    valid |= bit;
    if (other_.valid == 0) return;
  } else {
    if (other_.valid == 0) other_ = Set{};
    other_.error_ns = std::max(other_.error_ns, stamp_error_ns);
    other_.ns[position] = stamp_ns;
    other_.valid |= bit;
  }
  const std::uint8_t kernel = used_by_nic ? other_.valid : valid, nic = used_by_nic ? valid : other_.valid;
  const bool covered = (kernel & kCodedPair & ~nic) == 0;
  if (covered == used_by_nic) return;
  std::swap(valid, other_.valid);
  std::swap(error_ns, other_.error_ns);
  std::swap_ranges(ns, ns + kTrain, other_.ns);
}

const std::int64_t* StampedTrain::kernel_stamp(int position) const {
  const bool used_by_nic = error_ns != 0;
  const std::uint8_t there = used_by_nic ? other_.valid : valid;
  if ((there >> position & 1) == 0) return nullptr;
  return used_by_nic ? &other_.ns[position] : &ns[position];
}

void StampedTrain::forget_stamps() {
  valid = other_.valid = 0;
  error_ns = other_.error_ns = 0;
  std::fill(ns, ns + kTrain, 0);
}

std::uint32_t EdgeTrains::begin(std::uint8_t paths, std::uint8_t sweep, std::int64_t before_kernel_ns,
                                std::int64_t before_ns) {
  ++last_sent_;
  if (last_sent_ == 0) last_sent_ = 1;
  SentTrain& train = sent_trains_[last_sent_ % kSentTrains];
  train.begin(last_sent_, path_of_train(last_sent_, paths, sweep));
  train.before_kernel_ns = before_kernel_ns;
  train.before_ns = before_ns;
  return last_sent_;
}

bool EdgeTrains::stamp_sent(std::uint32_t number, int position, std::int64_t kernel_ns, std::int64_t stamp_ns,
                            std::uint16_t error_ns) {
  SentTrain& train = sent_trains_[number % kSentTrains];
  if (number == 0 || train.train != number) return false;
  // A stamp from before the send belongs to another packet, one from long after it to another clock. Those of the
  // kernel are compared on its own clock, where nothing was converted, those of the NIC with the kernel's too, which comes
  // before it.
  const std::int64_t after =
      error_ns == 0 ? kernel_ns - train.before_kernel_ns : stamp_ns + error_ns - train.before_ns;
  if (after < 0 || after > kStampAge) return false;
  if (error_ns != 0) {
    const std::int64_t* kernel = train.kernel_stamp(position);
    const std::int64_t waited =
        stamp_ns + error_ns - (kernel != nullptr ? *kernel - kDriverLate : train.before_ns);
    if (waited < 0 || waited > kNicWait + kDriverLate + 2 * error_ns) return false;
  }
  train.add_stamp(position, stamp_ns, error_ns);
  return true;
}

void EdgeTrains::restart() {
  newest_received_ = resumed_ = 0;
  main_retired_ = 0;
  lost_.restart();
  outbound_.restart();
  period_.restart();
  for (ReceivedTrain& train : received_trains_) train = ReceivedTrain{};
  for (PathTally& path : paths_) path.sizes.restart();
  size_loss_ = SizeLoss();
}

void EdgeTrains::receive(const Packet& packet, std::int64_t stamp_ns, std::uint16_t error_ns,
                         std::int64_t now) {
  if (packet.train > newest_received_) {
    peer_paths_ = packet.paths;
    peer_sweep_ = packet.sweep;
    if (newest_received_ == 0) {
      first_received_ = packet.train;
      retired_sweep_ = packet.sweep;
    } else {
      retire(packet.train);
    }
    newest_received_ = packet.train;
    period_.received(newest_received_, now);
  }
  ReceivedTrain& train = received_trains_[packet.train % kReceivedTrains];
  if (train.train != packet.train) {
    if (newest_received_ - packet.train >= kReceivedTrains) return;  // retired, and counted as lost
    train.begin(packet.train, packet.path);
    train.sweep = packet.sweep;
    train.taken_ns = now;
    PathTally& path = paths_[packet.path];
    path.sizes.due(packet.train, size_after_train(packet.train, packet.paths, packet.sweep, packet.mtu),
                   packet.mtu, path.small());
  }
  train.got = static_cast<std::uint8_t>(train.got | 1 << packet.position);
  if (stamp_ns != 0) train.add_stamp(packet.position, stamp_ns, error_ns);
}

// Closes the books on the trains that leave the table when train `newest` comes in.
void EdgeTrains::retire(std::uint32_t newest) {
  std::uint32_t from = newest_received_ >= kReceivedTrains ? newest_received_ - kReceivedTrains + 1 : 1;
  from = std::max(from, first_received_);
  const std::uint32_t to = newest >= kReceivedTrains ? newest - kReceivedTrains : 0;  // inclusive
  if (to < from) return;
  std::uint32_t last = to;
  std::uint64_t lost = 0;
  if (newest - newest_received_ > kLongGap) {
    // The edge was silent as a whole: its losses count, but say nothing of a single path.
    last = newest_received_;
    lost += static_cast<std::uint64_t>(to - std::min(to, last)) * kTrain;
    for (PathTally& path : paths_) path.health.reset();
    resumed_ = newest;
  }
  auto arrived = [this](std::uint32_t t) { return received_trains_[t % kReceivedTrains].train == t; };
  for (std::uint32_t t = from; t <= std::min(to, last); ++t) {
    const ReceivedTrain& train = received_trains_[t % kReceivedTrains];
    const int got = arrived(t) ? __builtin_popcount(train.got) : 0;
    const auto missing = static_cast<std::uint32_t>(kTrain - got);
    lost += missing;
    const bool before = retired_received_;
    retired_received_ = got > 0;
    if (got > 0) {
      retired_sweep_ = train.sweep;
      if (train.path == 0) main_retired_ = t;
    }
    if (got == 0 && t < resumed_) continue;  // of the gap, or just before it
    const int index = got > 0 ? train.path : path_of_lost(t);
    if (index < 0) continue;
    PathTally& path = paths_[index];
    path.expected += kTrain;
    path.lost += missing;
    path.window.train(kTrain, missing);
    if (got > 0) {
      path.health.received();
      witnesses_ |= ~(1U << index);
    } else {
      // A lost train speaks against its path only if the edge itself worked then: trains beside it arrived,
      // which took the main path; or, if the main path is what is dead, another path was received since the last
      // loss.
      const bool beside = index != 0 && (before || arrived(t + 1));
      const bool main_dead = index == 0 || paths_[0].health.state() == HealthState::kDown;
      if (beside || (main_dead && (witnesses_ >> index & 1) != 0)) {
        path.health.missed();
        witnesses_ &= ~(1U << index);
      }
    }
  }
  lost_.count(lost);
}

// Which way a lost train went is known by its number and by how the peer swept then: as it did before and after that.
// -1 where these differ, or where it may have swept faster between two trains that arrived, as it does while nothing of
// ours arrives on its main path.
int EdgeTrains::path_of_lost(std::uint32_t lost) const {
  std::uint8_t after = peer_sweep_;
  for (std::uint32_t t = lost + 1; t <= newest_received_; ++t) {
    const ReceivedTrain& train = received_trains_[t % kReceivedTrains];
    if (train.train != t) continue;
    after = train.sweep;
    break;
  }
  const int path = path_of_train(lost, peer_paths_, after);
  if (path_of_train(lost, peer_paths_, retired_sweep_) != path) return -1;
  const bool maybe_urgent = lost - main_retired_ > kSureTrains && after > kUrgentSweep;
  return maybe_urgent && path_of_train(lost, peer_paths_, kUrgentSweep) != path ? -1 : path;
}

void EdgeTrains::silence(std::int64_t silent_ns) {
  if (newest_received_ == 0 || period_.ns() <= 0) return;
  const std::int64_t trains = silent_ns / period_.ns() - kSilentTrains;
  if (trains > 0) lost_.presume(static_cast<std::uint64_t>(trains) * kTrain);
}

void EdgeTrains::confirm(const TrainStamps& reception, std::uint32_t received) {
  const std::uint32_t train = reception.train;
  if (train == 0 || train > last_sent_) return;
  if (reception.valid != 0 && reception.path == 0) main_confirmed_ = std::max(main_confirmed_, train);
  // Two trains before: what the peer had received then is in its count, however late the packets were.
  if (train <= 2 || received == 0) return;
  const SentTrain& before = sent_trains_[(train - 2) % kSentTrains];
  if (before.train == train - 2 && before.sent_through > 0) outbound_.report(before.sent_through, received);
}

const ReceivedTrain* EdgeTrains::match_sent(const TrainStamps& sent) {
  if (sent.train == 0 || sent.valid == 0) return nullptr;
  ReceivedTrain& received = received_trains_[sent.train % kReceivedTrains];
  if (received.train != sent.train || received.emitted || received.valid == 0 || received.path != sent.path)
    return nullptr;
  received.emitted = true;
  return &received;
}

const ReceivedTrain* EdgeTrains::match_sent_at_once(const TrainStamps& sent) {
  ReceivedTrain& received = received_trains_[sent.train % kReceivedTrains];
  if (received.train != sent.train || received.emitted || received.checked || received.path != sent.path ||
      (sent.valid & received.valid & kCodedPair) == 0 || received.error_ns != 0)
    return nullptr;
  received.checked = true;
  return &received;
}

const SentTrain* EdgeTrains::match_reception(const TrainStamps& reception) {
  if (reception.train == 0 || reception.valid == 0) return nullptr;
  SentTrain& sent = sent_trains_[reception.train % kSentTrains];
  if (sent.train != reception.train || sent.reported || sent.valid == 0 || sent.path != reception.path)
    return nullptr;
  sent.reported = true;
  return &sent;
}

TrainStamps EdgeTrains::sent_report(int position) const {
  for (std::uint32_t back = position == 1 ? 2 : 1; back <= 3 && back < last_sent_; ++back) {
    const SentTrain& train = sent_trains_[(last_sent_ - back) % kSentTrains];
    if (train.train == last_sent_ - back && train.valid != 0) return train;
  }
  return {};
}

TrainStamps EdgeTrains::sent_report_at_once() const {
  const SentTrain& train = sent_trains_[last_sent_ % kSentTrains];
  TrainStamps stamps = train;
  const bool there = train.train == last_sent_ && train.error_ns == 0;
  stamps.valid = there ? static_cast<std::uint8_t>(train.valid & kCodedPair) : 0;
  return stamps;
}

TrainStamps EdgeTrains::reception_report(int position, std::int64_t now) const {
  std::uint32_t newest = newest_received_;
  const ReceivedTrain& last = received_trains_[newest % kReceivedTrains];
  const bool settled = last.got == kWhole || now - last.taken_ns > kTrainSettled;
  if (!settled && newest > 1) --newest;
  if (position == 1 && newest > 1) --newest;
  const ReceivedTrain& train = received_trains_[newest % kReceivedTrains];
  if (train.train == newest) return train;
  TrainStamps none;
  none.train = newest;
  return none;
}

void EdgeTrains::forget_stamps() {
  for (SentTrain& train : sent_trains_) train.forget_stamps(), train.reported = true;
  for (ReceivedTrain& train : received_trains_) train.forget_stamps(), train.emitted = true;
}

}  // namespace fabricpulse
