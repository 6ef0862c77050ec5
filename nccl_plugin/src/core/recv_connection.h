// The receiving end of a connection.
//
// Messages are matched in the order in which receives are posted. Chunks of a message whose receive is posted
// go straight to the application's buffer; small messages that come earlier wait in `early_`.
#ifndef FABRICPULSE_CORE_RECV_CONNECTION_H_
#define FABRICPULSE_CORE_RECV_CONNECTION_H_

#include <memory>
#include <string>

#include "core/connection.h"

namespace fabricpulse {

class RecvConnection;

struct ReceiveMessage {
  RequestKind kind = RequestKind::kReceive;  // first: test() sees only a pointer
  enum class Use : uint8_t { kFree, kPosted, kDone, kTruncated };
  Use use = Use::kFree;
  RecvConnection* owner = nullptr;
  uint8_t* data = nullptr;
  uint64_t capacity = 0;                     // bytes
  const RegisteredMemory* memory = nullptr;  // that the data lies in
  uint64_t number = 0;
  bool sized = false;     // its first chunk is here
  uint32_t size = 0;      // of the message, then
  uint32_t received = 0;  // bytes
  uint64_t posted_ns = 0;
};

class RecvConnection final : public Connection, public std::enable_shared_from_this<RecvConnection> {
 public:
  RecvConnection(Runtime* runtime, uint64_t id, uint32_t device, uint64_t communicator, uint32_t lanes);

  // ---- NCCL, with the lock held ----
  // nullptr: no free request now.
  ReceiveMessage* receive(void* data, uint64_t capacity, const RegisteredMemory* memory, uint64_t now);
  // True when all of the message has arrived, or the message is too large (use kTruncated until then; see
  // truncated).
  bool test(ReceiveMessage* message, uint32_t* size, bool* truncated, uint64_t now);
  // Whether test() would find nothing new: it has not arrived, and the connection rests. Reads no clock.
  bool waits(const ReceiveMessage* message) {
    return message->use == ReceiveMessage::Use::kPosted && rests();
  }

  // The sender waits for our state frame about arrived chunks or posted receives.
  // Of the last chunk that has arrived, for the next state frame: see DelayOf.
  uint32_t delay_of_ = kDelayNone, delay_lane_ = 0;
  int64_t delay_ns_ = 0;
  bool ack_pending() const { return unreported_chunks_ > 0 || (large_ && reported_posted_ != posted_); }
  void flush_ack(uint64_t now) {
    if (ack_pending() && !closed_) report(now);
    if (ack_pending()) wake_up();  // it was not taken: again with the next drive
  }

  // ---- service thread, with the lock held ----
  // A hello for one of our lanes. Fills the reply; kOk: give the transport to attach().
  HelloStatus hello(const Hello& hello, uint32_t nic, HeldState* held, uint64_t now);
  void attach(uint32_t lane, uint32_t epoch, std::unique_ptr<LaneTransport> transport, uint64_t now);

  uint32_t requests() const override { return requests_; }
  fp_wait waits_for() const override;
  uint32_t lane_epoch(uint32_t lane) const override { return fencing_.epoch(lane); }

  uint8_t* chunk_begins(uint32_t lane, const FrameHeader& header, bool* fatal) override;
  void chunk_ends(uint32_t lane, const FrameHeader& header) override;
  uint32_t posted_receives(PostedReceive* out, uint32_t most, uint64_t* next) const override;
  bool chunk_placed(uint32_t lane, const PlacedChunk& placed) override;

 private:
  struct Early {
    bool whole = false;
    uint64_t message = 0;
    uint32_t size = 0;
  };

  bool complete() const override { return requests_ == 0; }
  bool uses(const RegisteredMemory* memory) const override;
  void after_poll(uint64_t now, bool progress) override;
  bool settled() const override { return !ack_pending() && !many_unreported(); }
  // So many small receives that the sender may soon have no room for what it sends early.
  bool many_unreported() const { return posted_ - reported_posted_ >= kEagerSlots / 2; }
  void on_lane_failed(Lane* lane, fp_lane_reason reason, uint64_t now) override;
  void on_tick(uint64_t now) override;
  bool hot(const Lane& lane, uint64_t now) const override;
  bool on_state_frame(uint32_t lane, const FrameHeader& header, const HeldState& body) override;
  uint64_t oldest_request_ns() const override;
  uint64_t missing_bytes() const override;
  bool final_state(HeldState* out) const override {
    state(out);
    return true;
  }

  uint64_t message_number(uint32_t low) const;
  // The first byte of a chunk is here. False: it is not taken; `fatal` set: fail the lane.
  bool take(uint32_t lane, uint64_t chunk, bool* fatal);
  // The message's memory goes back to the application.
  void release(const ReceiveMessage& message);
  uint8_t* early_slot(uint64_t message) { return early_data_.get() + (message % kEagerSlots) * kEagerBytes; }
  void finish(ReceiveMessage* message);
  void truncate(ReceiveMessage* message);
  void state(HeldState* out) const;
  Lane* report_lane();
  void report(uint64_t now);
  // How long a chunk took, for the telemetry and for the sender.
  void note_delay(const FrameHeader& header, Lane* lane);
  void repeat_fenced(uint64_t now);
  void send_fenced(uint32_t lane, uint32_t epoch, fp_lane_reason reason, uint64_t now);

  ReceiverFencing fencing_;
  ReceiveMessage messages_[kMaxRequests];
  uint64_t posted_ = 0;
  uint64_t first_message_ = 0;  // oldest that has not arrived
  uint32_t requests_ = 0;
  std::unique_ptr<uint8_t[]> early_data_;
  Early early_[kEagerSlots];
  bool lands_early_[kMaxLanes] = {};               // the chunk arriving on a lane goes to its slot
  const ReceiveMessage* landing_[kMaxLanes] = {};  // or into this one's memory; nullptr: neither
  uint32_t last_lane_ = 0;                         // on which data came last
  uint32_t reported_lane_ = 0;                     // on which the last state frame went
  uint32_t unreported_chunks_ = 0;                 // arrived since the last report
  uint64_t reported_posted_ = 0;                   // value of posted_ in it
  bool large_ = false;  // messages too large to be sent early: the sender waits for our state frame
  uint64_t reported_disabled_ = 0;
  uint64_t fenced_sent_ns_ = 0;
  bool truncated_ =
      false;  // a message was larger than its receive: the connection is over, which the sender learns
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_RECV_CONNECTION_H_
