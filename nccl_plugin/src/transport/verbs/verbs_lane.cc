#include "transport/verbs/verbs_lane.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/monotonic.h"
#include "transport/verbs/send_requests.h"
#include "transport/verbs/verbs_slots.h"

namespace fabricpulse {
namespace {

constexpr uint32_t kQueue = kChunkWindow;  // chunks that wait
constexpr uint32_t kMostPolled = 256;      // completions of one poll
constexpr int kPolledAtOnce = 16;
// Control frames taken in before the peer gets credits: half of its slots.
constexpr uint32_t kCreditsAt = kControlSlots / 2;
constexpr uint64_t kStampEveryNs = 5'000'000;  // a chunk of a lane goes with a stamp so often
// Busy hosts acknowledge late: a silence of less than 36 ms proves nothing, whatever the round trip was before.
constexpr uint64_t kLeastDeviationNs = 9'000'000;
// Chunks of up to 20 ms: well below what the stall timer takes for silence on a lone lane.
constexpr uint32_t kStretchAlone = 5;
constexpr uint32_t kPortBase = 0xc000;  // how a RoCE v2 source port comes from a flow label of 14 bits

class VerbsLane final : public LaneTransport {
 public:
  VerbsLane(std::unique_ptr<VerbsPair> pair, int fd, uint32_t peer_nic, const NicDevices* nics,
            std::shared_ptr<VerbsReaper> reaper)
      : pair_(std::move(pair)),
        reaper_(std::move(reaper)),
        nics_(*nics),
        fd_(fd),
        peer_nic_(peer_nic),
        sender_(pair_->which() == VerbsPair::End::kSender),
        ids_((uint64_t{pair_->setup().number} << 24) | pair_->peer().number),
        entropy_(kPortBase | pair_->setup().flow_label) {
    // The end that was dialled may send once this queue pair's first frame is here: only then is it known to listen.
    ready_ = credit_due_ = sender_;
  }
  ~VerbsLane() override {
    close(false);
    hand_over(false);
  }

  fp_lane_transport kind() const override { return FP_LANE_VERBS; }
  void attach(LaneSink* sink) override { sink_ = sink; }

  bool post_chunk(const FrameHeader& header, const void* payload, const RegisteredMemory* memory) override {
    if (closed_ || !sender_ || tail_ - head_ >= kQueue) return false;
    const uint64_t queued_ns = header.flags & kFlagNoStamp ? 0 : monotonic_ns();
    queue_[tail_ % kQueue] = {header, payload, static_cast<const VerbsMemory*>(memory), queued_ns};
    ++tail_;
    return true;
  }

  bool stamp_due(uint64_t now) override {
    if (now < stamped_ns_ + kStampEveryNs) return false;
    stamped_ns_ = now;
    return true;
  }

  bool post_state(const FrameHeader& header, const HeldState* body) override {
    if (closed_ || control_tail_ - control_acknowledged_ >= kControlSlots) return false;
    uint32_t index = control_tail_ % kControlSlots;
    auto* slot = reinterpret_cast<ControlSlot*>(pair_->control_out(index));
    *slot = ControlSlot{};
    slot->header = header;
    size_t size = sizeof(ControlSlot);
    if (body != nullptr) {
      slot->held = *body;
      size += name_receives(slot);
    }
    control_bytes_[index] = static_cast<uint32_t>(size);
    ++control_tail_;
    return true;
  }

  uint32_t chunks_taken() const override { return head_; }
  bool backlog() const override { return !closed_ && (head_ != tail_ || control_sent_ != control_tail_); }

  LaneStatus flush() override {
    if (closed_ || !ready_) return LaneStatus::kIdle;
    LaneStatus status = LaneStatus::kIdle;
    do {
      requests_.begin();
      if (credit_due_ && requests_.room() > 0) tell_credit();
      while (control_sent_ != control_tail_ && requests_.fit(1)) tell_control();
      bool waits = false;
      while (head_ != tail_ && requests_.fit(2) && !waits && !failed_) waits = !tell_chunk();
      if (failed_) return LaneStatus::kFailed;
      if (requests_.empty()) return status;
      if (!requests_.post()) return LaneStatus::kFailed;
      status = LaneStatus::kProgress;
    } while (requests_.batch_full());
    return status;
  }

  // What completes of this end's own is taken in here: it gives nothing to do unless something waits for room, or it is
  // the first and proves the path.
  bool may_have_arrived() override {
    if (closed_) return false;
    bool wanted = ended_;
    while (found_count_ == 0) {
      found_count_ = poll_queue(found_, kPolledAtOnce);
      if (found_count_ == 0) return wanted;
      const bool unproven = !proven();
      if (found_count_ < 0 || !take_own(found_, found_count_)) return true;
      wanted |= unproven || credit_due_ || backlog();
      moved_ += static_cast<uint64_t>(std::exchange(found_count_, 0));
    }
    return true;
  }

