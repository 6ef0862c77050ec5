// A one-way connection over several lanes: what a sender and a receiver have in common.
//
// Threads. NCCL's progress thread (isend, irecv, test) and the engine's service thread (tick, handshakes,
// commands) both work on a connection, each with its lock held. Only the service thread opens lanes; both may
// fail one.
#ifndef FABRICPULSE_CORE_CONNECTION_H_
#define FABRICPULSE_CORE_CONNECTION_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/fencing.h"
#include "core/lane.h"
#include "core/owned_fds.h"
#include "core/peer_liveness.h"
#include "core/quick_lock.h"
#include "core/runtime.h"
#include "core/stall_timer.h"
#include "core/wire.h"

namespace fabricpulse {

enum class RequestKind : uint8_t { kSend = 1, kReceive = 2 };
enum class Direction : uint32_t { kSend = 1, kReceive = 2 };

// One lane as its connection sees it: a pair of NICs, and the incarnation that it has now, if any.
struct Lane {
  uint32_t index = 0;
  uint32_t nic = 0;         // local
  uint32_t remote_nic = 0;  // index in the peer's list
  bool named = false;       // nic and remote_nic are known (a receiver learns them with the first hello)
  bool spare = false;       // see spare_lanes.h
  std::unique_ptr<LaneTransport> transport;
  bool up = false;                          // transport is in use
  std::unique_ptr<LaneTransport> draining;  // closed, but the peer may still write by it

  fp_lane_state state = FP_LANE_CONNECTING;
  fp_lane_reason reason = FP_REASON_NONE;
  uint64_t state_since_ns = 0;
  uint64_t down_since_ns = 0;  // when it left service; 0 while in service
  bool disabled = false;       // lane.disable holds
  bool peer_disabled = false;  // the peer wants it out of service
  int32_t fixed_weight = -1;   // lane.weight; -1 automatic
  bool last_resort = false;    // in service although it should not be: no other was left
  bool ever_up = false;
  bool proven = false;     // this incarnation has carried something (LaneTransport::proven())
  bool replacing = false;  // sender: a incarnation on another path is being dialled while this one works
  // Another lane over its path was just given up for silence, here or at the peer: nothing new goes over it while a
  // lane over another path may carry.
  bool doubtful = false;
  // The peer has given up its last incarnation for silence; until the next tick.
  bool peer_found_silent = false;

  StallTimer timer;
  uint64_t last_acknowledged = 0, acknowledged_at_ns = 0;
  uint64_t retransmits_base = 0, ecn_base = 0;  // of earlier incarnations
  uint64_t rtt_ns = 0;
  uint64_t rtt_ahead = 0;  // PathSample::ahead
  uint64_t congested_segments =
      0;  // segments sent again and marked ones of this incarnation, as last sampled

  uint64_t last_ping_ns = 0;
  uint64_t asked_ns = 0;        // when the oldest unanswered ping was sent; 0: none is outstanding
  uint64_t answered_in_ns = 0;  // what the last answer to a ping took
  uint64_t last_received_ns = 0;
  bool pong_due = false;
  int64_t pong_stamp = 0;

  uint64_t last_polled_ns = 0;
  uint64_t last_data_ns = 0;

  // Of who polls it: for how long something has been under way, and more than a few, while this was all that is
  // acknowledged; and for how long this has been its oldest chunk.
  uint64_t watched_ns = 0, watched_due_ns = 0, watched_acknowledged = 0;
  uint32_t watched_under_way = 0;
  uint64_t watched_chunk = UINT64_MAX, watched_chunk_ns = 0;

  // Flap damping: each failure adds kPenalty, which halves every kPenaltyHalfLife.
  double penalty = 0;
  uint64_t penalty_at_ns = 0;

  fp_plugin_lane* record = nullptr;
  uint32_t record_index = UINT32_MAX;
  std::string peer_device;
};

class Connection : public LaneSink {
 public:
  // Between two ticks where all that is under way is on queue pairs and no lane is suspect. A silence of less than 36 ms
  // proves nothing there, and each tick takes processor time from what moves the bytes.
  static constexpr uint64_t kQueuePairTickNs = 25'000'000;

