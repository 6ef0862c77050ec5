// How a sender's lanes come to be, and to other paths: what the service thread is to dial, and what comes of
// it.
#include <algorithm>
#include <string>
#include <utility>

#include "core/send_connection.h"

namespace fabricpulse {
namespace {

constexpr uint64_t kFirstBackoffNs = 50'000'000;
constexpr uint64_t kMaxBackoffNs = 150'000'000;
constexpr uint64_t kUnreachableBackoffNs =
    1'000'000'000;                    // each dial costs both hosts; other lanes carry the job
constexpr uint32_t kPatientDial = 4;  // each such one waits long, one of a connection at a time
// A path whose lanes come up and pass nothing, while others carry the job; the lane whose turn it is may no longer
// exist.
constexpr uint64_t kTryEveryNs = 500'000'000, kTurnNs = 100'000'000;
constexpr uint64_t kFirstLaneNs =
    1'000'000'000;  // a connection without lanes tries its first one for so long alone
constexpr uint64_t kLastResortNs =
    20'000'000;                             // without any lane for so long: lanes out of service are used too
constexpr uint64_t kSpareNs = 100'000'000;  // no answer on any queue pair for so long: by TCP
constexpr uint64_t kUnreachableNs =
    5'000'000'000;                            // a lane that was never up after so long is not to be reached
constexpr uint64_t kAnsweredNs = 50'000'000;  // a peer that takes what is sent acknowledges this often
constexpr uint64_t kDrainNs =
    300'000'000;  // a lane that gets another path takes nothing new for so long at most

}  // namespace

void SendConnection::add_lanes(const std::vector<NicPair>& pairs, uint64_t now, bool spare) {
  for (const NicPair& pair : pairs) {
    if (lanes_.size() == kMaxLanes) return;
    Lane& lane = make_lane(pair.first, now, spare);
    lane.remote_nic = pair.second;
    lane.named = true;
    Flow& flow = flow_[lane.index];
    flow.rate = std::min(static_cast<double>(runtime_->nic_bytes_per_second(lane.nic)), LaneFlow::kFirstRate);
    flow.backoff_ns = kFirstBackoffNs;
  }
}

std::vector<NicPair> SendConnection::pairs() const {
  std::vector<NicPair> all;
  for (const Lane& lane : lanes_)
    if (!lane.spare) all.emplace_back(lane.nic, lane.remote_nic);
  return all;
}

void SendConnection::add_spares(const std::vector<NicPair>& pairs, uint64_t now) {
  spares_planned_ = true;
  for (const NicPair& pair : pairs) {
    bool known = std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
      return lane.spare && NicPair{lane.nic, lane.remote_nic} == pair;
    });
    if (known || lanes_.size() == kMaxLanes) continue;
    add_lanes({pair}, now, true);
    set_state(&lanes_.back(), FP_LANE_SPARE, FP_REASON_NONE, now);
  }
}

// When spare lanes are needed, and when they are not: see spare_lanes.h.
void SendConnection::review_spares(uint64_t now) {
  const bool answered = std::any_of(lanes_.begin(), lanes_.end(), relieves);
  had_queue_pair_ |= answered;
  if (answered || !had_queue_pair_) {
    unanswered_ns_ = 0;
  } else if (unanswered_ns_ == 0) {
    unanswered_ns_ = now;
  }
  if (!answered || !on_last_resort()) {
    relieved_ns_ = 0;
    return;
  }
  if (relieved_ns_ == 0) relieved_ns_ = now;
  for (Lane& lane : lanes_) {
    if (!lane.up || !lane.spare) continue;
    if (flow_[lane.index].in_flight > 0 && elapsed(now, relieved_ns_) < kDrainNs) continue;
    fail_lane(lane.index, FP_REASON_RELIEVED, now);
    runtime_->info(describe() + ": a queue pair is back; TCP is left");
  }
}

