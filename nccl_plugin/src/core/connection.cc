#include "core/connection.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fabricpulse {
namespace {

constexpr uint64_t kColdPollNs = 200'000;       // lanes that carry nothing are polled this often
constexpr uint64_t kPingNs = 1'000'000'000;     // per lane
constexpr uint64_t kPublishNs = 100'000'000;    // telemetry that costs a system call
constexpr uint64_t kDriveIfIdleNs = 8'000'000;  // NCCL has not called for so long: the service thread drives
constexpr uint64_t kAskNs = 8'000'000;  // while a lane is silent the others on its path are asked this often
// Who polls looks for silent lanes so often; of the time since its last look so much counts at most.
constexpr uint64_t kLookNs = 2'000'000, kMostLookNs = 10'000'000;
constexpr uint64_t kPeerFoundNs = 10'000'000;
constexpr uint64_t kRecentNs = 100'000'000;  // reported path state holds so long

fp_lane_reason reason_of(LaneStatus status) {
  if (status == LaneStatus::kProtocol) return FP_REASON_PROTOCOL;
  return status == LaneStatus::kCorrupt ? FP_REASON_CORRUPT : FP_REASON_SOCKET_ERROR;
}

}  // namespace

Connection::Connection(Runtime* runtime, Direction direction, uint64_t id, uint32_t device,
                       uint64_t communicator)
    : runtime_(runtime), direction_(direction), id_(id), device_(device) {
  record_ = runtime_->telemetry()->take_connection(&record_index_);
  RecordChange<fp_plugin_connection> change(record_);
  record_->direction = static_cast<uint32_t>(direction);
  record_->id = id;
  record_->communicator = communicator;
  record_->device = device;
  record_->peer_rank = UINT32_MAX;
  record_->net_operations = record_->net_algorithms = record_->net_protocols = UINT32_MAX;
  record_->flow_collective = record_->flow_rank = record_->flow_peer = record_->flow_channel = UINT32_MAX;
  lanes_.reserve(kMaxLanes);
}

Connection::~Connection() {
  for (Lane& lane : lanes_) {
    if (lane.transport) lane.transport->close(false);
    if (lane.record != nullptr) runtime_->telemetry()->drop_lane(lane.record, lane.record_index);
  }
  runtime_->telemetry()->drop_connection(record_, record_index_);
}

Lane& Connection::make_lane(uint32_t nic, uint64_t now, bool spare) {
  Lane& lane = lanes_.emplace_back();
  lane.index = static_cast<uint32_t>(lanes_.size() - 1);
  lane.nic = nic;
  lane.spare = spare;
  lane.state_since_ns = now;
  lane_count_.store(static_cast<uint32_t>(lanes_.size()), std::memory_order_release);
  return lane;
}

void Connection::set_peer(const ProcessIdentity& peer, const WireNic* nics, uint32_t count) {
  peer_ = peer;
  peer_known_ = true;
  liveness.share(runtime_->peer_ended(peer.id));
  peer_nics_.assign(nics, nics + count);
  {
    RecordChange<fp_plugin_connection> change(record_);
    record_->peer_pid = peer.pid;
    record_->peer_rank = peer.rank;
    copy_text(record_->peer, peer.host);
  }
  for (Lane& lane : lanes_) {
    if (lane.remote_nic < count) lane.peer_device = peer_nics_[lane.remote_nic].device;
    if (lane.record == nullptr) continue;
    RecordChange<fp_plugin_lane> change(lane.record);
    copy_text(lane.record->peer, peer.host);
    copy_text(lane.record->peer_device, lane.peer_device.c_str());
  }
}

std::string Connection::describe() const {
  char id[24];
  snprintf(id, sizeof(id), "%016llx", static_cast<unsigned long long>(id_));
  std::string text = std::string("connection ") + id + (direction_ == Direction::kSend ? " to " : " from ");
  if (!peer_known_) return text + "a peer that has not answered yet";
  text += peer_.host;
  text += " (pid " + std::to_string(peer_.pid);
  if (peer_.rank != UINT32_MAX) text += ", rank " + std::to_string(peer_.rank);
  return text + ")";
}

void Connection::flush_lane(Lane* lane, uint64_t now) {
  if (!lane->up || !lane->transport->backlog()) return;
  if (lane->transport->flush() == LaneStatus::kFailed) fail_lane(lane->index, FP_REASON_SOCKET_ERROR, now);
}

void Connection::ping(Lane* lane, uint64_t now) {
  FrameHeader ping;
  ping.type = FrameType::kPing;
  ping.chunk = disabled_mask();
  ping.stamp = static_cast<int64_t>(now);
  if (lane->transport->post_state(ping, nullptr)) {
    lane->last_ping_ns = now;
    if (lane->asked_ns == 0) lane->asked_ns = now;
  }
  flush_lane(lane, now);
}

