#include "core/send_connection.h"

#include <algorithm>
#include <cstring>

namespace fabricpulse {
namespace {

constexpr uint32_t kMinChunk = 32 * 1024;
constexpr double kChunkSeconds = 0.004;   // a chunk takes about this long on its lane
constexpr double kWindowSeconds = 0.025;  // bytes in flight on a lane, as time
constexpr uint64_t kMinWindow = 64 * 1024;
constexpr uint64_t kMaxWindow = 8 * 1024 * 1024;
constexpr uint32_t kRateSampleBytes = 32 * 1024;  // smaller chunks measure latency, not rate
constexpr double kSpreadSeconds = 0.002;          // a backlog shorter than this stays on the primary lane
constexpr double kReserveSeconds = 0.100;         // lanes that share a NIC with a better lane
constexpr uint64_t kFenceAgainNs = 20'000'000;
constexpr uint64_t kRateForgetNs = 200'000'000;
constexpr uint64_t kHotNs = 2'000'000;
constexpr uint64_t kWeightsNs = 200'000'000;

}  // namespace

SendConnection::SendConnection(Runtime* runtime, uint64_t id, uint32_t device, uint64_t communicator,
                               const std::vector<NicPair>& lanes)
    : Connection(runtime, Direction::kSend, id, device, communicator) {
  created_ns_ = runtime->now();
  add_lanes(lanes, created_ns_);
  no_lane_since_ns_ = created_ns_;
}

SendMessage* SendConnection::send(const void* data, uint32_t size, uint32_t tag,
                                  const RegisteredMemory* memory, uint64_t now) {
  SendMessage* message = &messages_[next_message_ % kMaxRequests];
  if (message->use != SendMessage::Use::kFree) return nullptr;
  *message = SendMessage{};
  message->use = SendMessage::Use::kPosted;
  message->owner = this;
  message->data = static_cast<const uint8_t*>(data);
  message->memory = memory;
  message->size = size;
  message->tag = tag;
  message->number = next_message_++;
  message->posted_ns = now;
  if (requests_++ == 0) last_progress_ns_ = now;
  now_ns_ = now;
  pump(now);
  return message;
}

bool SendConnection::test(SendMessage* message, uint32_t* size, uint64_t now) {
  if (message->use == SendMessage::Use::kPosted) drive(now);
  if (message->use != SendMessage::Use::kDone) return false;
  *size = message->size;
  message->use = SendMessage::Use::kFree;
  return true;
}

bool SendConnection::sendable(const SendMessage& message) const {
  if (message.number < posted_) return true;
  // Early, into one of the peer's slots: free once the message that had it before is held (see
  // RecvConnection).
  if (message.size > kEagerBytes || message.number >= posted_ + kEagerSlots) return false;
  return message.number < kEagerSlots || message.number - kEagerSlots < first_message_;
}

uint32_t SendConnection::chunk_bytes(const Lane& lane, uint32_t stretch) const {
  const Flow& flow = flow_[lane.index];
  double bytes = flow.rate * kChunkSeconds * stretch;
  if (stretch == 1) bytes = std::min(bytes, static_cast<double>(flow.window));
  if (bytes >= kMaxChunkBytes) return kMaxChunkBytes;
  if (bytes <= kMinChunk) return kMinChunk;
  return static_cast<uint32_t>(bytes) & ~4095u;
}

uint32_t SendConnection::stretch(const Lane& lane) const {
  for (const Lane& other : lanes_)
    if (other.up && !share_nic(other, lane)) return 1;
  return lane.transport->stretch_alone();
}

// The lane that will have delivered `bytes` more first; nullptr if all windows are full.
Lane* SendConnection::choose(uint32_t bytes, uint64_t now) {
  Lane* best = nullptr;
  double best_cost = 0;
  // A weight of 0 keeps a lane free as long as another one that may carry is up.
  bool fixed = false, others = false;
  for (const Lane& lane : lanes_) {
    fixed |= lane.up && lane.fixed_weight >= 0;
    others |= lane.up && lane.fixed_weight != 0 && wanted(lane);
  }
  bool primary_nic_up = false;
  for (Lane& lane : lanes_) {
    if (!lane.up) continue;
    Flow& flow = flow_[lane.index];
    if (lane.index == 0) primary_nic_up = true;
    if (draining(lane, now)) continue;
    const uint32_t alone = stretch(lane);
    uint64_t size = std::min<uint64_t>(bytes, chunk_bytes(lane, alone));
    // Nothing to balance with, and nobody that could take over what is under way.
    const uint64_t window = alone > 1 ? kMaxWindow : flow.window;
    if (flow.in_flight > 0 && flow.in_flight + size > window) continue;
    if (fixed) {
      // Shares by command; a lane without one counts as 1000 / lanes.
      double weight =
          lane.fixed_weight >= 0 ? lane.fixed_weight : 1000.0 / static_cast<double>(lanes_.size());
      if (weight <= 0 && others) continue;
      double cost = static_cast<double>(flow.weighed + size) / std::max(weight, 1e-3);
      if (best == nullptr || cost < best_cost) best = &lane, best_cost = cost;
      continue;
    }
    if (now > flow.rate_at_ns + kRateForgetNs) {
      // An old rate estimate fades, so that a lane is tried again some time after it was slow: up to what the
      // best sibling does, and with little at stake.
      double best_sibling = 0;
      for (const Lane& other : lanes_)
        if (other.up && other.index != lane.index)
          best_sibling = std::max(best_sibling, flow_[other.index].rate);
      double ceiling =
          best_sibling > 0 ? best_sibling : static_cast<double>(runtime_->nic_bytes_per_second(lane.nic));
      flow.rate = std::max(flow.rate, std::min(flow.rate * 1.5, ceiling));
      flow.window = std::min(flow.window, kMinWindow);
      flow.rate_at_ns = now;
    }
    double cost = static_cast<double>(flow.in_flight + size) / std::max(flow.rate, 1.0);
    // NCCL has placed this connection on its NIC; others help when that takes too long.
    if (lane.index != 0) {
      bool shares = false;  // its NIC is used by a lower lane of this connection that is up
      for (const Lane& other : lanes_)
        shares |= other.up && other.index < lane.index && share_nic(other, lane);
      if (primary_nic_up || shares) cost += shares ? kReserveSeconds : kSpreadSeconds;
    }
    if (best == nullptr || cost < best_cost) best = &lane, best_cost = cost;
    if (lane.index == 0 && !runtime_->config().balance) return best;
  }
  return best;
}

bool SendConnection::put(uint64_t number, Lane* lane, uint64_t now) {
  Chunk& chunk = chunks_[number % kChunkWindow];
  SendMessage& message = messages_[chunk.message % kMaxRequests];
  Flow& flow = flow_[lane->index];
  FrameHeader header;
  header.type = FrameType::kChunk;
  header.length = chunk.length;
  header.chunk = number;
  header.message = static_cast<uint32_t>(chunk.message);
  header.message_bytes = message.size;
  header.offset = chunk.offset;
  header.tag = message.tag;
  if (runtime_->fleet_clock(&header.stamp)) {
    header.flags |= kFlagFleetStamp;
  } else {
    header.stamp = static_cast<int64_t>(now);
  }
  if (chunk.message >= posted_) header.flags |= kFlagEarly;
  if (!fencing_.assign(number, lane->index)) return false;
  if (!lane->transport->post_chunk(header, message.data + chunk.offset, message.memory)) {
    // Never: the queue of a lane holds a whole window.
    fail_lane(lane->index, FP_REASON_PROTOCOL, now);
    return false;
  }
  chunk.place = flow.posted++;
  flow.in_flight += chunk.length;
  flow.weighed += chunk.length;
  flow.sent_since += chunk.length;
  chunk.sent_ns = now;
  chunk.ahead = flow.in_flight;
  RecordChange<fp_plugin_lane> change(lane->record);
  lane->record->sent_bytes += chunk.length;
  ++lane->record->sent_chunks;
  if (chunk.moved) ++lane->record->resent_chunks;
  return true;
}

void SendConnection::pump(uint64_t now) {
  full_ = false;
  while (moved_count_ > 0) {
    Chunk& chunk = chunks_[moved_[0] % kChunkWindow];
    Lane* lane = choose(chunk.length, now);
    if (lane == nullptr) full_ = true;
    if (lane == nullptr) break;
    uint64_t number = moved_[0];
    --moved_count_;
    memmove(moved_, moved_ + 1, moved_count_ * sizeof(moved_[0]));
    put(number, lane, now);
  }
  while (moved_count_ == 0 && cut_message_ < next_message_ && fencing_.room()) {
    SendMessage& message = messages_[cut_message_ % kMaxRequests];
    if (!sendable(message)) break;
    uint32_t left = message.size - message.cut;
    Lane* lane = choose(left, now);
    if (lane == nullptr) full_ = true;
    if (lane == nullptr) break;
    uint32_t length = std::min(left, chunk_bytes(*lane, stretch(*lane)));
    if (left - length < kMinChunk / 4 && left <= kMaxChunkBytes)
      length = left;  // avoid a tiny trailing chunk
    uint64_t number = fencing_.add();
    Chunk& chunk = chunks_[number % kChunkWindow];
    chunk = Chunk{};
    chunk.message = message.number;
    chunk.offset = message.cut;
    chunk.length = length;
    message.cut += length;
    if (message.cut == message.size) {
      message.whole = true;
      ++cut_message_;
    }
    put(number, lane, now);
  }
  for (Lane& lane : lanes_) flush_lane(&lane, now);
}

// Its lane is gone; the oldest first.
void SendConnection::await_lane(uint64_t number) {
  chunks_[number % kChunkWindow].moved = true;
  uint32_t at = moved_count_++;
  while (at > 0 && moved_[at - 1] > number) moved_[at] = moved_[at - 1], --at;
  moved_[at] = number;
}

void SendConnection::held(uint64_t number, uint8_t lane_index, uint64_t now) {
  Chunk& chunk = chunks_[number % kChunkWindow];
  if (lane_index != SenderFencing::kNoLane) {
    Lane& lane = lanes_[lane_index];
    Flow& flow = flow_[lane_index];
    if (lane.up && static_cast<int32_t>(chunk.place - lane.transport->chunks_taken()) >= 0)
      early_ |= UINT64_C(1) << lane_index;
    flow.in_flight -= std::min<uint64_t>(flow.in_flight, chunk.length);
    flow.delivered += chunk.length;
    uint64_t took = now > chunk.sent_ns ? elapsed(now, chunk.sent_ns) : 1;
    bool measured = lane.up && chunk.length >= kRateSampleBytes;
    if (measured) {
      double rate = static_cast<double>(chunk.ahead) * 1e9 / static_cast<double>(took);
      double speed = static_cast<double>(runtime_->nic_bytes_per_second(lane.nic)) * 8;
      flow.rate += (std::min(rate, speed) - flow.rate) / 4;
      flow.rate_at_ns = now;
    }
    if (lane.up) {
      // What is under way covers the way back of the words about chunks, which wait behind the data of the other
      // direction: without that one direction starves the other, whose windows shrink with its rate.
      flow.took_ns = flow.took_ns == 0 ? took : flow.took_ns - flow.took_ns / 8 + took / 8;
      const uint64_t back_ns = lane.transport->words_wait() ? flow.forward.way_back(flow.took_ns) : 0;
      lane.transport->note_way_back(back_ns);
      uint64_t wanted =
          static_cast<uint64_t>(flow.rate * (kWindowSeconds + static_cast<double>(back_ns) * 1e-9));
      wanted = std::min(std::max(wanted, kMinWindow), kMaxWindow);
      if (flow.slow_start) {
        flow.window += chunk.length;  // doubles each round trip
        if (flow.window >= wanted) {
          flow.slow_start = false;
          set_state(&lane, FP_LANE_UP, FP_REASON_NONE, now);
        }
      }
      if (measured && !flow.slow_start) flow.window = wanted;
    }
    RecordChange<fp_plugin_lane> change(lane.record);
    lane.record->acknowledged_bytes += chunk.length;
    lane.record->delivery_rate = static_cast<uint64_t>(flow.rate);
    lane.record->last_progress_mono_ns = now;
    int64_t unused;
    if (!runtime_->fleet_clock(&unused)) {
      lane.record->delay_source = FP_DELAY_HALF_RTT;
      delay_add(&lane.record->delay, static_cast<int64_t>(took / 2));
    }
  } else {
    // It waited for a new lane and turns out to be held after all.
    for (uint32_t i = 0; i < moved_count_; ++i) {
      if (moved_[i] != number) continue;
      --moved_count_;
      memmove(moved_ + i, moved_ + i + 1, (moved_count_ - i) * sizeof(moved_[0]));
      break;
    }
  }
  SendMessage& message = messages_[chunk.message % kMaxRequests];
  message.delivered += chunk.length;
  if (last_progress_ns_ > 0 && elapsed(now, last_progress_ns_) > record_->stall_ns_max) {
    RecordChange<fp_plugin_connection> change(record_);
    record_->stall_ns_max = elapsed(now, last_progress_ns_);
  }
  progress_made(now);
  if (message.whole && message.delivered == message.size) {
    message.use = SendMessage::Use::kDone;
    --requests_;
    while (first_message_ < next_message_) {
      const SendMessage& first = messages_[first_message_ % kMaxRequests];
      if (first.number == first_message_ && first.use == SendMessage::Use::kPosted) break;
      ++first_message_;
    }
    RecordChange<fp_plugin_connection> change(record_);
    record_->bytes += message.size;
    ++record_->completed;
  }
}

// NCCL may free the buffer of a message that is done, so a lane that still reads from it has to end before
// anything is sent again. No honest peer holds what has not left.
void SendConnection::fail_early(uint64_t now) {
  for (Lane& lane : lanes_)
    if ((early_ >> lane.index) & 1) fail_lane(lane.index, FP_REASON_PROTOCOL, now);
  early_ = 0;
}

void SendConnection::note_receives(const PeerReceive* receives, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t at = receives[i].message % kMaxRequests;
    // An old word may come late; the memory of one receive never changes.
    if (receive_known_[at] && static_cast<int32_t>(receives[i].message - receives_[at].message) <= 0)
      continue;
    receives_[at] = receives[i];
    receive_known_[at] = true;
  }
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
    auto on_move = [&](uint64_t chunk) { await_lane(chunk), ++moved; };
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

void SendConnection::oldest_chunks(uint64_t* chunks, uint64_t* chunk_ns) const {
  for (uint64_t c = fencing_.base(); c < fencing_.next(); ++c) {
    uint8_t l = fencing_.lane_of(c);
    if (l == SenderFencing::kNoLane || chunks[l] != UINT64_MAX) continue;
    chunks[l] = c;
    double seconds = chunks_[c % kChunkWindow].length / std::max(flow_[l].rate, 1e6);
    chunk_ns[l] = static_cast<uint64_t>(seconds * 1e9) + lanes_[l].rtt_ns;
  }
}

void SendConnection::peer_closed(const HeldState& state, uint64_t now) {
  now_ns_ = now;
  auto on_held = [&](uint64_t chunk, uint8_t lane) { held(chunk, lane, now); };
  if (fencing_.apply(state, on_held)) bye_received_ = true;
  fail_early(now);
}

void SendConnection::after_poll(uint64_t now, bool) { pump(now); }

bool SendConnection::hot(const Lane& lane, uint64_t now) const {
  return flow_[lane.index].in_flight > 0 ||
         (requests_ > 0 && (lane.index == 0 || elapsed(now, lane.last_data_ns) < kHotNs)) ||
         lane.transport->backlog();
}

void SendConnection::on_lane_failed(Lane* lane, fp_lane_reason reason, uint64_t now) {
  Flow& flow = flow_[lane->index];
  fencing_.fail(lane->index);
  set_state(lane, FP_LANE_FENCING, reason, now);
  flow.failed_ns = now;
  flow.fence_sent_ns = 0;
  flow.next_dial_ns = now + flow.backoff_ns;
  if (reason == FP_REASON_REPATH) flow.next_dial_ns = now;
  if (reason != FP_REASON_REPATH) flow.repath = false;
  // Out of lanes: nobody can carry the fence, so every lane is dialled at once; the hello fences too.
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
    fence.message_bytes = 0;
    // On every lane: the next fault may be in one of them.
    for (Lane& carrier : lanes_) {
      if (!carrier.up || !carrier.transport->post_state(fence, nullptr)) continue;
      flow.fence_sent_ns = now;
    }
  }
  for (Lane& lane : lanes_) flush_lane(&lane, now);
}

