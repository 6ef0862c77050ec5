// The trains of one end of an edge, both ways: which were sent and received, with which stamps, what is still to
// be reported to the peer, and what was lost on which path. Pure: no clock, no I/O.
//
// Both tables are rings indexed by train number. A stamp or a report for a train that has left its ring comes
// too late and is dropped; the losses of a train that the peer sent are counted when it leaves.
#ifndef FABRICPULSE_EXPORTERS_EDGE_TRAINS_H_
#define FABRICPULSE_EXPORTERS_EDGE_TRAINS_H_

#include <cstdint>

#include "evidence/loss.h"
#include "evidence/size_probes.h"
#include "health/health.h"
#include "packets/wire.h"

namespace fabricpulse {

// The stamps of a train by the kernel or by the NIC; as TrainStamps those that are used, which are all of one kind: both
// are taken microseconds apart. A NIC with one register for TX stamps (igb, ixgbe, i40e) stamps the first packet of a
// burst only: its stamps are used where they are there of each packet of the coded pair that the kernel stamped.
class StampedTrain : public TrainStamps {
 public:
  void add_stamp(int position, std::int64_t stamp_ns, std::uint16_t stamp_error_ns);
  void forget_stamps();
  // The kernel's of one packet; nullptr while there is none.
  const std::int64_t* kernel_stamp(int position) const;

 private:
  // Those of the other kind, none while none are used. Where nothing is stamped twice they are never touched: the
  // tables of trains are cold at each tick, and each cache line of them costs.
  struct Set {
    std::uint8_t valid = 0;
    std::uint16_t error_ns = 0;
    std::int64_t ns[kTrain] = {0, 0, 0};
  };
  Set other_;
};

struct SentTrain : StampedTrain {
  void begin(std::uint32_t number, std::uint8_t on_path) {
    forget_stamps();
    train = number;
    path = on_path;
    sent_through = 0;
    reported = false;
  }

  std::int64_t before_kernel_ns = 0;  // CLOCK_REALTIME before the first packet went out
  std::int64_t before_ns = 0;         // the stamp clock then
  std::uint64_t sent_through = 0;     // packets of ours that had been sent when it was over
  bool reported = false;              // the peer has reported its stamps
};

struct ReceivedTrain : StampedTrain {
  void begin(std::uint32_t number, std::uint8_t on_path) {
    forget_stamps();
    train = number;
    path = on_path;
    emitted = checked = false;
    got = 0;
  }

  bool emitted = false;  // the peer has reported its stamps
  bool checked = false;  // its delay was compared with what clocks allow, by the stamp that came with it
  std::uint8_t sweep = 0;
  std::uint8_t got = 0;       // bit i: packet i was accepted, stamped or not
  std::int64_t taken_ns = 0;  // monotonic
};

// What arrives from one source port of the peer.
struct PathTally {
  PathHealth health;
  std::uint64_t expected = 0, lost = 0;  // packets
  LossWindow window;
  PathSizes sizes;

  SmallPackets small() const {
    return {static_cast<std::uint32_t>(expected), static_cast<std::uint32_t>(lost)};
  }
};

class EdgeTrains {
 public:
  static constexpr std::uint32_t kSentTrains = 16, kReceivedTrains = 8;

  // -- ours

  // Number of the last train sent, 0 = none.
  std::uint32_t last_sent() const { return last_sent_; }
  // Before the first train: it gets the number behind `last`.
  void number_from(std::uint32_t last) { last_sent_ = main_confirmed_ = last; }
  // Opens the next train. before_kernel_ns, before_ns : CLOCK_REALTIME and the stamp clock now. Returns its number.
  std::uint32_t begin(std::uint8_t paths, std::uint8_t sweep, std::int64_t before_kernel_ns,
                      std::int64_t before_ns);
  // Nothing of the train just begun has left the host: its number is used again, so that the peer does not
  // count it as lost on the way.
  void abandon() { --last_sent_; }
  // The newest train is out. sent : packets of ours on this edge so far.
  void finish(std::uint64_t sent) { sent_trains_[last_sent_ % kSentTrains].sent_through = sent; }
  // How many trains make one that leaves the main path: `configured`, or every second one while the peer does not
  // confirm the main path. Then what still passes is received often enough to keep the edge up. 0 stays 0.
  std::uint8_t sweep(std::uint8_t configured) const {
    const bool confirmed = last_sent_ - main_confirmed_ <= kUnconfirmed;
    return configured <= kUrgentSweep || confirmed ? configured : kUrgentSweep;
  }
  // The peer reports the newest train of ours that it knows of, by its stamps if it received that very train, and
  // `received` packets in all.
  void confirm(const TrainStamps& reception, std::uint32_t received);
  // A TX stamp has come back. kernel_ns : as the kernel gave it; stamp_ns : the same on the stamp clock. False
  // when it was not taken: the train is gone, or the stamp is not from the second after the send.
  // error_ns : as of TrainStamps.
  bool stamp_sent(std::uint32_t train, int position, std::int64_t kernel_ns, std::int64_t stamp_ns,
                  std::uint16_t error_ns);

  // -- the peer's

