// The sending end of a connection.
//
// isend() only notes the message; pump() cuts it into chunks and gives each chunk to the lane that will
// deliver it first. A message may go once its receive is posted (HeldState.posted); a
// small one may go earlier, into memory that the receiver keeps for that. So nothing on a lane ever waits for
// the application, and a lane that does not move has failed.
#ifndef FABRICPULSE_CORE_SEND_CONNECTION_H_
#define FABRICPULSE_CORE_SEND_CONNECTION_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/connection.h"
#include "core/lane_flow.h"
#include "core/lane_plan.h"
#include "core/path_selector.h"

namespace fabricpulse {

class SendConnection;

// What the service thread is to dial for a sender.
struct DialPlan {
  uint32_t lane = 0;
  uint32_t epoch = 0;
  uint16_t source_port = 0;  // 0: the kernel's choice
  uint8_t flags = 0;         // HelloFlags
  uint32_t patience = 0;     // above 0: a longer wait, for a path or a peer that is slow, not dead; grows
  bool optional = false;     // other lanes carry, or may be tried
};

struct SendMessage {
  RequestKind kind = RequestKind::kSend;  // first: test() sees only a pointer
  enum class Use : uint8_t { kFree, kPosted, kDone };
  Use use = Use::kFree;
  SendConnection* owner = nullptr;
  const uint8_t* data = nullptr;
  const RegisteredMemory* memory = nullptr;  // that the data lies in
  uint32_t size = 0;
  uint32_t tag = 0;
  uint32_t cut = 0;        // bytes that are in chunks
  uint32_t delivered = 0;  // bytes that the peer holds
  bool whole = false;      // all of it is in chunks
  uint64_t number = 0;
  uint64_t posted_ns = 0;
};

class SendConnection final : public Connection {
 public:
  // lanes: the primary one first.
  SendConnection(Runtime* runtime, uint64_t id, uint32_t device, uint64_t communicator,
                 const std::vector<NicPair>& lanes);

  // ---- NCCL, with the lock held ----
  // nullptr: no free request now. The buffer belongs to us until test() returns done.
  SendMessage* send(const void* data, uint32_t size, uint32_t tag, const RegisteredMemory* memory,
                    uint64_t now);
  // True when the peer holds all of it; the request is free then.
  bool test(SendMessage* message, uint32_t* size, uint64_t now);
  // Whether test() would find nothing new: it is not delivered, and the connection rests. Reads no clock.
  bool waits(const SendMessage* message) { return message->use == SendMessage::Use::kPosted && rests(); }

  // ---- service thread, with the lock held ----
  // Whether there are other NICs, here or there, than at the last call.
  bool nics_changed(uint32_t local, uint32_t remote) {
    return std::exchange(planned_for_, NicPair{local, remote}) != NicPair{local, remote};
  }
  std::vector<NicPair> pairs() const;  // of lanes that are not spare
  // Lanes over other pairs, dialled at once; as many as there is room for.
  void add_lanes(const std::vector<NicPair>& pairs, uint64_t now, bool spare = false);
  // Spare lanes over pairs that have none yet, as many as there is room for.
  void add_spares(const std::vector<NicPair>& pairs, uint64_t now);
  bool spares_planned() const { return spares_planned_; }
  // Whether connect() may give it to NCCL: it has the lane that NCCL chose, or another one and no use in
  // waiting (its NIC is down, or 300 ms have passed); or the peer has closed its end before, and what is sent is an
  // error.
  bool ready(uint64_t now) const;
  // connect() was asked for it, and has given it to NCCL, which closes it from then on.
  void asked() { unasked_ns_ = 0; }
  void hand_over() { handed_over_.store(true, std::memory_order_relaxed); }
  bool handed_over() const { return handed_over_.load(std::memory_order_relaxed); }  // without the lock too
  bool forgotten(uint64_t since_last) override;
  // A lane that should be dialled now; false if there is none. The lane counts as being dialled until
  // dialled().
  bool want_dial(uint64_t now, DialPlan* plan);
  // The outcome: a transport, or the reason why there is none.
  void dialled(uint32_t lane, uint32_t epoch, std::unique_ptr<LaneTransport> transport,
               const HelloReply* reply, uint64_t now);
  // The receiver has closed the connection in good order, holding this; its BYE was lost.
  void peer_closed(const HeldState& state, uint64_t now);
  // One end has no descriptor for this lane now: that is no fault of its path.
  void dial_put_off(uint32_t lane) { flow_[lane].first_dial_ns = 0; }
  // Something has changed that makes a new attempt worthwhile (link up).
  void dial_soon(uint32_t nic, uint64_t now);
  // Gives the lane another path: another source port, the kernel's choice if 0. The new incarnation is made
  // before the old one ends, so that it costs little and a lane that cannot have another path keeps its old
  // one.
  void repath(uint32_t lane, uint16_t source_port, bool command, uint64_t now);
  void set_weight(uint32_t lane, int32_t weight) { lanes_[lane].fixed_weight = weight; }

  uint32_t requests() const override { return requests_; }
  fp_wait waits_for() const override;
  uint32_t lane_epoch(uint32_t lane) const override { return fencing_.lane(lane).epoch; }
  uint64_t lane_in_flight(uint32_t lane) const override { return flow_[lane].in_flight; }