  LaneStatus poll(uint32_t lane, LaneSink* sink) override {
    if (closed_) return LaneStatus::kIdle;
    LaneStatus status = LaneStatus::kIdle;
    uint32_t total = 0, taken = 0;
    while (total < kMostPolled) {
      int count = may_have_arrived() ? std::exchange(found_count_, 0) : 0;
      if (count < 0) return LaneStatus::kFailed;
      if (count == 0) break;
      total += static_cast<uint32_t>(count);
      moved_ += static_cast<uint64_t>(count);
      for (int i = 0; i < count; ++i) {
        if (found_[i].status != ib::kSuccess) return LaneStatus::kFailed;
        if (requests_.completed(found_[i])) continue;
        ++taken;
        ready_ = true;
        status = LaneStatus::kProgress;
        if (!on_immediate(lane, sink, ntohl(found_[i].immediate), found_[i].bytes))
          return LaneStatus::kProtocol;
        if (closed_) return status;
      }
    }
    // Before the connection reports what has come: the peer may then send as much again.
    if (taken > 0 && !pair_->post_receives(taken)) return LaneStatus::kFailed;
    if (credit_due_ && flush() == LaneStatus::kFailed) return LaneStatus::kFailed;
    // What came before the end has been read.
    if (total == 0 && ended_) return reset_ ? LaneStatus::kFailed : LaneStatus::kEnded;
    return status;
  }

  PathSample sample() const override {
    PathSample sample;
    if (closed_) return sample;
    if (moved_ == checked_) check_socket();
    checked_ = moved_;
    sample.valid = true;
    sample.unacknowledged = requests_.under_way();
    sample.acknowledged = requests_.completed_total();
    sample.rtt_ns = requests_.rtt_ns();
    sample.rtt_deviation_ns = std::max(requests_.rtt_deviation_ns(), kLeastDeviationNs);
    sample.ahead = requests_.ahead();
    return sample;
  }

  bool peek(uint32_t* unacknowledged, uint64_t* acknowledged) const override {
    *unacknowledged = requests_.under_way();
    *acknowledged = requests_.completed_total();
    return true;
  }

  // The ends have connected over TCP, which proves nothing about queue pairs. The sender's first frames are
  // acknowledged, or have arrived at the receiver.
  bool proven() const override { return sender_ ? requests_.completed_total() > 0 : ready_; }
  bool state_frames_wait() const override { return true; }
  int wait_fd() const override { return -1; }
  uint32_t stretch_alone() const override { return kStretchAlone; }
  uint64_t queue_pair() const override { return ids_; }
  uint32_t entropy() const override { return entropy_; }

  void close(bool orderly) override {
    if (closed_) return;
    closed_ = true;
    requests_.forget();
    if (orderly) hand_over(true);
  }
  // The receiving end's buffers are the peer's to write until the queue pair is ended.
  bool lands_after_close() const override { return closed_ && !sender_ && pair_ != nullptr; }
  void quiesce() override {
    if (pair_) pair_->end();
    hand_over(false);
  }

 private:
  struct Outgoing {
    FrameHeader header;
    const void* payload = nullptr;
    const VerbsMemory* memory = nullptr;
    uint64_t queued_ns = 0;  // of one with a stamp
  };

  // Takes them in if all are of what was sent here, and none has failed.
  bool take_own(const ib::WorkCompletion* found, int count) {
    const auto sent = [](const ib::WorkCompletion& one) {
      return one.status == ib::kSuccess && SendRequests::sent(one);
    };
    if (!std::all_of(found, found + count, sent)) return false;
    for (int i = 0; i < count; ++i) (void)requests_.completed(found[i]);
    return true;
  }

  int poll_queue(ib::WorkCompletion* out, int most) {
    ib::CompletionQueue* queue = pair_->completions();
    return queue->context->ops.poll_cq(queue, most, out);
  }

  void hand_over(bool linger) {
    if (pair_) reaper_->take(std::move(pair_), fd_, linger);
    fd_ = -1;
  }

  // ---- sending ----
  static uint32_t immediate(Immediate kind, uint32_t value) {
    return htonl((static_cast<uint32_t>(kind) << kImmediateShift) | (value & kImmediateMask));
  }

  void tell_credit() {
    credit_due_ = false;
    credited_ = control_taken_;
    const VerbsSetup& peer = pair_->peer();
    requests_.add(ib::kWriteWithImmediate, peer.control, peer.key)->immediate =
        immediate(Immediate::kCredit, control_taken_);
  }

  void tell_control() {
    uint32_t index = control_sent_++ % kControlSlots;
    const VerbsSetup& peer = pair_->peer();
    ib::SendRequest* request =
        requests_.add(ib::kWriteWithImmediate, peer.control + index * kControlSlotBytes, peer.key);
    request->immediate = immediate(Immediate::kControl, index);
    requests_.set_bytes(request, pair_->control_out(index), control_bytes_[index], pair_->local_key());
  }