  // The peer's numbering begins anew.
  void restart();
  // Takes in an admitted packet. stamp_ns : its RX stamp on the stamp clock, 0 = none. now : monotonic ns.
  void receive(const Packet& packet, std::int64_t stamp_ns, std::uint16_t error_ns, std::int64_t now);
  // Takes in a size probe that follows train `train`.
  void receive_size(int path, std::uint32_t train, std::uint16_t size) {
    paths_[path].sizes.arrived(train, size, paths_[path].small(), black_hole(path));
  }
  // Nothing has been received for `silent_ns` of unstalled time: what the peer has sent meanwhile is presumed lost.
  void silence(std::int64_t silent_ns);
  // A bucket of the loss windows is over.
  void rotate_loss() {
    for (PathTally& path : paths_) path.window.rotate();
  }
  // The train whose TX stamps the peer reports, the first time that it does; nullptr if there is nothing to
  // match.
  const ReceivedTrain* match_sent(const TrainStamps& sent);
  // The train whose TX stamp has come with it, the first time; nullptr likewise.
  const ReceivedTrain* match_sent_at_once(const TrainStamps& sent);
  // The train of ours whose RX stamps the peer reports, the first time that it does; nullptr likewise.
  const SentTrain* match_reception(const TrainStamps& reception);

  // -- what goes into packet `position` of our newest train. Any packet may be lost, so the middle one
  // repeats the train before.

  // TX stamps of an earlier train of ours; valid == 0 if none are there.
  TrainStamps sent_report(int position) const;
  // The stamp of the packet before the last one of our newest train, taken by the kernel within the system call that sent
  // it; valid == 0 where it is not there yet.
  TrainStamps sent_report_at_once() const;
  // RX stamps of a train of the peer; valid == 0 still proves that we receive. now : monotonic ns.
  TrainStamps reception_report(int position, std::int64_t now) const;

  // Brings what most packets touch into the caches, and the place of train `received` of the peer, while something else
  // is worked on.
  void fetch(std::uint32_t received) const {
    const ReceivedTrain& train = received_trains_[received % kReceivedTrains];
    __builtin_prefetch(&train, 1);
    __builtin_prefetch(reinterpret_cast<const std::uint8_t*>(&train) + 64, 1);
    const auto* at = reinterpret_cast<const std::uint8_t*>(this);
    const auto* end = reinterpret_cast<const std::uint8_t*>(sent_trains_);
    for (; at < end; at += 64) __builtin_prefetch(at, 1);
  }
  // The same of the train that is sent next.
  void fetch_next_sent() const {
    const SentTrain& train = sent_trains_[(last_sent_ + 1) % kSentTrains];
    __builtin_prefetch(&train, 1);
    __builtin_prefetch(reinterpret_cast<const std::uint8_t*>(&train) + 64, 1);
  }

  // The host clock was steered: how stamps were converted meanwhile is in doubt.
  void forget_stamps();

  std::uint64_t lost() const { return lost_.total(); }               // packets of the peer
  std::uint64_t outbound_lost() const { return outbound_.total(); }  // packets of ours
  std::uint8_t peer_paths() const { return peer_paths_; }
  const PathTally& path(int index) const { return paths_[index]; }
  // The smallest size that does not get through on a source port, bytes; 0 = none or not known.
  std::uint16_t black_hole(int index) const {
    return paths_[index].sizes.black_hole(paths_[index].window.ratio_ppm(), size_loss_);
  }
  // Whether there may be one, of which it is not sure yet.
  bool maybe_black_hole(int index) const {
    return paths_[index].sizes.maybe_black_hole(paths_[index].window.ratio_ppm(), size_loss_);
  }
  // Adds what is lost of large packets, beyond small ones, on each source port.
  void add_size_loss(SizeLoss* sum) const {
    for (const PathTally& path : paths_) sum->add(path.sizes.loss());
  }
  // That of all edges of the NIC.
  void set_size_loss(const SizeLoss& loss) { size_loss_ = loss; }

 private:
  static constexpr std::uint32_t kUnconfirmed = 5;  // trains; a report takes one or two
  static constexpr std::uint8_t kUrgentSweep = 2;
  static constexpr std::uint32_t kSureTrains = 3;  // behind one of the main path: its report takes one or two
  static constexpr std::int64_t kSilentTrains = kReceivedTrains + 2;  // sooner, numbering may still show it

  void retire(std::uint32_t newest);
  int path_of_lost(std::uint32_t lost) const;

  std::uint32_t last_sent_ = 0;
  std::uint32_t newest_received_ = 0;  // highest train of the peer, 0 = none in this epoch
  std::uint32_t first_received_ = 0;   // of the peer's epoch
  std::uint32_t resumed_ = 0;  // the first train after the last gap of the whole edge, 0 = there was none
  std::uint8_t peer_paths_ = 1, peer_sweep_ = 0;
  std::uint8_t retired_sweep_ = 0;  // of the last train that had arrived and has left the table
  std::uint32_t main_retired_ = 0;  // the last train of the main path that had arrived and has left the table
  bool retired_received_ = false;   // the last train that left the table had arrived
  LossCounter lost_;
  OutboundLoss outbound_;
  TrainPeriod period_;
  std::uint32_t main_confirmed_ = 0;  // the newest train of the main path that the peer has received
  // Bit i: another path was received since the last loss on path i.
  std::uint32_t witnesses_ = 0;
  SentTrain sent_trains_[kSentTrains];
  ReceivedTrain received_trains_[kReceivedTrains];
  PathTally paths_[kMaxPaths];
  SizeLoss size_loss_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_EDGE_TRAINS_H_