void SendConnection::on_tick(uint64_t now) {
  send_fences(now, true);
  for (Lane& lane : lanes_) {
    bool want = wanted(lane);
    if (lane.up && !want && lanes_healthy() > 0) fail_lane(lane.index, FP_REASON_COMMAND, now);
    if (!lane.up && lane.state != FP_LANE_FENCING && lane.ever_up) {
      if (!want) {
        set_state(&lane, FP_LANE_DISABLED, FP_REASON_COMMAND, now);
      } else if (lane.state == FP_LANE_DISABLED) {
        set_state(&lane, FP_LANE_DOWN, lane.reason, now);
        flow_[lane.index].next_dial_ns = now;
      }
    }
  }
  pump(now);
  select_paths(now);
  if (elapsed(now, weights_at_ns_) >= kWeightsNs) {
    weights_at_ns_ = now;
    publish_weights();
  }
}

void SendConnection::publish_weights() {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < lanes_.size(); ++i) sum += flow_[i].sent_since;
  if (sum == 0) return;
  for (Lane& lane : lanes_) {
    Flow& flow = flow_[lane.index];
    flow.weight = static_cast<uint32_t>(flow.sent_since * 1000 / sum);
    flow.sent_since = 0;
    if (lane.record == nullptr) continue;
    RecordChange<fp_plugin_lane> change(lane.record);
    lane.record->weight = flow.weight;
  }
}

fp_wait SendConnection::waits_for() const {
  if (requests_ == 0) return FP_WAIT_NOTHING;
  if (lanes_up() == 0) return FP_WAIT_LANE;
  const SendMessage& oldest = messages_[first_message_ % kMaxRequests];
  return oldest.cut == 0 && !sendable(oldest) ? FP_WAIT_PEER_RECEIVE : FP_WAIT_DELIVERY;
}

uint64_t SendConnection::oldest_request_ns() const {
  return requests_ == 0 ? 0 : messages_[first_message_ % kMaxRequests].posted_ns;
}

}  // namespace fabricpulse
