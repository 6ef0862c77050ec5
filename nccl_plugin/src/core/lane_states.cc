// State changes of a connection's lanes (up, down, disabled), and the telemetry records of them.
#include <algorithm>
#include <cmath>

#include "core/connection.h"

namespace fabricpulse {
namespace {

constexpr uint64_t kSaidNs = 60'000'000'000;

}  // namespace

uint32_t Connection::lanes_up() const {
  return static_cast<uint32_t>(
      std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& l) { return l.up; }));
}

uint32_t Connection::lanes_healthy() const {
  return static_cast<uint32_t>(std::count_if(
      lanes_.begin(), lanes_.end(), [this](const Lane& l) { return l.up && !l.spare && wanted(l); }));
}

bool Connection::on_last_resort() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& l) { return l.up && l.spare; });
}

bool Connection::on_queue_pairs() const {
  return lanes_up() > 0 && std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& l) {
           return !l.up || l.transport->kind() == FP_LANE_VERBS;
         });
}

bool Connection::was_up(uint32_t nic, uint32_t remote_nic) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
    return lane.ever_up && lane.nic == nic && lane.remote_nic == remote_nic;
  });
}

uint64_t Connection::disabled_mask() const {
  uint64_t mask = 0;
  for (const Lane& lane : lanes_)
    if (lane.named && !wanted_here(lane)) mask |= UINT64_C(1) << lane.index;
  return mask;
}

void Connection::event(fp_event_kind kind, const Lane* lane, fp_lane_reason reason, uint64_t value,
                       uint64_t now) {
  EventFields fields{kind};
  fields.reason = reason;
  fields.connection = record_index_;
  fields.connection_id = id_;
  fields.value = value;
  fields.peer = peer_.host;
  if (lane != nullptr) {
    fields.lane = lane->index;
    fields.device = lane->nic;
    fields.epoch = lane_epoch(lane->index);
    fields.peer_device = lane->peer_device.c_str();
  }
  runtime_->telemetry()->event(fields, runtime_->event_time(now));
}

void Connection::set_state(Lane* lane, fp_lane_state state, fp_lane_reason reason, uint64_t now) {
  if (lane->spare && (state == FP_LANE_UP || state == FP_LANE_SLOW_START)) state = FP_LANE_LAST_RESORT;
  if (lane->spare && state == FP_LANE_DOWN) state = FP_LANE_SPARE;
  if (lane->state == state && lane->reason == reason) return;
  lane->state = state;
  lane->reason = reason;
  lane->state_since_ns = now;
  if (lane->record == nullptr) return;
  RecordChange<fp_plugin_lane> change(lane->record);
  lane->record->state = state;
  lane->record->last_reason = reason;
  lane->record->state_since_mono_ns = now;
}

void Connection::show_lane(Lane* lane, uint32_t epoch) {
  if (lane->record == nullptr) lane->record = runtime_->telemetry()->take_lane(&lane->record_index);
  if (lane->remote_nic < peer_nics_.size()) lane->peer_device = peer_nics_[lane->remote_nic].device;
  {
    RecordChange<fp_plugin_lane> change(lane->record);
    fp_plugin_lane* r = lane->record;
    r->transport = runtime_->lane_kind(lane->spare);
    r->connection = record_index_;
    r->index = lane->index;
    r->device = lane->nic;
    r->direction = static_cast<uint32_t>(direction_);
    r->epoch = epoch;
    copy_text(r->peer, peer_.host);
    copy_text(r->peer_device, lane->peer_device.c_str());
  }
  lane_records_[lane->index].store(lane->record, std::memory_order_release);
}

void Connection::lane_joined(Lane* lane, std::unique_ptr<LaneTransport> transport, uint32_t epoch,
                             uint64_t now) {
  show_lane(lane, epoch);
  lane->named = true;
  lane->transport = std::move(transport);
  lane->transport->attach(this);
  lane->up = true;
  lane->proven = lane->doubtful = lane->peer_found_silent = false;
  lane->timer.reset();
  lane->last_acknowledged = 0;
  lane->acknowledged_at_ns = now;  // the handshake went there and back
  lane->last_ping_ns = lane->last_received_ns = now;
  lane->asked_ns = lane->answered_in_ns = 0;
  lane->pong_due = false;
  lane->last_data_ns = 0;
  lane->watched_ns = lane->watched_due_ns = lane->watched_acknowledged = 0;
  lane->watched_under_way = 0;
  lane->watched_chunk = UINT64_MAX;
  lane->watched_chunk_ns = 0;
  {
    RecordChange<fp_plugin_lane> change(lane->record);
    lane->record->transport = lane->transport->kind();
    lane->record->queue_pair = lane->transport->queue_pair();
    lane->record->entropy = lane->transport->entropy();
  }
  set_state(lane, lane->ever_up ? FP_LANE_SLOW_START : FP_LANE_UP, FP_REASON_NONE, now);
  event(FP_EVENT_LANE_UP, lane, FP_REASON_NONE, lane->down_since_ns ? elapsed(now, lane->down_since_ns) : 0,
        now);
  lane->ever_up = true;
  lane->down_since_ns = 0;
  no_lane_since_ns_ = 0;
  liveness.lane_up();
  if (lane->spare) report_last_resort(*lane, now);
}