// Ends meet over TCP also where queue pairs pass nothing: their lanes come up each time and prove nothing. Such a path
// is tried by one lane of this process now and then, one after the other, and by all once one has proven it.
void SendConnection::note_tries(uint64_t now) {
  for (Lane& lane : lanes_) {
    Flow& flow = flow_[lane.index];
    const bool in_vain = std::exchange(flow.in_vain, false);
    const bool proven = lane.up && !lane.proven && lane.transport->proven();
    if (lane.spare || !(in_vain || proven)) continue;
    const uint8_t* address = remote_address(lane);
    PathTable::Path* path = address != nullptr ? runtime_->path(lane.nic, address, now) : nullptr;
    lane.proven |= proven;
    if (path != nullptr && proven) path->tried_ns = 0;
    if (path != nullptr && in_vain && path->tried_ns == 0) path->tried_ns = flow.failed_ns;
  }
}

bool SendConnection::may_try(const Lane& lane, uint64_t now) const {
  const bool carried = std::any_of(lanes_.begin(), lanes_.end(),
                                   [](const Lane& other) { return other.up && other.transport->proven(); });
  if (lane.spare || !carried) return true;
  const uint8_t* address = remote_address(lane);
  PathTable::Path* path = address != nullptr ? runtime_->path(lane.nic, address, now) : nullptr;
  if (path == nullptr || path->tried_ns == 0) return true;
  const uint64_t due = flow_[lane.index].next_dial_ns, ago = elapsed(now, path->tried_ns);
  if (ago < kTryEveryNs) path->due_ns = std::min(path->due_ns, due);
  if (ago < kTryEveryNs || (due > path->due_ns && ago < kTryEveryNs + kTurnNs)) return false;
  path->tried_ns = now;
  path->due_ns = UINT64_MAX;
  return true;
}

bool SendConnection::want_dial(uint64_t now, DialPlan* plan) {
  if (lost_ || closed_ || bye_received_) return false;
  bool none = lanes_up() == 0 && no_lane_since_ns_ != 0 && elapsed(now, no_lane_since_ns_) >= kLastResortNs;
  const bool spares_due =
      unanswered_ns_ != 0 && elapsed(now, unanswered_ns_) >= kSpareNs && !on_last_resort();
  for (Lane& lane : lanes_) {
    Flow& flow = flow_[lane.index];
    if (flow.dialling) continue;
    if (lane.spare && !lane.up && !spares_due) continue;
    if (lane.up) {
      if (!flow.repath || draining(lane, now)) continue;
      flow.dialling = lane.replacing = true;
      flow.repath = false;  // a request that comes from now on is for the incarnation after the next
      flow.moved_by_command = flow.by_command;
      *plan = {lane.index, fencing_.take_epoch(lane.index), flow.source_port, kHelloRepath, 1, true};
      flow.source_port = 0;
      if (!wanted(lane)) plan->flags |= kHelloLastResort;
      if (lane.spare) plan->flags |= kHelloSpare;
      return true;
    }
    if (now < flow.next_dial_ns) continue;
    if (!runtime_->nic_up(lane.nic)) continue;
    bool resort = false;
    if (!wanted(lane) && !lane.spare) {
      if (!none) continue;
      resort = true;
    }
    double level = penalty(&lane, now);
    if (!none && (level >= kSuppress || (lane.state == FP_LANE_DAMPED && level >= kReuse))) {
      if (lane.state != FP_LANE_DAMPED && lane.state != FP_LANE_FENCING) {
        set_state(&lane, FP_LANE_DAMPED, lane.reason, now);
        event(FP_EVENT_LANE_DAMPED, &lane, lane.reason, 0, now);
      }
      continue;
    }
    if (!may_try(lane, now)) continue;
    flow.dialling = true;
    if (flow.first_dial_ns == 0) flow.first_dial_ns = now;
    uint8_t flags = resort || none || lane.spare ? kHelloLastResort : 0;
    if (lane.spare) flags |= kHelloSpare;
    // If all waited at the same time, none would be there when the fault ends.
    flow.patient =
        ++flow.dials % kPatientDial == 0 &&
        std::none_of(flow_, flow_ + lanes_.size(), [](const Flow& other) { return other.patient; });
    const uint32_t patience = flow.patient ? flow.dials / kPatientDial : 0;
    bool optional = lanes_up() > 0 || (lane.index != 0 && elapsed(now, no_lane_since_ns_) < kFirstLaneNs);
    *plan = {lane.index, fencing_.take_epoch(lane.index), flow.source_port, flags, patience, optional};
    flow.source_port = 0;  // if that port cannot be had, another one is better than none
    return true;
  }
  return false;
}

