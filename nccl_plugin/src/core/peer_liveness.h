// Whether the peer's process has ended, by what its host answers. Pure: no clock, no I/O.
//
// A refused connection proves little: a listener is bound to a NIC, so a SYN that comes in by another NIC is
// answered with a reset as long as the peer lives; a firewall that rejects answers the same; and a host that
// is asked at an address that it has lost. So only refusals on a path that was up count (before any was: on the
// one that the peer has named first), and only
//  - after the peer's kernel has ended a lane in order (FIN) without a BYE: a process that ends does that,
//    neither a plugin that gives up a lane (it resets) nor a firewall; or
//  - when they go on for long.
// All connections to a process share that its kernel has ended a lane in order: a lane with unread data the kernel
// resets, as a plugin does that gives it up. An idle connection to it is ended in order in any case
// (transport/tcp/process_watches.h).
// Any other answer of the peer's process clears them, and so does a connection that is taken, whether or not the
// process sends anything on it in time: it may be slow, or stopped.
//
// Nor does one answer prove that the peer runs another version of the plugin: a damaged hello gets the same one, and
// has no checksum that both versions know. Several in a row do, but not after a lane has been up.
#ifndef FABRICPULSE_CORE_PEER_LIVENESS_H_
#define FABRICPULSE_CORE_PEER_LIVENESS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

namespace fabricpulse {

// Whether the kernel of a peer's process has ended a lane in order, and no frame of that process has come since.
using PeerEnded = std::shared_ptr<std::atomic<bool>>;

// By process; each as long as somebody holds it. One thread.
class PeerEnds {
 public:
  PeerEnded of(const uint64_t (&process)[2]) {
    const std::pair<uint64_t, uint64_t> key{process[0], process[1]};
    if (PeerEnded known = ends_[key].lock()) return known;
    if (ends_.size() > most_) {
      for (auto at = ends_.begin(); at != ends_.end();)
        at = at->second.expired() ? ends_.erase(at) : std::next(at);
      most_ = 2 * ends_.size() + 64;
    }
    PeerEnded made = std::make_shared<std::atomic<bool>>(false);
    ends_[key] = made;
    return made;
  }

 private:
  std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<std::atomic<bool>>> ends_;
  size_t most_ = 64;
};

class PeerLiveness {
 public:
  static constexpr uint32_t kRefusals = 3;
  static constexpr uint32_t kOtherVersions = 3;
  static constexpr uint64_t kRefusedNs = 100'000'000;         // after a FIN
  static constexpr uint64_t kRefusedLongNs = 10'000'000'000;  // without
  static constexpr uint64_t kGapNs = 3'000'000'000;           // refusals further apart are none on end

  // A lane is up, or a hello was answered: the process lives.
  void answered() {
    listens();
    other_versions_ = 0;
  }
  // The peer's host has taken a connection: the listening socket is there.
  void listens() {
    refusals_ = 0;
    *ended_ = false;
  }
  // A hello was answered by a process that runs another version, by its own claim.
  void other_version() {
    refusals_ = 0;
    if (!ever_up_) ++other_versions_;
  }
  void lane_up() {
    answered();
    ever_up_ = true;
  }
  // The peer's end of a lane was closed in order, and no BYE came before it; or of a connection that is there for that.
  void lane_ended() { *ended_ = true; }
  // Which process it is, to all connections of which this is common.
  void share(PeerEnded ended) {
    if (ended == nullptr || ended == ended_) return;
    if (*ended_) *ended = true;
    ended_ = std::move(ended);
  }
  // A connection was refused. path_was_up: a lane over this pair of NICs has been up; first_path: it is the pair of
  // the connection's first lane.
  void refused(bool path_was_up, bool first_path, uint64_t now) {
    if (ever_up_ ? !path_was_up : !first_path) return;
    if (refusals_ == 0 || now - last_ns_ > kGapNs) {
      refusals_ = 0;
      first_ns_ = now;
    }
    ++refusals_;
    last_ns_ = now;
  }
  // Whether the process has ended, as far as can be known. Ask while no lane is up.
  bool has_ended() const {
    return refusals_ >= kRefusals && last_ns_ - first_ns_ >= (*ended_ ? kRefusedNs : kRefusedLongNs);
  }
  // Whether that rests on a connection that its kernel closed in order, and not on refusals for long alone.
  bool ended_in_order() const { return *ended_; }
  bool runs_other_version() const { return other_versions_ >= kOtherVersions; }

 private:
  PeerEnded ended_ = std::make_shared<std::atomic<bool>>(false);
  bool ever_up_ = false;
  uint32_t refusals_ = 0, other_versions_ = 0;  // on end
  uint64_t first_ns_ = 0, last_ns_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_PEER_LIVENESS_H_
