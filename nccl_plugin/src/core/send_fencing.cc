// What the receiver reports to its sender, and what a lane that has failed means to it: chunks that are held, receives
// that are posted, lanes that are closed there, and the fences that ask for it.
#include <algorithm>

#include "core/send_connection.h"

namespace fabricpulse {
namespace {

constexpr uint64_t kFenceAgainNs = 20'000'000;

}  // namespace

// NCCL may free the buffer of a message that is done, so a lane that still reads from it has to end before
// anything is sent again. No honest peer holds what has not left.
void SendConnection::fail_early(uint64_t now) {
  for (Lane& lane : lanes_)
    if ((early_ >> lane.index) & 1) fail_lane(lane.index, FP_REASON_PROTOCOL, now);
  early_ = 0;
}

void SendConnection::note_receive(const PeerReceive& receive) {
  const uint32_t at = receive.message % kMaxRequests;
  // An old state frame may come late. The memory of one receive never changes, but a NIC that comes adds its key, and one
  // that has another device now has another key. A late frame may bring the old key back: the device there refuses what is
  // written by it, as memory that has that key by now does not lie at this address, which costs a lane and no data.
  const int32_t newer =
      receive_known_[at] ? static_cast<int32_t>(receive.message - receives_[at].message) : 1;
  if (newer == 0)
    for (uint32_t nic = 0; nic < kMaxNics; ++nic)
      if (receive.keys[nic] != 0) receives_[at].keys[nic] = receive.keys[nic];
  if (newer <= 0) return;
  receives_[at] = receive;
  receive_known_[at] = true;
}

const PeerReceive* SendConnection::peer_receive(uint32_t message) const {
  uint32_t at = message % kMaxRequests;
  return receive_known_[at] && receives_[at].message == message ? &receives_[at] : nullptr;
}

void SendConnection::note_peer_state(const HeldState& state) {
  if (state.posted > posted_) posted_ = state.posted;
  bool changed = false;
  for (Lane& lane : lanes_) {
    bool disabled = (state.disabled >> lane.index) & 1;
    changed |= disabled != lane.peer_disabled;
    lane.peer_disabled = disabled;
  }
  if (changed) runtime_->wake();
}

bool SendConnection::on_state_frame(uint32_t index, const FrameHeader& header, const HeldState& body) {
  uint64_t now = now_ns_;
  auto on_held = [&](uint64_t chunk, uint8_t lane) { held(chunk, lane, now); };
  switch (header.type) {
    case FrameType::kState:
    case FrameType::kBye:
    case FrameType::kFenced: {
      if (header.type != FrameType::kFenced) lanes_[index].last_data_ns = now;
      if (header.type == FrameType::kState && header.message != kDelayNone && header.offset < lanes_.size())
        flow_[header.offset].forward.measured(header.stamp, header.message, now);
      if (!fencing_.apply(body, on_held)) return false;
      note_peer_state(body);
      bool command = header.type == FrameType::kFenced && header.message_bytes == FP_REASON_COMMAND;
      if (header.type == FrameType::kFenced && header.message_bytes == FP_REASON_STALL &&
          header.offset < lanes_.size() &&
          lane_epoch(header.offset) <= header.message)  // the frame may be late
        lanes_[header.offset].peer_found_silent = lanes_[header.offset].up;
      note_closed(body, command ? FP_REASON_COMMAND : FP_REASON_PEER, now);
      fail_early(now);
      return true;
    }
    default:
      return false;
  }
}

// The peer may have been first to see a fault.
void SendConnection::note_closed(const HeldState& state, fp_lane_reason reason, uint64_t now) {
  auto on_held = [&](uint64_t chunk, uint8_t lane) { held(chunk, lane, now); };
  for (Lane& lane : lanes_) {
    const uint32_t l = lane.index;
    if (!fencing_.closed_there(l, state)) continue;
    fail_lane(l, reason, now);
    uint32_t moved = 0;
    auto on_move = [&](uint64_t chunk) { await_lane(chunk, lane), ++moved; };
    if (!fencing_.fenced(l, state.closed[l], state, on_held, on_move)) continue;
    event(FP_EVENT_LANE_FENCED, &lane, lane.reason, elapsed(now, flow_[l].failed_ns), now);
    set_state(&lane, wanted(lane) ? FP_LANE_DOWN : FP_LANE_DISABLED, lane.reason, now);
    flow_[l].in_flight = 0;
    if (moved == 0) continue;
    event(FP_EVENT_CHUNKS_MOVED, &lane, lane.reason, moved, now);
    RecordChange<fp_plugin_connection> change(record_);
    ++record_->failovers;
    record_->resent_chunks += moved;
  }
}

void SendConnection::peer_closed(const HeldState& state, uint64_t now) {
  now_ns_ = now;
  auto on_held = [&](uint64_t chunk, uint8_t lane) { held(chunk, lane, now); };
  if (fencing_.apply(state, on_held)) bye_received_ = true;
  fail_early(now);
}

void SendConnection::on_lane_failed(Lane* lane, fp_lane_reason reason, uint64_t now) {
  Flow& flow = flow_[lane->index];
  fencing_.fail(lane->index);
  set_state(lane, FP_LANE_FENCING, reason, now);
  flow.failed_ns = now;
  flow.fence_sent_ns = 0;
  flow.next_dial_ns = now + flow.backoff_ns;
  flow.in_vain = !lane->proven;
  flow.cautious = reason == FP_REASON_STALL || reason == FP_REASON_DEADLINE || reason == FP_REASON_PEER;
  if (reason == FP_REASON_REPATH) flow.next_dial_ns = now;
  if (reason != FP_REASON_REPATH) flow.repath = false;
  // Out of lanes: no lane can carry the fence, so every lane is dialled at once; the hello fences too.
  if (lanes_up() == 0)
    for (Flow& other : flow_) other.next_dial_ns = std::min(other.next_dial_ns, now + 1'000'000);
  if (!lost_ && !closed_) send_fences(now, false);
}

void SendConnection::send_fences(uint64_t now, bool again) {
  for (Lane& lane : lanes_) {
    const auto& view = fencing_.lane(lane.index);
    Flow& flow = flow_[lane.index];
    if (view.phase != SenderFencing::Phase::kFencing) continue;
    if (flow.fence_sent_ns != 0 && !(again && elapsed(now, flow.fence_sent_ns) >= kFenceAgainNs)) continue;
    FrameHeader fence;
    fence.type = FrameType::kFence;
    fence.offset = lane.index;
    fence.message = view.epoch;
    fence.message_bytes = lane.reason;
    // On every lane: the next fault may be in one of them.
    for (Lane& carrier : lanes_) {
      if (!carrier.up || !carrier.transport->post_state(fence, nullptr)) continue;
      flow.fence_sent_ns = now;
    }
  }
  for (Lane& lane : lanes_) flush_lane(&lane, now);
}

}  // namespace fabricpulse