void SendConnection::dialled(uint32_t index, uint32_t epoch, std::unique_ptr<LaneTransport> transport,
                             const HelloReply* reply, uint64_t now) {
  now_ns_ = now;
  Lane& lane = lanes_[index];
  Flow& flow = flow_[index];
  flow.dialling = flow.patient = false;
  if (reply != nullptr) {
    note_peer_state(reply->held);
    if (reply->status == HelloStatus::kDisabled) lane.peer_disabled = true;
  }
  bool replacing = lane.replacing;
  lane.replacing = false;
  if (transport == nullptr && lane.up) {  // the old path stays
    paths_.stayed(index);
    return;
  }
  if (transport == nullptr) {
    flow.next_dial_ns = now + flow.backoff_ns;
    flow.backoff_ns = std::min(flow.backoff_ns * 2, on_last_resort() ? kUnreachableBackoffNs : kMaxBackoffNs);
    note_unreachable(&lane, epoch, now);
    if (lane.reason == FP_REASON_UNREACHABLE && lanes_up() > 0)
      flow.next_dial_ns = now + kUnreachableBackoffNs;
    return;
  }
  // The new incarnation is accepted, so the old one is closed at the peer: end it here too.
  if (replacing && lane.up && !lost_ && !closed_) fail_lane(index, FP_REASON_REPATH, now);
  uint32_t moved = 0;
  bool was_fencing = fencing_.lane(index).phase == SenderFencing::Phase::kFencing;
  auto on_held = [&](uint64_t chunk, uint8_t l) { held(chunk, l, now); };
  auto on_move = [&](uint64_t chunk) { await_lane(chunk, lane), ++moved; };
  const bool joined = !lost_ && !closed_ && fencing_.joined(index, epoch, reply->held, on_held, on_move);
  fail_early(now);
  if (!joined) {
    transport->close(false);
    flow.next_dial_ns = now + flow.backoff_ns;
    return;
  }
  if (was_fencing && !replacing)
    event(FP_EVENT_LANE_FENCED, &lane, lane.reason, elapsed(now, flow.failed_ns), now);
  if (moved > 0) {
    event(FP_EVENT_CHUNKS_MOVED, &lane, lane.reason, moved, now);
    RecordChange<fp_plugin_connection> change(record_);
    record_->failovers += !replacing;
    record_->resent_chunks += moved;
  }
  flow.join();
  flow.backoff_ns = kFirstBackoffNs;
  for (const Lane& other : lanes_)  // no catching up on the share of the time it was away
    if (other.up) flow.weighed = std::max(flow.weighed, flow_[other.index].weighed);
  lane_joined(&lane, std::move(transport), epoch, now);
  if (first_lane_ns_ == 0) first_lane_ns_ = now;
  lane.last_resort = !wanted(lane);
  {
    RecordChange<fp_plugin_lane> change(lane.record);
    lane.record->delivery_rate = 0;  // another path's
    if (replacing) ++lane.record->repaths;
  }
  if (replacing) {
    event(FP_EVENT_REPATH, &lane, flow.moved_by_command ? FP_REASON_COMMAND : FP_REASON_REPATH,
          lane.transport->entropy(), now);
    for (const Lane& other : lanes_)  // the old path's rate is none of this one
      if (other.up) flow.rate = std::max(flow.rate, flow_[other.index].rate);
    flow.rate_at_ns = now;
    paths_.moved(index, flow.moved_by_command, now);
  }
  pump(now);
  retired_transports_.clear();
}

void SendConnection::dial_soon(uint32_t nic, uint64_t now) {
  for (Lane& lane : lanes_) {
    if (lane.nic != nic || lane.up) continue;
    Flow& flow = flow_[lane.index];
    flow.next_dial_ns = std::min(flow.next_dial_ns, now + 5'000'000);
    flow.backoff_ns = kFirstBackoffNs;
    flow.first_dial_ns = 0;
  }
}

