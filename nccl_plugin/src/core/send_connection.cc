#include "core/send_connection.h"

#include <algorithm>
#include <cstring>

namespace fabricpulse {
namespace {

constexpr double kSpreadSeconds = 0.002;   // a backlog shorter than this stays on the primary lane
constexpr double kReserveSeconds = 0.100;  // lanes that share a NIC with a better lane
constexpr uint64_t kWeightsNs = 200'000'000;
constexpr uint64_t kPrimaryGraceNs = 300'000'000;
constexpr uint64_t kMostUnaskedNs = 1'000'000'000;  // of one tick

}  // namespace

SendConnection::SendConnection(Runtime* runtime, uint64_t id, uint32_t device, uint64_t communicator,
                               const std::vector<NicPair>& lanes)
    : Connection(runtime, Direction::kSend, id, device, communicator) {
  no_lane_since_ns_ = runtime->now();
  add_lanes(lanes, no_lane_since_ns_);
}

bool SendConnection::ready(uint64_t now) const {
  if (bye_received_) return true;
  const Lane& chosen = lanes_[0];
  return lanes_up() > 0 &&
         (chosen.up || !runtime_->nic_up(chosen.nic) || elapsed(now, first_lane_ns_) > kPrimaryGraceNs);
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
  if (requests_++ == 0) {
    last_progress_ns_ = now;
    wake_up();  // other lanes are in use now
  }
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

bool SendConnection::uses(const RegisteredMemory* memory) const {
  return std::any_of(std::begin(messages_), std::end(messages_), [&](const SendMessage& message) {
    return message.use == SendMessage::Use::kPosted && message.memory == memory;
  });
}

bool SendConnection::sendable(const SendMessage& message) const {
  if (message.number < posted_) return true;
  // Early, into one of the peer's slots: free once the message that had it before is held (see
  // RecvConnection).
  if (message.size > kEagerBytes || message.number >= posted_ + kEagerSlots) return false;
  return message.number < kEagerSlots || message.number - kEagerSlots < first_message_;
}

uint32_t SendConnection::stretch(const Lane& lane) const {
  for (const Lane& other : lanes_)
    if (other.up && !share_nic(other, lane)) return 1;
  return lane.transport->stretch_alone();
}

// The lane that will have delivered `bytes` more first; nullptr if all windows are full.
Lane* SendConnection::choose(uint32_t bytes, uint8_t failed_on, uint64_t now) {
  Lane* best = nullptr;
  double best_cost = 0;
  // A weight of 0 keeps a lane free as long as another one that may carry is up.
  bool fixed = false, others = false, sure = false, elsewhere = false;
  const bool last_resort = on_last_resort();
  const bool relieved = last_resort && std::any_of(lanes_.begin(), lanes_.end(), relieves);
  // A path that has lost or delayed a chunk for long is not tried again with the same one: a message would wait for
  // each of its lanes in turn.
  auto failed = [&](const Lane& lane) {
    return failed_on != SenderFencing::kNoLane && share_nic(lane, lanes_[failed_on]);
  };
  auto barred = [&](const Lane& lane) { return last_resort && (relieved ? !relieves(lane) : !lane.spare); };
  for (const Lane& lane : lanes_) {
    fixed |= lane.up && lane.fixed_weight >= 0;
    const bool other = lane.up && lane.fixed_weight != 0 && wanted(lane) && lane.transport->proven();
    others |= other;
    const bool trusted = other && !lane.doubtful && !barred(lane) && !draining(lane, now);
    sure |= trusted;
    elsewhere |= trusted && !failed(lane);
  }
  bool primary_nic_up = false;
  for (Lane& lane : lanes_) {
    if (!lane.up) continue;
    if (barred(lane)) continue;
    Flow& flow = flow_[lane.index];
    if (lane.index == 0) primary_nic_up = true;
    if (draining(lane, now) || !lane.transport->proven() || (sure && lane.doubtful)) continue;
    if (elsewhere && failed(lane)) continue;
    const uint32_t alone = stretch(lane);
    uint64_t size = std::min<uint64_t>(bytes, flow.chunk_bytes(alone));
    // Nothing to balance with, and no lane that could take over what is under way.
    const uint64_t window = alone > 1 ? LaneFlow::kMaxWindow : flow.window;
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
    if (flow.stale(now)) {
      double best_sibling = 0;
      for (const Lane& other : lanes_)
        if (other.up && other.index != lane.index)
          best_sibling = std::max(best_sibling, flow_[other.index].rate);
      flow.fade(
          best_sibling > 0 ? best_sibling : static_cast<double>(runtime_->nic_bytes_per_second(lane.nic)),
          now);
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
  // Without fleet time it serves the window alone, which a lane that shares nothing has at its largest.
  const bool stamped = lane->transport->stamp_due(now);
  if (stamped && runtime_->fleet_clock(&header.stamp)) {
    header.flags |= kFlagFleetStamp;
  } else if (stamped && stretch(*lane) == 1) {
    header.stamp = static_cast<int64_t>(now);
  } else {
    header.flags |= kFlagNoStamp;
  }
  if (chunk.message >= posted_) header.flags |= kFlagEarly;
  if (!fencing_.assign(number, lane->index)) return false;
  if (!lane->transport->post_chunk(header, message.data + chunk.offset, message.memory)) {
    // Never: the queue of a lane holds a whole window.
    fail_lane(lane->index, FP_REASON_PROTOCOL, now);
    return false;
  }
  note_in_use(*lane);
  chunk.place = flow.sent(chunk.length);
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
    Lane* lane = choose(chunk.length, chunk.failed_on, now);
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
    Lane* lane = choose(left, SenderFencing::kNoLane, now);
    if (lane == nullptr) full_ = true;
    if (lane == nullptr) break;
    uint32_t length = std::min(left, flow_[lane->index].chunk_bytes(stretch(*lane)));
    if (left - length < LaneFlow::kMinChunk / 4 && left <= kMaxChunkBytes)
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

// Its lane has failed; the oldest first.
void SendConnection::await_lane(uint64_t number, const Lane& from) {
  Chunk& chunk = chunks_[number % kChunkWindow];
  chunk.moved = true;
  if (from.reason != FP_REASON_REPATH && from.reason != FP_REASON_COMMAND)
    chunk.failed_on = static_cast<uint8_t>(from.index);
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
    flow.settled(chunk.length);
    uint64_t took = now > chunk.sent_ns ? elapsed(now, chunk.sent_ns) : 1;
    if (lane.up) {
      const double most = static_cast<double>(runtime_->nic_bytes_per_second(lane.nic)) * 8;
      const bool measured = flow.measure(chunk.length, chunk.ahead, took, most, now);
      // The window covers the reverse delay of acknowledgements, which queue behind the data of the other
      // direction: without that one direction starves the other, whose windows shrink with its rate.
      flow.note_took(took);
      const uint64_t back_ns = lane.transport->state_frames_wait() ? flow.forward.way_back(flow.took_ns) : 0;
      lane.transport->note_way_back(back_ns);
      if (flow.widen(chunk.length, back_ns, measured)) set_state(&lane, FP_LANE_UP, FP_REASON_NONE, now);
    }
    RecordChange<fp_plugin_lane> change(lane.record);
    lane.record->acknowledged_bytes += chunk.length;
    lane.record->delivery_rate = static_cast<uint64_t>(flow.measured_rate);
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

void SendConnection::oldest_chunks(uint64_t* chunks, uint64_t* chunk_ns) const {
  for (uint64_t c = fencing_.base(); c < fencing_.next(); ++c) {
    uint8_t l = fencing_.lane_of(c);
    if (l == SenderFencing::kNoLane || chunks[l] != UINT64_MAX) continue;
    chunks[l] = c;
    double seconds = chunks_[c % kChunkWindow].length / std::max(flow_[l].rate, 1e6);
    chunk_ns[l] = static_cast<uint64_t>(seconds * 1e9) + lanes_[l].rtt_ns;
  }
}

void SendConnection::after_poll(uint64_t now, bool) { pump(now); }

bool SendConnection::hot(const Lane& lane, uint64_t now) const {
  return flow_[lane.index].in_flight > 0 || !lane.transport->proven() ||
         (requests_ > 0 && (lane.index == 0 || elapsed(now, lane.last_data_ns) < kHotNs)) ||
         lane.transport->backlog();
}

void SendConnection::on_tick(uint64_t now) {
  send_fences(now, true);
  for (Lane& lane : lanes_) {
    bool want = wanted(lane);
    if (lane.up && !want && !lane.spare && lanes_healthy() > 0) fail_lane(lane.index, FP_REASON_COMMAND, now);
    if (!lane.up && lane.state != FP_LANE_FENCING && lane.ever_up) {
      if (!want) {
        set_state(&lane, FP_LANE_DISABLED, FP_REASON_COMMAND, now);
      } else if (lane.state == FP_LANE_DISABLED) {
        set_state(&lane, FP_LANE_DOWN, lane.reason, now);
        flow_[lane.index].next_dial_ns = now;
      }
    }
  }
  note_tries(now);
  if (spares_planned_) review_spares(now);
  pump(now);
  select_paths(now);
  if (elapsed(now, weights_at_ns_) >= kWeightsNs) {
    weights_at_ns_ = now;
    publish_weights();
  }
}

// NCCL gives up a connection that it does not have yet by asking no more: there is nothing that it could close.
bool SendConnection::forgotten(uint64_t since_last) {
  if (handed_over()) return false;
  unasked_ns_ += std::min(since_last, kMostUnaskedNs);
  if (unasked_ns_ < runtime_->config().peer_timeout_ns) return false;
  runtime_->info(describe() +
                 ": NCCL has not asked for it in a long time; it is given up before it was used");
  return true;
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

uint64_t SendConnection::missing_bytes() const {
  if (requests_ == 0) return 0;
  const SendMessage& oldest = messages_[first_message_ % kMaxRequests];
  return oldest.size - oldest.delivered;
}

}  // namespace fabricpulse