  Connection(Runtime* runtime, Direction direction, uint64_t id, uint32_t device, uint64_t communicator);
  virtual ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // NCCL's threads: false when the service thread holds the lock or waits for it; the caller returns done = 0
  // to NCCL, which comes again.
  bool try_lock() { return service_waits_.load(std::memory_order_relaxed) == 0 && lock_.try_lock(); }
  void unlock() { lock_.unlock(); }
  // The service thread, and any caller that may wait.
  void lock() {
    service_waits_.fetch_add(1, std::memory_order_relaxed);
    lock_.lock();
    service_waits_.fetch_sub(1, std::memory_order_relaxed);
    resting_ = false;  // whatever is done now, the next drive sees to its consequences
  }
  uint64_t clock() const { return runtime_->now(); }
  uint64_t id() const { return id_; }
  Direction direction() const { return direction_; }
  uint32_t device() const { return device_; }
  const ProcessIdentity& peer() const { return peer_; }
  bool peer_known() const { return peer_known_; }

  // ---- without the lock, from any thread ----
  // This process is a child, made by fork(), of the one whose connection it is.
  bool inherited() const { return forks_ != fork_count(); }
  fp_plugin_connection* record() { return record_; }
  uint32_t lane_count() const { return lane_count_.load(std::memory_order_acquire); }  // may grow
  // nullptr: the lane has not been up yet.
  const fp_plugin_lane* lane_record(uint32_t lane) const {
    return lane_records_[lane].load(std::memory_order_acquire);
  }
  // SendConnection: the local NIC of a lane.
  uint32_t planned_nic(uint32_t lane) const { return lanes_[lane].nic; }
  bool planned_spare(uint32_t lane) const { return lanes_[lane].spare; }
  // lane.disable holds.
  bool disabled_here(uint32_t lane) const {
    return (disabled_here_.load(std::memory_order_relaxed) >> lane) & 1;
  }

  // ---- with the lock held ----
  void set_peer(const ProcessIdentity& peer, const WireNic* nics, uint32_t count);
  std::vector<Lane>& lanes() { return lanes_; }
  const std::vector<WireNic>& peer_nics() const { return peer_nics_; }
  uint32_t lanes_up() const;
  // Lanes in service that neither end wants out of service; spare ones are not among them.
  uint32_t lanes_healthy() const;
  // A spare lane is up.
  bool on_last_resort() const;
  // Some lanes are up, and all of those are queue pairs.
  bool on_queue_pairs() const;
  bool wanted(const Lane& lane) const {
    return !lane.disabled && !lane.peer_disabled && !runtime_->nic_avoided(lane.nic);
  }
  bool wanted_here(const Lane& lane) const { return !lane.disabled && !runtime_->nic_avoided(lane.nic); }

  // Reads and writes what can be read and written now.
  void drive(uint64_t now);
  // Whether a drive has nothing to do: the last one took in all that there was, nothing waits to be sent or reported, and
  // nothing has come since on the lanes in use. It reads no clock, so that what time brings waits for kMostSkipped such
  // answers at most.
  bool rests();
  // The service thread's share: timers, pings, fences that wait, telemetry. Called every few milliseconds.
  void tick(uint64_t now, uint64_t since_last);
  // Of a connection that NCCL has not been given: it has asked no more for so long that it never will.
  virtual bool forgotten(uint64_t /*since_last*/) { return false; }
  // A lane may be about to fail: the next tick should be soon.
  bool suspects() const { return suspects_; }
  // At the last tick NCCL's thread was polling, which sees by itself when a queue pair falls silent and wakes the service
  // thread then, and all lanes were up: nothing else is due before long.
  bool watched() const { return watched_; }
  uint64_t last_driven() const { return last_driven_ns_.load(std::memory_order_relaxed); }
  // Takes a lane out of service for good or until it is joined again; what is under way on it goes elsewhere.
  void fail_lane(uint32_t lane, fp_lane_reason reason, uint64_t now);
  // All lanes over this local NIC.
  void fail_nic(uint32_t nic, fp_lane_reason reason, uint64_t now);
  // lane.disable and lane.enable; desired_changed() acts on it.
  void set_disabled(uint32_t lane, bool disabled);
  // The desired state of lanes has changed (command, nic.avoid): act on it.
  void desired_changed(uint64_t now);