// A path that no packet takes as planned looks like a lane that is about to come up: logged once, or a job would have
// half of its lanes for good without a sign.
void SendConnection::note_unreachable(Lane* lane, uint32_t epoch, uint64_t now) {
  const uint64_t since = flow_[lane->index].first_dial_ns;
  if (lane->ever_up || lane->reason == FP_REASON_UNREACHABLE || lanes_up() == 0 || !wanted(*lane)) return;
  if (since == 0 || elapsed(now, since) < kUnreachableNs) return;
  show_lane(lane, epoch);
  set_state(lane, FP_LANE_CONNECTING, FP_REASON_UNREACHABLE, now);
  event(FP_EVENT_LANE_UNREACHABLE, lane, FP_REASON_UNREACHABLE, elapsed(now, since), now);
  const uint8_t* address = remote_address(*lane);
  PathTable::Path* path = address != nullptr ? runtime_->path(lane->nic, address, now) : nullptr;
  if (path != nullptr && std::exchange(path->unreachable_logged, true)) return;
  runtime_->warn(
      std::string("no lane from ") + runtime_->nic_name(lane->nic) + " to " + lane->peer_device + " of " +
      peer_.host +
      " has come up, though others to it have; those carry the job. Is there a route, a firewall, or are "
      "two NICs of a host in one subnet and answer ARP for each other (fabricpulse audit, arp-flux)?");
}

void SendConnection::repath(uint32_t index, uint16_t source_port, bool command, uint64_t now) {
  Lane& lane = lanes_[index];
  Flow& flow = flow_[index];
  flow.source_port = source_port;
  if (!lane.up) {  // the next incarnation will have another path anyway
    flow.next_dial_ns = std::min(flow.next_dial_ns, now);
  } else {
    flow.repath = true;
    flow.by_command = command;
    flow.repath_since_ns = now;
  }
  runtime_->wake();
}

// What is in flight on a lane is sent again when it gets another path: let it arrive first, while siblings
// take the rest.
bool SendConnection::draining(const Lane& lane, uint64_t now) const {
  const Flow& flow = flow_[lane.index];
  bool moves = lane.replacing ? !flow.moved_by_command : flow.repath && !flow.by_command;
  return moves && lane.up && lanes_up() > 1 && flow.in_flight > 0 &&
         elapsed(now, flow.repath_since_ns) < kDrainNs;
}

void SendConnection::select_paths(uint64_t now) {
  if (!runtime_->config().repath || lost_ || closed_) return;
  bool moving = false;
  // While the peer's process is silent, the throughput of its lanes proves nothing about their paths.
  uint64_t received = 0;
  for (const Lane& lane : lanes_) received = lane.up ? std::max(received, lane.last_received_ns) : received;
  const bool answered = elapsed(now, received) < kAnsweredNs;
  for (const Lane& lane : lanes_) moving |= flow_[lane.index].repath || lane.replacing;
  for (const Lane& lane : lanes_) {
    const Flow& flow = flow_[lane.index];
    PathSelector::Sample sample;
    sample.up = lane.up;
    sample.movable = lane.up && wanted(lane) && !lane.spare && !flow.slow_start && lane.fixed_weight < 0 &&
                     !moving;  // one at a time
    sample.busy = flow.in_flight > 0 && answered;
    sample.delivered = flow.delivered;
    sample.speed = runtime_->nic_bytes_per_second(lane.nic);
    sample.congested_segments = lane.congested_segments;
    sample.rtt_ns = lane.rtt_ns;
    sample.ahead = lane.rtt_ahead;
    paths_.sample(lane.index, sample, now);
  }
  uint32_t chosen = paths_.select(static_cast<uint32_t>(lanes_.size()), full_, now);
  if (chosen == PathSelector::kNobody) return;
  Flow& flow = flow_[chosen];
  const uint16_t port = paths_.returns() ? flow.port_before : 0;
  const uint32_t entropy = lanes_[chosen].transport ? lanes_[chosen].transport->entropy() : 0;
  flow.port_before = entropy >= 1024 && entropy <= UINT16_MAX ? static_cast<uint16_t>(entropy) : 0;
  repath(chosen, port, false, now);
}

}  // namespace fabricpulse