  // False: it has to wait for the peer to name its receive.
  bool tell_chunk() {
    const Outgoing& out = queue_[head_ % kQueue];
    const FrameHeader& header = out.header;
    const PeerReceive* receive = header.length > kMostInSlot ? sink_->peer_receive(header.message) : nullptr;
    const bool fits = receive != nullptr && header.message_bytes <= receive->capacity;
    if (fits && (header.flags & kFlagNoStamp) && PlacedChunk::has_room(header.offset)) {
      PlacedChunk placed;
      placed.chunk = static_cast<uint32_t>(header.chunk % kChunkWindow);
      placed.message = header.message;
      placed.offset = header.offset;
      placed.last = header.offset + header.length == header.message_bytes;
      ib::SendRequest* write = write_payload(out, ib::kWriteWithImmediate, receive->address + header.offset,
                                             receive->keys[peer_nic_]);
      if (write == nullptr) return true;
      write->immediate = htonl(immediate_of(placed));
      ++head_;
      return true;
    }
    auto* slot = reinterpret_cast<ChunkSlot*>(pair_->chunk_slot(header.chunk));
    slot->header = header;
    // The one-way delay counts from here: what a chunk waits for the device or for its receive is not the path's.
    if (!(header.flags & kFlagNoStamp))
      slot->header.stamp += static_cast<int64_t>(monotonic_ns() - out.queued_ns);
    uint32_t slot_bytes = kSlotHead;
    const VerbsSetup& peer = pair_->peer();
    if (header.length <= kMostInSlot) {
      slot->place = Place::kInSlot;
      if (header.length > 0) memcpy(slot->payload, out.payload, header.length);
      slot_bytes += header.length;
    } else if (fits) {
      slot->place = Place::kDirect;
      write_payload(out, ib::kWrite, receive->address + header.offset, receive->keys[peer_nic_]);
    } else if (receive != nullptr) {
      slot->place = Place::kTooLarge;
    } else if ((header.flags & kFlagEarly) && header.length <= kEagerBytes) {
      slot->place = Place::kEarly;
      write_payload(out, ib::kWrite, peer.early + size_t{header.message % kEagerSlots} * kEagerBytes,
                    peer.key);
    } else {
      return false;
    }
    if (failed_) return true;
    uint32_t index = header.chunk % kChunkWindow;
    ib::SendRequest* request =
        requests_.add(ib::kWriteWithImmediate, peer.chunks + index * kChunkSlotBytes, peer.key);
    request->immediate = immediate(Immediate::kChunk, index);
    requests_.set_bytes(request, slot, slot_bytes, pair_->local_key());
    ++head_;
    return true;
  }

  // nullptr: the memory is not registered with this NIC, here or there, and the lane has failed.
  ib::SendRequest* write_payload(const Outgoing& out, uint32_t opcode, uint64_t address, uint32_t key) {
    ib::MemoryRegion* region = out.memory != nullptr
                                   ? out.memory->regions[pair_->device()].load(std::memory_order_acquire)
                                   : nullptr;
    failed_ |= region == nullptr || key == 0;
    if (failed_) return nullptr;
    ib::SendRequest* request = requests_.add(opcode, address, key);
    requests_.set_bytes(request, out.payload, out.header.length, region->local_key);
    return request;
  }

  // ---- receiving ----
  // False: not our protocol.
  bool on_immediate(uint32_t lane, LaneSink* sink, uint32_t immediate, uint32_t bytes) {
    if (immediate & kPlaced) return !sender_ && sink->chunk_placed(lane, placed_chunk(immediate, bytes));
    uint32_t value = immediate & kImmediateMask;
    switch (static_cast<Immediate>(immediate >> kImmediateShift)) {
      case Immediate::kChunk:
        return !sender_ && value < kChunkWindow && take_chunk(lane, sink, value);
      case Immediate::kControl:
        return value < kControlSlots && take_control(lane, sink, value);
      case Immediate::kCredit: {
        uint32_t more = (value - control_acknowledged_) & kImmediateMask;
        if (more > control_sent_ - control_acknowledged_) return false;
        control_acknowledged_ += more;
        return true;
      }
    }
    return false;
  }