uint64_t Connection::last_received_beside(const Lane& lane) const {
  uint64_t at = 0;
  for (const Lane& other : lanes_)
    if (other.up && other.index != lane.index) at = std::max(at, other.last_received_ns);
  return at;
}

void Connection::settle(Lane* lane) {
  if (!lane->draining) return;
  lane->draining->quiesce();
  retired_transports_.push_back(std::move(lane->draining));
}

void Connection::progress_made(uint64_t now) { last_progress_ns_ = now; }

bool Connection::state_frame(uint32_t index, const FrameHeader& header, const HeldState& body) {
  Lane* lane = &lanes_[index];
  lane->last_received_ns = now_ns_;
  switch (header.type) {
    case FrameType::kPing: {
      lane->pong_due = true;
      lane->pong_stamp = header.stamp;
      // Which lanes the pinging end wants out of service.
      bool changed = false;
      for (Lane& l : lanes_) {
        bool disabled = (header.chunk >> l.index) & 1;
        changed |= disabled != l.peer_disabled;
        l.peer_disabled = disabled;
      }
      if (changed) runtime_->wake();
      return true;
    }
    case FrameType::kPong:
      if (lane->asked_ns != 0) lane->answered_in_ns = elapsed(now_ns_, lane->asked_ns);
      lane->asked_ns = 0;
      return true;
    case FrameType::kBye:
      // First the peer's last state frame: it may have overtaken an earlier one on another lane.
      if (header.length > 0 && !on_state_frame(index, header, body)) return false;
      bye_received_ = true;
      return true;
    default:
      return on_state_frame(index, header, body);
  }
}

void Connection::drive(uint64_t now) {
  now_ns_ = now;
  last_driven_ns_.store(now, std::memory_order_relaxed);
  bool progress = false;
  in_use_ = 0;
  resting_ = true;  // unless something below gives more to do
  for (Lane& lane : lanes_) {
    if (!lane.up) continue;
    if (hot(lane, now)) {
      note_in_use(lane);
    } else if (elapsed(now, lane.last_polled_ns) < kColdPollNs) {
      continue;
    }
    lane.last_polled_ns = now;
    if (!lane.transport->may_have_arrived()) continue;
    LaneStatus status = lane.transport->poll(lane.index, this);
    if (status == LaneStatus::kIdle) continue;
    if (status == LaneStatus::kProgress) {
      progress = true;
      note_in_use(lane);
    } else if (lane.up) {
      if (status == LaneStatus::kEnded && !bye_received_) liveness.lane_ended();
      if (status == LaneStatus::kCorrupt) {
        RecordChange<fp_plugin_lane> change(lane.record);
        ++lane.record->corrupt_frames;
      }
      fail_lane(lane.index, reason_of(status), now);
    }
    if (lane.up && lane.pong_due) {
      FrameHeader pong;
      pong.type = FrameType::kPong;
      pong.stamp = lane.pong_stamp;
      if (lane.transport->post_state(pong, nullptr)) lane.pong_due = false;
    }
  }
  after_poll(now, progress);
  if (elapsed(now, looked_ns_) >= kLookNs) watch(now);
  if (!retired_transports_.empty()) retired_transports_.clear();
  resting_ = resting_ && settled();
  skipped_ = 0;
}

void Connection::watch(uint64_t now) {
  const uint64_t credit = std::min(elapsed(now, looked_ns_), kMostLookNs);
  looked_ns_ = now;
  uint64_t chunks[kMaxLanes], chunk_ns[kMaxLanes];
  std::fill(std::begin(chunks), std::end(chunks), UINT64_MAX);
  oldest_chunks(chunks, chunk_ns);
  for (Lane& lane : lanes_) {
    uint32_t under_way = 0;
    uint64_t acknowledged = 0;
    if (!lane.up || !lane.transport->peek(&under_way, &acknowledged)) continue;
    const uint32_t all_along = std::min(under_way, lane.watched_under_way);
    const bool same = acknowledged == lane.watched_acknowledged;
    lane.watched_ns = same && all_along > 0 ? lane.watched_ns + credit : 0;
    lane.watched_due_ns = same && all_along > StallTimer::kFewPackets ? lane.watched_due_ns + credit : 0;
    lane.watched_under_way = under_way;
    lane.watched_acknowledged = acknowledged;
    const uint64_t chunk = chunks[lane.index];
    lane.watched_chunk_ns =
        chunk != UINT64_MAX && chunk == lane.watched_chunk ? lane.watched_chunk_ns + credit : 0;
    lane.watched_chunk = chunk;
    const bool due =
        lane.watched_ns >= lane.timer.suspect_ns() || lane.watched_chunk_ns >= lane.timer.old_chunk_ns();
    if (!due || suspects_ || called_) continue;
    called_ = true;
    runtime_->wake();
  }
}