  // The peer's process has ended. From now on every call of NCCL on this connection is an error.
  void peer_lost(const std::string& why, uint64_t now);
  bool lost() const { return lost_; }
  bool closed_by_peer() const { return bye_received_; }
  // NCCL takes registered memory back, as it does without waiting for its requests when it aborts. If one of them needs
  // it the connection ends here, as with close(), and its next call is an error: from here on nothing reads or writes
  // that memory. May block as close() does.
  void memory_returned(const RegisteredMemory* memory, uint64_t now);
  // Whether NCCL's next call is an error. The log then has the reason and the peer's name, once.
  bool broken(uint64_t now);
  uint64_t no_lane_since() const { return no_lane_since_ns_; }
  // Whether a lane over this pair of NICs has been up.
  bool was_up(uint32_t nic, uint32_t remote_nic) const;
  PeerLiveness liveness;
  uint64_t next_probe_ns = 0;
  bool probing = false;
  uint32_t probes = 0;         // which pair of NICs the next one takes
  uint64_t next_watch_ns = 0;  // when its peer's process is to be watched, if it is not
  // RecvConnection: how many of our NICs were reported to the sender.
  uint32_t announced_nics = 0;

  // BYE, and the end of all lanes.
  void close(uint64_t now);
  // Receiver: what it holds, for a sender that did not receive its BYE. False: this end has nothing to report.
  bool held_at_close(HeldState* state) const { return final_state(state); }
  bool closed() const { return closed_; }

  uint32_t record_index() const { return record_index_; }
  virtual fp_wait waits_for() const = 0;
  virtual uint32_t requests() const = 0;
  virtual uint32_t lane_epoch(uint32_t lane) const = 0;
  virtual uint64_t lane_in_flight(uint32_t) const { return 0; }
  void set_attributes(uint32_t operations, uint32_t algorithms, uint32_t protocols);
  // What it carries now, as the profiler reports.
  void set_flow(uint32_t collective, uint32_t rank, uint32_t peer, uint32_t channel);
  // Whether the profiler should be asked again what this connection carries.
  bool flow_due(uint64_t now);
  std::string describe() const;

 protected:
  // No request is under way that the peer would still have to serve.
  virtual bool complete() const = 0;
  // A request is under way whose data lies in this memory.
  virtual bool uses(const RegisteredMemory* memory) const = 0;
  virtual void after_poll(uint64_t now, bool progress) = 0;
  // After a drive: nothing waits to be sent or reported that another one could send.
  virtual bool settled() const = 0;
  virtual void on_lane_failed(Lane* lane, fp_lane_reason reason, uint64_t now) = 0;
  virtual void on_tick(uint64_t now) = 0;
  static constexpr uint64_t kHotNs = 2'000'000;  // a lane is hot this long after its last data
  static constexpr uint32_t kMostSkipped = 7;
  virtual bool hot(const Lane& lane, uint64_t now) const = 0;
  virtual bool on_state_frame(uint32_t lane, const FrameHeader& header, const HeldState& body) = 0;
  virtual uint64_t oldest_request_ns() const = 0;
  // Of the oldest request, 0: unknown.
  virtual uint64_t missing_bytes() const = 0;
  // The oldest chunk of each lane that is not held (UINT64_MAX: none), and how long it should take; tick().
  virtual void oldest_chunks(uint64_t*, uint64_t*) const {}
  // Goes with the BYE. False: this end has none.
  virtual bool final_state(HeldState*) const { return false; }