  bool take_chunk(uint32_t lane, LaneSink* sink, uint32_t index) {
    const auto* slot = reinterpret_cast<const ChunkSlot*>(pair_->chunk_slot(index));
    FrameHeader header = slot->header;
    if (header.type != FrameType::kChunk || !frame_plausible(header)) return false;
    const uint8_t* from = nullptr;
    switch (slot->place) {
      case Place::kDirect:
      case Place::kTooLarge:
        break;
      case Place::kInSlot:
        if (header.length > kMostInSlot) return false;
        from = slot->payload;
        break;
      case Place::kEarly:
        if (header.length > kEagerBytes) return false;
        from = pair_->early(header.message);
        break;
      default:
        return false;
    }
    bool fatal = false;
    uint8_t* target = sink->chunk_begins(lane, header, &fatal);
    if (fatal) return false;
    if (closed_ || target == nullptr) return true;
    if (slot->place == Place::kTooLarge) return false;
    if (from != nullptr && header.length > 0) memcpy(target, from, header.length);
    sink->chunk_ends(lane, header);
    return true;
  }

  bool take_control(uint32_t lane, LaneSink* sink, uint32_t index) {
    const auto* slot = reinterpret_cast<const ControlSlot*>(pair_->control_in(index));
    FrameHeader header = slot->header;
    HeldState held = slot->held;
    if (header.type == FrameType::kChunk || !frame_plausible(header)) return false;
    if (header.length > 0 && sender_ && !note_receives(sink, slot)) return false;
    if (++control_taken_ - credited_ >= kCreditsAt) credit_due_ = true;
    return sink->state_frame(lane, header, held);
  }

  // Each receive once: this queue pair delivers what it is given, or fails, and another one names them all again. Again,
  // too, when a NIC has come or has another device, for its key.
  size_t name_receives(ControlSlot* slot) {
    uint32_t keys = 0;
    std::array<int, kMaxNics> devices;
    for (uint32_t nic = 0; nic < kMaxNics; ++nic) {
      devices[nic] = nics_[nic].load(std::memory_order_relaxed);
      if (devices[nic] >= 0) keys = nic + 1;
    }
    if (devices != named_on_) named_ = 0;
    named_on_ = devices;
    PostedReceive receives[kMostReceives];
    const uint32_t count = sink_->posted_receives(receives, receives_that_fit(keys), &named_);
    return write_receives(slot, receives, count, keys, [&](const PostedReceive& receive, uint32_t nic) {
      const auto* memory = static_cast<const VerbsMemory*>(receive.memory);
      const int device = devices[nic];
      ib::MemoryRegion* region = memory != nullptr && device >= 0
                                     ? memory->regions[device].load(std::memory_order_acquire)
                                     : nullptr;
      return region != nullptr ? region->remote_key : 0;
    });
  }

  static bool note_receives(LaneSink* sink, const ControlSlot* slot) {
    return read_receives(slot, [sink](const PeerReceive& receive) { sink->note_receive(receive); });
  }

  // The kernel ends the socket of a process that ends; nothing is ever sent on it. Not asked while anything completes.
  void check_socket() const {
    if (fd_ < 0 || ended_) return;
    uint8_t byte;
    ssize_t got = recv(fd_, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    ended_ = true;
    reset_ = got != 0;
  }

  std::unique_ptr<VerbsPair> pair_;
  const std::shared_ptr<VerbsReaper> reaper_;
  const NicDevices& nics_;
  LaneSink* sink_ = nullptr;
  int fd_;
  const uint32_t peer_nic_;
  const bool sender_;
  const uint64_t ids_;
  const uint32_t entropy_;
  bool closed_ = false, ready_ = false, failed_ = false;
  mutable bool ended_ = false, reset_ = false;
  ib::WorkCompletion found_[kPolledAtOnce];
  int found_count_ = 0;           // of them, which poll() has not seen yet; below 0: the device has refused
  uint64_t moved_ = 0;            // completions
  mutable uint64_t checked_ = 0;  // of which so many were there at the last look at the socket

  Outgoing queue_[kQueue];
  uint32_t head_ = 0, tail_ = 0;
  // Control frames: written by us, given to the device, consumed by the peer; and the peer's that we have taken.
  uint32_t control_tail_ = 0, control_sent_ = 0, control_acknowledged_ = 0, control_taken_ = 0, credited_ = 0;
  uint32_t control_bytes_[kControlSlots] = {};
  bool credit_due_ = false;
  uint64_t named_ = 0;                       // receives below were named here, with keys of
  std::array<int, kMaxNics> named_on_ = {};  // these devices, by NIC
  uint64_t stamped_ns_ = 0;                  // when a chunk was last to have a stamp
  SendRequests requests_{pair_.get()};
};

}  // namespace

std::unique_ptr<LaneTransport> make_verbs_lane(std::unique_ptr<VerbsPair> pair, int fd, uint32_t peer_nic,
                                               const NicDevices* nics, std::shared_ptr<VerbsReaper> reaper) {
  auto lane = std::make_unique<VerbsLane>(std::move(pair), fd, peer_nic, nics, std::move(reaper));
  (void)lane->flush();  // the peer may send once a frame of this queue pair is there
  return lane;
}

}  // namespace fabricpulse