bool Connection::rests() {
  if (!resting_) return false;
  bool found = ++skipped_ > kMostSkipped;
  for (uint64_t left = in_use_; left != 0 && !found; left &= left - 1) {
    Lane& lane = lanes_[static_cast<uint32_t>(__builtin_ctzll(left))];
    found = !lane.up || lane.transport->may_have_arrived();
  }
  resting_ = !found;
  return resting_;
}

void Connection::tick(uint64_t now, uint64_t since_last) {
  now_ns_ = now;
  uint64_t driven = last_driven();
  const bool idle = now > driven && elapsed(now, driven) > kDriveIfIdleNs;
  if (idle) drive(now);
  watched_ = !idle && on_queue_pairs() && std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    return lane.up || lane.spare;
  });
  called_ = false;
  uint64_t chunks[kMaxLanes], chunk_ns[kMaxLanes] = {};
  std::fill(std::begin(chunks), std::end(chunks), UINT64_MAX);
  oldest_chunks(chunks, chunk_ns);
  bool path_failed = false;
  take_peer_findings(now);
  bool publish_now = elapsed(now, last_publish_ns_) >= kPublishNs;
  const bool seldom_ticked = !suspects_ && on_queue_pairs();
  suspects_ = false;
  for (Lane& lane : lanes_) {
    if (!lane.up) continue;
    if (!runtime_->nic_up(lane.nic)) {
      fail_lane(lane.index, FP_REASON_LINK_DOWN, now);
      continue;
    }
    if (elapsed(now, lane.last_ping_ns) >= kPingNs) {
      ping(&lane, now);
      if (!lane.up) continue;
    }
    PathSample sample = lane.transport->sample();
    if (!sample.valid) continue;
    if (sample.rtt_ns > 0) lane.rtt_ns = sample.rtt_ns;
    lane.rtt_ahead = sample.ahead;
    lane.congested_segments = sample.retransmits + sample.ecn_marked;
    const bool as_watched = sample.acknowledged == lane.watched_acknowledged && lane.watched_under_way > 0;
    const uint64_t watched_ns = as_watched ? lane.watched_ns : 0;
    if (sample.acknowledged != lane.last_acknowledged) lane.acknowledged_at_ns = now - watched_ns;
    lane.last_acknowledged = sample.acknowledged;
    PathTable::Path* path = path_of(lane, now);
    StallTimer::Surroundings around;
    around.least_ns = runtime_->config().stall_ns;
    around.watched_ns = watched_ns;
    around.watched_due_ns = as_watched ? lane.watched_due_ns : 0;
    around.watched_chunk_ns = lane.watched_chunk == chunks[lane.index] ? lane.watched_chunk_ns : 0;
    if (seldom_ticked) around.most_credit_ns = kQueuePairTickNs;
    around.peer_answered_ago_ns = elapsed(now, last_received_beside(lane));
    around.answer_due = lane.asked_ns != 0 && last_received_beside(lane) > lane.asked_ns;
    for (const Lane& other : lanes_)
      if (other.up) around.answered_in_ns = std::max(around.answered_in_ns, other.answered_in_ns);
    if (path != nullptr) {
      // Frames of the peer prove nothing here: they use the other direction, which may be the only one that works.
      path->answered_ns = std::max(path->answered_ns, lane.acknowledged_at_ns);
      around.path_answered_ago_ns = elapsed(now, path->answered_ns);
      around.path_failed = path->failed_ns != 0 && elapsed(now, path->failed_ns) < kRecentNs;
      // What the peer has found counts once nothing was acknowledged here since.
      const uint64_t since = elapsed(now, path->peer_failed_ns);
      around.path_failed |=
          path->peer_failed_ns > path->answered_ns && since >= kPeerFoundNs && since < kRecentNs;
    }
    lane.doubtful = path != nullptr && path->doubtful(now);
    around.chunk = chunks[lane.index];
    around.chunk_ns = chunk_ns[lane.index];
    StallTimer::Finding finding = lane.timer.update(sample, around, since_last);
    if (lane.timer.suspect()) {
      suspects_ = true;
      if (path != nullptr) path->suspected_ns = now;
    } else if (path != nullptr && elapsed(now, path->suspected_ns) < kRecentNs &&
               elapsed(now, lane.last_ping_ns) >= kAskNs) {
      ping(&lane, now);
      if (!lane.up) continue;
    }
    const uint64_t silent_ns = lane.timer.silent_ns();
    if (publish_now || silent_ns > lane.record->stall_ns_max) {
      RecordChange<fp_plugin_lane> change(lane.record);
      lane.record->rtt_ns = lane.rtt_ns;
      lane.record->retransmits = lane.retransmits_base + sample.retransmits;
      lane.record->ecn_marked = lane.ecn_base + sample.ecn_marked;
      lane.record->in_flight_bytes = lane_in_flight(lane.index);
      if (silent_ns > lane.record->stall_ns_max) lane.record->stall_ns_max = silent_ns;
    }
    if (finding == StallTimer::Finding::kWell) continue;
    bool late = finding == StallTimer::Finding::kLate;
    if (finding == StallTimer::Finding::kBehind && path != nullptr) {
      path->failed_ns = now;
      path_failed = true;
    }
    runtime_->info(describe() + ": lane " + std::to_string(lane.index) + " by " +
                   runtime_->nic_name(lane.nic) + " to " + lane.peer_device +
                   " is given up: " + lane.timer.explain(finding, sample, around));
    fail_lane(lane.index, late ? FP_REASON_DEADLINE : FP_REASON_STALL, now);
  }
  for (Lane& lane : lanes_)
    if (const PathTable::Path* path = path_failed && lane.up ? path_of(lane, now) : nullptr)
      lane.doubtful = path->doubtful(now);
  // The state of the other lanes of the connection decides whether a silent lane is dead, or the peer slow.
  for (Lane& lane : lanes_) {
    if (!suspects_ || !lane.up || elapsed(now, lane.last_ping_ns) < kAskNs) continue;
    if (!lane.timer.suspect() || lane.asked_ns == 0) ping(&lane, now);
  }
  on_tick(now);
  wake_up();  // also after a drive of this tick
  if (publish_now) publish(now);
  retired_transports_.clear();
}