  // At most kMaxLanes.
  Lane& make_lane(uint32_t nic, uint64_t now, bool spare = false);
  // From here on the telemetry has the lane.
  void show_lane(Lane* lane, uint32_t epoch);
  // Installs a transport on a lane.
  void lane_joined(Lane* lane, std::unique_ptr<LaneTransport> transport, uint32_t epoch, uint64_t now);
  void set_state(Lane* lane, fp_lane_state state, fp_lane_reason reason, uint64_t now);
  void event(fp_event_kind kind, const Lane* lane, fp_lane_reason reason, uint64_t value, uint64_t now);
  void take_peer_findings(uint64_t now);
  // Whether lanes that are polled are silent.
  void watch(uint64_t now);
  // May take chunks from spare lanes: a queue pair on which the peer has answered since it is up.
  static bool relieves(const Lane& lane) { return lane.up && !lane.spare && lane.transport->proven(); }
  void report_last_resort(const Lane& lane, uint64_t now);
  void progress_made(uint64_t now);
  // There is something new to do: the next drive is not skipped.
  void wake_up() { resting_ = false; }
  // Something may come by it before the next drive.
  void note_in_use(const Lane& lane) { in_use_ |= UINT64_C(1) << lane.index; }
  void flush_lane(Lane* lane, uint64_t now);
  void ping(Lane* lane, uint64_t now);
  // When a frame of the peer's process was last received on another lane than this one.
  uint64_t last_received_beside(const Lane& lane) const;
  const uint8_t* remote_address(const Lane& lane) const {
    return lane.remote_nic < peer_nics_.size() ? peer_nics_[lane.remote_nic].address : nullptr;
  }
  // Service thread: what all connections know of a lane's path; nullptr: nothing.
  PathTable::Path* path_of(const Lane& lane, uint64_t now) {
    const uint8_t* address = remote_address(lane);
    return address != nullptr ? runtime_->path(lane.nic, address, now) : nullptr;
  }
  // From here on nothing lands by the lane's last incarnation. May block: not on NCCL's progress thread.
  void settle(Lane* lane);
  uint64_t disabled_mask() const;
  double penalty(Lane* lane, uint64_t now) const;
  void publish(uint64_t now);

  bool state_frame(uint32_t lane, const FrameHeader& header, const HeldState& body) final;

  Runtime* const runtime_;
  const Direction direction_;
  const uint64_t id_;
  const uint32_t device_;
  const uint32_t forks_ = fork_count();
  QuickLock lock_;
  std::atomic<uint32_t> service_waits_{
      0};                    // a progress thread that polls without a pause would keep the lock
  std::vector<Lane> lanes_;  // never moves: room for all is reserved
  std::atomic<uint32_t> lane_count_{0};
  std::atomic<fp_plugin_lane*> lane_records_[kMaxLanes] = {};
  std::atomic<uint64_t> disabled_here_{0};
  ProcessIdentity peer_;
  bool peer_known_ = false;
  std::vector<WireNic> peer_nics_;

  bool suspects_ = false;
  bool watched_ = false;
  bool called_ = false;  // for a silent lane, since the last tick
  uint64_t looked_ns_ = 0;
  bool closed_ = false, lost_ = false, bye_received_ = false;
  bool memory_returned_ = false;  // of a request that was under way
  std::string lost_reason_;
  uint64_t no_lane_since_ns_ = 0;
  uint64_t last_progress_ns_ = 0;
  uint64_t now_ns_ = 0;   // of the drive or tick in progress
  bool resting_ = false;  // see rests()
  uint32_t skipped_ = 0;  // drives, since the last one
  uint64_t in_use_ = 0;   // lanes that were hot at the last drive, or were given something since; a bit each
  std::atomic<uint64_t> last_driven_ns_{0};
  uint64_t last_publish_ns_ = 0;
  uint64_t flow_asked_ns_ = 0;
  std::vector<std::unique_ptr<LaneTransport>>
      retired_transports_;  // closed, but perhaps still on the call stack
  fp_plugin_connection* record_ = nullptr;
  uint32_t record_index_ = UINT32_MAX;

  static constexpr double kPenalty = 1000, kSuppress = 2500, kReuse = 1500;
  static constexpr double kPenaltyHalfLifeNs = 4e9;
};

// Holds the lock of a connection as the service thread does.
class ConnectionLock {
 public:
  explicit ConnectionLock(Connection* connection) : connection_(connection) { connection_->lock(); }
  ~ConnectionLock() { connection_->unlock(); }
  ConnectionLock(const ConnectionLock&) = delete;
  ConnectionLock& operator=(const ConnectionLock&) = delete;

 private:
  Connection* connection_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_CONNECTION_H_