  uint8_t* chunk_begins(uint32_t, const FrameHeader&, bool* fatal) override {
    *fatal = true;  // chunks do not flow this way
    return nullptr;
  }
  void chunk_ends(uint32_t, const FrameHeader&) override {}
  void note_receive(const PeerReceive& receive) override;
  const PeerReceive* peer_receive(uint32_t message) const override;

 private:
  struct Chunk {
    uint64_t message = 0;
    uint32_t offset = 0;
    uint32_t length = 0;
    uint64_t sent_ns = 0;
    uint64_t ahead = 0;  // bytes in flight on the lane when it was sent, itself included
    uint32_t place = 0;  // among all that were posted on its lane, from 0
    bool moved = false;
    uint8_t failed_on =
        SenderFencing::kNoLane;  // the lane that it was last taken from because that had failed
  };
  struct Flow : LaneFlow {  // of one lane
    // Dialling.
    bool dialling = false;
    uint32_t dials = 0;  // without success
    uint64_t next_dial_ns = 0;
    uint64_t backoff_ns = 0;
    uint64_t first_dial_ns = 0;  // of a lane that has not been up; 0: none
    bool patient = false;        // the dial under way waits long
    bool in_vain = false;        // the last incarnation was up and proved nothing; note_tries()
    uint64_t fence_sent_ns = 0;
    uint64_t failed_ns = 0;
    // A new path.
    bool repath = false;            // wanted
    bool by_command = false;        // by lane.repath, not by the path selector
    bool moved_by_command = false;  // the move that is under way
    uint16_t source_port = 0;       // wanted; 0: any
    uint64_t repath_since_ns = 0;
    uint16_t port_before = 0;  // of the path before the last one that the path selector chose; 0: none
  };

  bool complete() const override { return requests_ == 0; }
  bool uses(const RegisteredMemory* memory) const override;
  void after_poll(uint64_t now, bool progress) override;
  bool settled() const override { return moved_count_ == 0; }
  void on_lane_failed(Lane* lane, fp_lane_reason reason, uint64_t now) override;
  void on_tick(uint64_t now) override;
  bool hot(const Lane& lane, uint64_t now) const override;
  bool on_state_frame(uint32_t lane, const FrameHeader& header, const HeldState& body) override;
  uint64_t oldest_request_ns() const override;
  uint64_t missing_bytes() const override;
  void oldest_chunks(uint64_t* chunks, uint64_t* chunk_ns) const override;

  // Handles the lanes that the receiver's state reports as closed.
  void note_closed(const HeldState& state, fp_lane_reason reason, uint64_t now);
  // Says so if dialling has never led anywhere while other lanes work.
  void note_unreachable(Lane* lane, uint32_t epoch, uint64_t now);
  void pump(uint64_t now);
  void select_paths(uint64_t now);
  // Keeps count of what lanes that are up have proven of their paths; and whether one may be tried now.
  void note_tries(uint64_t now);
  bool may_try(const Lane& lane, uint64_t now) const;
  // Whether spare lanes are needed. Ends those that are not any more, once what is under way on them has arrived.
  void review_spares(uint64_t now);
  bool draining(const Lane& lane, uint64_t now) const;
  bool sendable(const SendMessage& message) const;
  // failed_on : see Chunk.
  Lane* choose(uint32_t bytes, uint8_t failed_on, uint64_t now);
  // Lanes over one NIC are ways of one link: a reserve, nothing to balance with.
  static bool share_nic(const Lane& a, const Lane& b) {
    return a.nic == b.nic || a.remote_nic == b.remote_nic;
  }
  uint32_t stretch(const Lane& lane) const;
  bool put(uint64_t chunk, Lane* lane, uint64_t now);
  void await_lane(uint64_t chunk, const Lane& from);
  void held(uint64_t chunk, uint8_t lane, uint64_t now);
  void fail_early(uint64_t now);
  void send_fences(uint64_t now, bool again);
  void note_peer_state(const HeldState& state);
  void publish_weights();

  SenderFencing fencing_;
  Chunk chunks_[kChunkWindow];
  SendMessage messages_[kMaxRequests];
  uint64_t next_message_ = 0;   // number of the next isend
  uint64_t first_message_ = 0;  // oldest that is not delivered
  uint64_t cut_message_ = 0;    // oldest that is not wholly in chunks
  uint64_t posted_ = 0;         // receives posted at the peer
  uint32_t requests_ = 0;
  uint64_t moved_[kChunkWindow];  // chunks that wait for a new lane, oldest first
  uint32_t moved_count_ = 0;
  uint64_t early_ = 0;  // lanes on which the peer claims to hold what has not left yet
  Flow flow_[kMaxLanes];
  PeerReceive receives_[kMaxRequests];  // by message number
  bool receive_known_[kMaxRequests] = {};
  NicPair planned_for_{0, 0};  // how many NICs each end had
  PathSelector paths_;
  std::atomic<bool> handed_over_{false};
  uint64_t unasked_ns_ =
      0;  // since connect() was asked for it; what this process slept through is not counted
  bool spares_planned_ = false, had_queue_pair_ = false;
  uint64_t unanswered_ns_ = 0;  // since when the peer has answered on none, though it had once; 0: it does
  uint64_t relieved_ns_ = 0;    // since when a queue pair may take over from spare lanes; 0: none does
  bool full_ = false;           // more to send than the lanes take
  uint64_t weights_at_ns_ = 0;
  uint64_t first_lane_ns_ = 0;  // when it had its first lane; 0: it has had none
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_SEND_CONNECTION_H_