// In the log: each connection for who reads all, the first over a path in a while as a warning.
void Connection::report_last_resort(const Lane& lane, uint64_t now) {
  const std::string text = describe() + ": none of its lanes over " + lanes_over(runtime_->lane_kind(false)) +
                           " is up; " + lanes_over(lane.transport->kind()) + " from " +
                           runtime_->nic_name(lane.nic) + " to " + lane.peer_device +
                           " carries it until one is (FABRICPULSE_LAST_RESORT)";
  const uint8_t* address = remote_address(lane);
  PathTable::Path* path = address != nullptr ? runtime_->path(lane.nic, address, now) : nullptr;
  const bool logged =
      path != nullptr && path->last_resort_ns != 0 && elapsed(now, path->last_resort_ns) < kSaidNs;
  if (path != nullptr && !logged) path->last_resort_ns = now;
  if (logged) {
    runtime_->info(text);
  } else {
    runtime_->warn(text);
  }
}

double Connection::penalty(Lane* lane, uint64_t now) const {
  if (now > lane->penalty_at_ns) {
    lane->penalty *= std::exp2(-static_cast<double>(elapsed(now, lane->penalty_at_ns)) / kPenaltyHalfLifeNs);
    lane->penalty_at_ns = now;
  }
  return lane->penalty;
}

void Connection::fail_lane(uint32_t index, fp_lane_reason reason, uint64_t now) {
  Lane* lane = &lanes_[index];
  if (!lane->up) return;
  // The receiver has closed the old incarnation for the new one before its report of that arrived.
  if (lane->replacing && (reason == FP_REASON_SOCKET_ERROR || reason == FP_REASON_PEER))
    reason = FP_REASON_REPATH;
  if (lane->spare && reason == FP_REASON_PEER &&
      std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& l) { return l.up && !l.spare; }))
    reason = FP_REASON_RELIEVED;  // the sender decides when
  lane->up = false;
  lane->proven |= lane->transport && lane->transport->proven();
  if (lane->transport) {
    PathSample last = lane->transport->sample();
    if (last.valid) {
      lane->retransmits_base += last.retransmits;
      lane->ecn_base += last.ecn_marked;
    }
    lane->transport->close(false);
    if (lane->transport->lands_after_close()) {
      lane->draining = std::move(lane->transport);
    } else {
      retired_transports_.push_back(std::move(lane->transport));
    }
  }
  lane->down_since_ns = now;
  lane->last_resort = false;
  // By command, or the end that a farewell has announced: no fault.
  bool command = reason == FP_REASON_COMMAND || reason == FP_REASON_REPATH || reason == FP_REASON_RELIEVED ||
                 bye_received_;
  // One that has carried nothing was not back: a try that has failed, see SendConnection::note_tries().
  if (!command && lane->proven) {
    penalty(lane, now);
    lane->penalty += kPenalty;
  }
  if (lane->record != nullptr) {
    RecordChange<fp_plugin_lane> change(lane->record);
    if (!command) ++lane->record->failovers;
    if (reason == FP_REASON_STALL || reason == FP_REASON_DEADLINE) ++lane->record->stalls;
    lane->record->retransmits = lane->retransmits_base;
    lane->record->ecn_marked = lane->ecn_base;
    lane->record->in_flight_bytes = 0;
  }
  const uint64_t waited_ns = reason == FP_REASON_STALL      ? lane->timer.silent_ns()
                             : reason == FP_REASON_DEADLINE ? lane->timer.late_ns()
                                                            : 0;
  event(FP_EVENT_LANE_DOWN, lane, reason, waited_ns, now);
  set_state(lane, command ? FP_LANE_DISABLED : FP_LANE_DOWN, reason, now);
  if (lanes_up() == 0 && no_lane_since_ns_ == 0) {
    no_lane_since_ns_ = now;
    if (reason != FP_REASON_REPATH) event(FP_EVENT_NO_LANE, nullptr, reason, 0, now);
  }
  on_lane_failed(lane, reason, now);
  wake_up();
  runtime_->wake();
}

void Connection::fail_nic(uint32_t nic, fp_lane_reason reason, uint64_t now) {
  for (Lane& lane : lanes_)
    if (lane.up && lane.nic == nic) fail_lane(lane.index, reason, now);
}

void Connection::set_disabled(uint32_t lane, bool disabled) {
  lanes_[lane].disabled = disabled;
  uint64_t bit = UINT64_C(1) << lane;
  if (disabled) {
    disabled_here_.fetch_or(bit, std::memory_order_relaxed);
  } else {
    disabled_here_.fetch_and(~bit, std::memory_order_relaxed);
  }
}

void Connection::desired_changed(uint64_t now) {
  for (Lane& lane : lanes_) {
    if (wanted(lane)) {
      if (!lane.up && lane.state == FP_LANE_DISABLED) set_state(&lane, FP_LANE_DOWN, lane.reason, now);
      lane.last_resort = false;
      continue;
    }
    if (!lane.up) {
      if (lane.state != FP_LANE_FENCING) set_state(&lane, FP_LANE_DISABLED, FP_REASON_COMMAND, now);
    } else if (lanes_healthy() > 0 && !lane.spare) {
      fail_lane(lane.index, FP_REASON_COMMAND, now);
    } else {
      lane.last_resort = true;  // it leaves service once another lane works
    }
  }
  runtime_->wake();
}

}  // namespace fabricpulse
