#include "core/recv_connection.h"

#include <algorithm>
#include <cstring>

namespace fabricpulse {
namespace {

constexpr uint32_t kReportChunks = 8;  // at the latest; earlier when there is nothing else to read
constexpr uint64_t kFencedAgainNs = 20'000'000, kFencedForNs = 300'000'000;
uint8_t nowhere[1];  // target of empty payloads

}  // namespace

RecvConnection::RecvConnection(Runtime* runtime, uint64_t id, uint32_t device, uint64_t communicator,
                               uint32_t lanes)
    : Connection(runtime, Direction::kReceive, id, device, communicator),
      early_data_(new uint8_t[kEagerBytes * kEagerSlots]) {
  for (uint32_t i = 0; i < lanes && i < kMaxLanes; ++i) make_lane(device, runtime->now());
}

ReceiveMessage* RecvConnection::receive(void* data, uint64_t capacity, const RegisteredMemory* memory,
                                        uint64_t now) {
  ReceiveMessage* message = &messages_[posted_ % kMaxRequests];
  if (message->use != ReceiveMessage::Use::kFree) return nullptr;
  *message = ReceiveMessage{};
  message->use = ReceiveMessage::Use::kPosted;
  message->owner = this;
  message->data = static_cast<uint8_t*>(data);
  message->capacity = capacity;
  message->memory = memory;
  message->number = posted_++;
  message->posted_ns = now;
  large_ = capacity > kEagerBytes;
  // That a large one is posted, who posts it reports: see flush_ack().
  if (requests_ == 0 || many_unreported()) wake_up();
  if (requests_++ == 0) last_progress_ns_ = now;
  Early& early = early_[message->number % kEagerSlots];
  if (early.whole && early.message == message->number) {
    message->size = message->received = early.size;
    if (early.size > capacity) {
      truncate(message);
    } else {
      memcpy(message->data, early_slot(message->number), early.size);
      finish(message);
    }
    early.whole = false;
  }
  return message;
}

// Chunks of an honest sender do not overlap: when all bytes are here none is still arriving.
void RecvConnection::release(const ReceiveMessage& message) {
  for (Lane& lane : lanes_)
    if (landing_[lane.index] == &message) fail_lane(lane.index, FP_REASON_PROTOCOL, now_ns_);
}

void RecvConnection::finish(ReceiveMessage* message) {
  release(*message);
  message->use = ReceiveMessage::Use::kDone;
  --requests_;
  while (first_message_ < posted_) {
    const ReceiveMessage& first = messages_[first_message_ % kMaxRequests];
    if (first.number == first_message_ && first.use == ReceiveMessage::Use::kPosted) break;
    ++first_message_;
  }
  RecordChange<fp_plugin_connection> change(record_);
  record_->bytes += message->size;
  ++record_->completed;
}

// NCCL gets an error from test(), and the connection is of no further use. The lane fails, and what the sender dials is
// answered as if this end were closed, so that its end of the job fails too and does not wait.
void RecvConnection::truncate(ReceiveMessage* message) {
  release(*message);
  message->use = ReceiveMessage::Use::kTruncated;
  --requests_;
  truncated_ = true;
}

bool RecvConnection::test(ReceiveMessage* message, uint32_t* size, bool* truncated, uint64_t now) {
  if (message->use == ReceiveMessage::Use::kPosted) drive(now);
  *truncated = message->use == ReceiveMessage::Use::kTruncated;
  if (message->use != ReceiveMessage::Use::kDone && !*truncated) return false;
  *size = message->size;
  message->use = ReceiveMessage::Use::kFree;
  // NCCL has no receive left to ask for, and may call nothing for long: the sender would ask in vain until the service
  // thread reports. A small message may have an answer, which this would hold up (DeferredAcks).
  if (requests_ == 0 && message->size > kEagerBytes) flush_ack(now);
  return true;
}

bool RecvConnection::uses(const RegisteredMemory* memory) const {
  return std::any_of(std::begin(messages_), std::end(messages_), [&](const ReceiveMessage& message) {
    return message.use == ReceiveMessage::Use::kPosted && message.memory == memory;
  });
}

// Messages are numbered with 64 bits here and 32 on the wire; those that can arrive are near posted_.
uint64_t RecvConnection::message_number(uint32_t low) const {
  int32_t distance = static_cast<int32_t>(low - static_cast<uint32_t>(posted_));
  return posted_ + static_cast<uint64_t>(static_cast<int64_t>(distance));
}

bool RecvConnection::take(uint32_t index, uint64_t chunk, bool* fatal) {
  Lane& lane = lanes_[index];
  lane.last_data_ns = lane.last_received_ns = now_ns_;
  switch (fencing_.begin(index, chunk)) {
    case ReceiverFencing::Arrival::kTake:
      return true;
    case ReceiverFencing::Arrival::kDiscard: {
      RecordChange<fp_plugin_connection> change(record_);
      ++record_->duplicate_chunks;
      return false;
    }
    case ReceiverFencing::Arrival::kViolation:
      *fatal = true;
  }
  return false;
}

uint8_t* RecvConnection::chunk_begins(uint32_t index, const FrameHeader& header, bool* fatal) {
  if (!take(index, header.chunk, fatal)) return nullptr;
  uint64_t number = message_number(header.message);
  if (number < posted_) {
    ReceiveMessage& message = messages_[number % kMaxRequests];
    if (message.number == number && message.use == ReceiveMessage::Use::kPosted) {
      *fatal = message.sized && message.size != header.message_bytes;
      if (*fatal) return nullptr;
      message.sized = true;
      message.size = header.message_bytes;
      if (message.size <= message.capacity) {
        lands_early_[index] = false;
        landing_[index] = &message;
        return header.length ? message.data + header.offset : nowhere;
      }
      truncate(&message);
    }
    *fatal = true;
    return nullptr;
  }
  if (number >= posted_ + kEagerSlots || header.message_bytes > kEagerBytes ||
      header.length != header.message_bytes || early_[number % kEagerSlots].whole) {
    *fatal = true;
    return nullptr;
  }
  lands_early_[index] = true;
  return header.length ? early_slot(number) : nowhere;
}

// Its message is the one in that slot: that of a receive which is posted and not complete is no other's. How long the
// message is, its last chunk says, which may come before others by another lane.
bool RecvConnection::chunk_placed(uint32_t index, const PlacedChunk& placed) {
  ReceiveMessage& message = messages_[placed.message % kMaxRequests];
  const uint64_t end = uint64_t{placed.offset} + placed.length;
  FrameHeader header;
  header.flags = kFlagNoStamp;
  header.chunk = fencing_.held().number_of(placed.chunk);
  header.message = static_cast<uint32_t>(message.number);
  header.offset = placed.offset;
  header.length = placed.length;
  bool fatal = false;
  if (!take(index, header.chunk, &fatal)) return !fatal;
  if (message.use != ReceiveMessage::Use::kPosted || end > message.capacity) return false;
  if (message.sized && (placed.last ? end != message.size : end > message.size)) return false;
  if (placed.last) {
    message.sized = true;
    message.size = static_cast<uint32_t>(end);
  }
  lands_early_[index] = false;
  chunk_ends(index, header);
  return true;
}

void RecvConnection::note_delay(const FrameHeader& header, Lane* lane) {
  if (header.flags & kFlagNoStamp) return;
  const bool fleet = (header.flags & kFlagFleetStamp) != 0;
  int64_t arrived_ns = static_cast<int64_t>(now_ns_);
  delay_of_ = fleet ? kDelayFleet : kDelayOwnClocks;
  if (fleet && !runtime_->fleet_clock(&arrived_ns)) delay_of_ = kDelayNone;
  // Unsigned: the stamp is whatever the peer has written.
  delay_ns_ = static_cast<int64_t>(static_cast<uint64_t>(arrived_ns) - static_cast<uint64_t>(header.stamp));
  delay_lane_ = lane->index;
  if (delay_of_ != kDelayFleet) return;
  lane->record->delay_source = FP_DELAY_FLEET;
  delay_add(&lane->record->delay, delay_ns_);
}

void RecvConnection::chunk_ends(uint32_t index, const FrameHeader& header) {
  Lane& lane = lanes_[index];
  fencing_.complete(index);
  landing_[index] = nullptr;
  last_lane_ = index;
  ++unreported_chunks_;
  if (requests_ > 0 && last_progress_ns_ > 0 && elapsed(now_ns_, last_progress_ns_) > record_->stall_ns_max) {
    RecordChange<fp_plugin_connection> change(record_);
    record_->stall_ns_max = elapsed(now_ns_, last_progress_ns_);
  }
  progress_made(now_ns_);
  {
    RecordChange<fp_plugin_lane> change(lane.record);
    lane.record->received_bytes += header.length;
    ++lane.record->received_chunks;
    lane.record->last_progress_mono_ns = now_ns_;
    note_delay(header, &lane);
  }
  if (lane.state == FP_LANE_SLOW_START) set_state(&lane, FP_LANE_UP, FP_REASON_NONE, now_ns_);
  uint64_t number = message_number(header.message);
  bool was_early = lands_early_[index];
  if (number >= posted_) {
    Early& early = early_[number % kEagerSlots];
    early.whole = true;
    early.message = number;
    early.size = header.length;
    return;
  }
  ReceiveMessage& message = messages_[number % kMaxRequests];
  if (message.number != number || message.use != ReceiveMessage::Use::kPosted) return;
  if (was_early) {  // the receive was posted while the message was landing in its slot
    message.sized = true;
    message.size = header.length;
    if (message.size > message.capacity) {
      truncate(&message);
      return;
    }
    memcpy(message.data, early_slot(number), message.size);
  }
  message.received += header.length;
  if (message.sized && message.received == message.size) finish(&message);
}

uint32_t RecvConnection::posted_receives(PostedReceive* out, uint32_t most, uint64_t* next) const {
  uint32_t count = 0;
  uint64_t number = std::max(*next, first_message_);
  for (; number < posted_ && count < most; ++number) {
    const ReceiveMessage& message = messages_[number % kMaxRequests];
    if (message.number != number || message.use != ReceiveMessage::Use::kPosted) continue;
    out[count++] = {static_cast<uint32_t>(number),
                    static_cast<uint32_t>(std::min<uint64_t>(message.capacity, UINT32_MAX)), message.data,
                    message.memory};
  }
  *next = number;
  return count;
}

void RecvConnection::state(HeldState* out) const {
  fencing_.write(out);
  out->posted = posted_;
  out->disabled = disabled_mask();
}

// The lane by which the last chunk came, unless what is sent there may be lost.
Lane* RecvConnection::report_lane() {
  auto trust = [](const Lane& lane) {
    return !lane.transport->proven() ? 1 : lane.doubtful || lane.timer.suspect() ? 2 : 3;
  };
  Lane* lane = last_lane_ < lanes_.size() && lanes_[last_lane_].up ? &lanes_[last_lane_] : nullptr;
  for (Lane& other : lanes_)
    if (other.up && (lane == nullptr || trust(other) > trust(*lane))) lane = &other;
  return lane;
}

void RecvConnection::report(uint64_t now) {
  Lane* lane = report_lane();
  if (lane == nullptr) return;
  FrameHeader header;
  header.type = FrameType::kState;
  header.length = sizeof(HeldState);
  header.offset = delay_lane_;
  header.stamp = delay_ns_;
  header.message = delay_of_;
  HeldState body;
  state(&body);
  if (!lane->transport->post_state(header, &body)) return;
  reported_lane_ = lane->index;
  delay_of_ = kDelayNone;
  unreported_chunks_ = 0;
  reported_posted_ = posted_;
  reported_disabled_ = body.disabled;
  flush_lane(lane, now);
  if (!lane->up) ++unreported_chunks_;  // it went down with the lane: report again on another
}

void RecvConnection::after_poll(uint64_t now, bool progress) {
  // While chunks keep coming one state frame can acknowledge several; as soon as none comes, the sender may be
  // waiting for it.
  bool chunks = unreported_chunks_ >= kReportChunks || (unreported_chunks_ > 0 && !progress);
  bool receives = reported_posted_ != posted_ && (large_ || unreported_chunks_ > 0 || many_unreported());
  if (chunks || (receives && (!progress || large_))) report(now);
  for (Lane& lane : lanes_) flush_lane(&lane, now);
}

bool RecvConnection::hot(const Lane& lane, uint64_t now) const {
  return (requests_ > 0 && lane.index == last_lane_) || elapsed(now, lane.last_data_ns) < kHotNs ||
         lane.transport->backlog();
}

void RecvConnection::send_fenced(uint32_t index, uint32_t epoch, fp_lane_reason reason, uint64_t now) {
  FrameHeader header;
  header.type = FrameType::kFenced;
  header.length = sizeof(HeldState);
  header.offset = index;
  header.message = epoch;
  header.message_bytes = reason;
  HeldState body;
  state(&body);
  for (Lane& carrier : lanes_)
    if (carrier.up) carrier.transport->post_state(header, &body);
  for (Lane& carrier : lanes_) flush_lane(&carrier, now);
}

// Said again for a while: the lanes that carried it first may have been about to fail, and a sender that does
// not know of the fault does not ask.
void RecvConnection::repeat_fenced(uint64_t now) {
  if (lost_ || closed_ || elapsed(now, fenced_sent_ns_) < kFencedAgainNs) return;
  for (Lane& lane : lanes_) {
    if (lane.up || lane.draining || lane.down_since_ns == 0 ||
        elapsed(now, lane.down_since_ns) > kFencedForNs)
      continue;
    send_fenced(lane.index, fencing_.epoch(lane.index), lane.reason, now);
    fenced_sent_ns_ = now;
  }
}

void RecvConnection::on_lane_failed(Lane* lane, fp_lane_reason reason, uint64_t now) {
  landing_[lane->index] = nullptr;
  fencing_.close(lane->index, fencing_.epoch(lane->index));
  ++unreported_chunks_;  // what was reported on that lane may be lost
  if (lane->draining) fencing_.drains(lane->index);
  if (lane->draining) return;  // on_tick() reports it once nothing lands any more
  if (!lost_ && !closed_) send_fenced(lane->index, fencing_.epoch(lane->index), reason, now);
}

bool RecvConnection::on_state_frame(uint32_t, const FrameHeader& header, const HeldState&) {
  if (header.type != FrameType::kFence) return false;
  uint32_t index = header.offset;
  if (index >= lanes_.size()) return false;
  uint64_t now = now_ns_;
  Lane& lane = lanes_[index];
  if (lane.up && fencing_.epoch(index) <= header.message) {
    lane.peer_found_silent = header.message_bytes == FP_REASON_STALL;
    fail_lane(index, FP_REASON_PEER, now);  // answers too
    return true;
  }
  fencing_.close(index, header.message);
  if (lane.draining) return true;
  send_fenced(index, header.message, FP_REASON_PEER, now);
  return true;
}

void RecvConnection::on_tick(uint64_t now) {
  for (Lane& lane : lanes_) {
    if (!lane.draining) continue;
    settle(&lane);
    fencing_.drained(lane.index);
    if (!lost_ && !closed_) send_fenced(lane.index, fencing_.epoch(lane.index), lane.reason, now);
  }
  for (Lane& lane : lanes_) {
    if (!lane.named) continue;
    bool want = wanted_here(lane);
    if (lane.up && !want && !lane.spare && lanes_healthy() > 0) fail_lane(lane.index, FP_REASON_COMMAND, now);
    if (!lane.up && !wanted(lane) && lane.state != FP_LANE_DISABLED)
      set_state(&lane, FP_LANE_DISABLED, FP_REASON_COMMAND, now);
    if (!lane.up && wanted(lane) && lane.state == FP_LANE_DISABLED)
      set_state(&lane, FP_LANE_DOWN, lane.reason, now);
  }
  repeat_fenced(now);
  // The sender may wait for the last report, about a receive that is posted perhaps: not until the lane is given up.
  const Lane* better = lanes_[reported_lane_].up ? report_lane() : nullptr;
  if (lanes_[reported_lane_].timer.suspect() && better != nullptr && better->index != reported_lane_)
    report(now);
  if (unreported_chunks_ > 0 || reported_posted_ != posted_ || reported_disabled_ != disabled_mask())
    report(now);
  for (Lane& lane : lanes_) flush_lane(&lane, now);
}

HelloStatus RecvConnection::hello(const Hello& hello, uint32_t nic, HeldState* held, uint64_t now) {
  now_ns_ = now;
  if (lost_ || hello.lane >= kMaxLanes) {
    state(held);
    return HelloStatus::kUnknown;
  }
  if (truncated_ || closed_) {
    state(held);
    return HelloStatus::kClosed;
  }
  while (hello.lane >= lanes_.size()) make_lane(device_, now);  // a NIC has come, here or there
  Lane& lane = lanes_[hello.lane];
  lane.nic = nic;
  lane.remote_nic = hello.device;
  lane.named = true;
  lane.spare = hello.flags & kHelloSpare;
  bool refused = (!wanted_here(lane) && !(hello.flags & kHelloLastResort)) ||
                 (lane.spare && runtime_->nic_spare_use(nic) == SpareUse::kNone);
  bool accepted = false;
  if (!refused) {
    if (lane.up && hello.epoch > fencing_.epoch(hello.lane))
      fail_lane(hello.lane, hello.flags & kHelloRepath ? FP_REASON_REPATH : FP_REASON_PEER, now);
    settle(&lane);
    fencing_.drained(hello.lane);
    accepted = fencing_.hello(hello.lane, hello.epoch);
  }
  state(held);
  retired_transports_.clear();
  if (refused) return HelloStatus::kDisabled;
  return accepted ? HelloStatus::kOk : HelloStatus::kStale;
}

void RecvConnection::attach(uint32_t index, uint32_t epoch, std::unique_ptr<LaneTransport> transport,
                            uint64_t now) {
  now_ns_ = now;
  Lane& lane = lanes_[index];
  if (closed_ || lost_ || !fencing_.open(index) || fencing_.epoch(index) != epoch || lane.up) {
    transport->close(false);
    return;
  }
  lane_joined(&lane, std::move(transport), epoch, now);
  lane.last_resort = !wanted_here(lane);
  if (lanes_up() == 1) last_lane_ = index;
  ++unreported_chunks_;
}

fp_wait RecvConnection::waits_for() const {
  if (requests_ == 0) return FP_WAIT_NOTHING;
  if (lanes_up() == 0) return FP_WAIT_LANE;
  return messages_[first_message_ % kMaxRequests].received > 0 ? FP_WAIT_ARRIVAL : FP_WAIT_PEER_SEND;
}

uint64_t RecvConnection::oldest_request_ns() const {
  return requests_ == 0 ? 0 : messages_[first_message_ % kMaxRequests].posted_ns;
}

uint64_t RecvConnection::missing_bytes() const {
  if (requests_ == 0) return 0;
  const ReceiveMessage& oldest = messages_[first_message_ % kMaxRequests];
  return oldest.sized ? oldest.size - oldest.received : 0;
}

}  // namespace fabricpulse