void Connection::take_peer_findings(uint64_t now) {
  for (Lane& lane : lanes_)
    if (std::exchange(lane.peer_found_silent, false))
      if (PathTable::Path* path = path_of(lane, now)) path->peer_failed_ns = now;
}

void Connection::publish(uint64_t now) {
  last_publish_ns_ = now;
  RecordChange<fp_plugin_connection> change(record_);
  record_->state = lost_ ? 2 : bye_received_ ? 3 : 1;
  record_->requests = requests();
  record_->waits_for = waits_for();
  record_->last_progress_mono_ns = last_progress_ns_;
  record_->oldest_request_mono_ns = oldest_request_ns();
  record_->missing_bytes = missing_bytes();
}

void Connection::set_attributes(uint32_t operations, uint32_t algorithms, uint32_t protocols) {
  RecordChange<fp_plugin_connection> change(record_);
  record_->net_operations = operations;
  record_->net_algorithms = algorithms;
  record_->net_protocols = protocols;
}

void Connection::set_flow(uint32_t collective, uint32_t rank, uint32_t peer, uint32_t channel) {
  RecordChange<fp_plugin_connection> change(record_);
  record_->flow_collective = collective;
  record_->flow_rank = rank;
  record_->flow_peer = peer;
  record_->flow_channel = channel;
}

bool Connection::flow_due(uint64_t now) {
  if (flow_asked_ns_ != 0 && elapsed(now, flow_asked_ns_) < kPublishNs) return false;
  flow_asked_ns_ = now;
  return true;
}

void Connection::peer_lost(const std::string& why, uint64_t now) {
  if (lost_) return;
  lost_ = true;
  lost_reason_ = describe() + ": " + why;
  event(FP_EVENT_PEER_LOST, nullptr, FP_REASON_PEER, 0, now);
  for (Lane& lane : lanes_) fail_lane(lane.index, FP_REASON_PEER, now);
  publish(now);
  runtime_->warn(lost_reason_);
}

bool Connection::broken(uint64_t now) {
  if (!lost_ && !memory_returned_ && bye_received_ && !complete())
    peer_lost("the peer ended it with requests under way", now);
  return lost_ || memory_returned_;
}

void Connection::memory_returned(const RegisteredMemory* memory, uint64_t now) {
  if (closed_ || memory == nullptr || !uses(memory)) return;
  close(now);
  memory_returned_ = true;
  lost_reason_ = describe() + ": memory of a request under way was deregistered";
  runtime_->info(lost_reason_);
}

void Connection::close(uint64_t now) {
  if (closed_) return;
  closed_ = true;
  for (Lane& lane : lanes_) {
    settle(&lane);
    if (!lane.up) continue;
    FrameHeader bye;
    HeldState last;
    bye.type = FrameType::kBye;
    bool with_state = final_state(&last);
    bye.length = with_state ? sizeof(last) : 0;
    lane.transport->post_state(bye, with_state ? &last : nullptr);
    lane.transport->flush();
    // An orderly end only if nothing is left to send: a chunk cut in the middle must not look like the end of
    // a stream.
    lane.transport->close(!lane.transport->backlog());
    // What was not reported complete to the application it takes back all the same.
    if (!complete() && lane.transport->lands_after_close()) lane.transport->quiesce();
    lane.up = false;
  }
  (void)now;
}

}  // namespace fabricpulse
