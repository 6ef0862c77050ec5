#include "control/status.h"

#include <memory>
#include <utility>
#include <vector>

#include "control/controlled_plugin.h"
#include "control/names.h"

namespace fabricpulse {
namespace {

const char* wanted_name(const ControlledPlugin& engine, const Connection& connection, uint32_t lane,
                        uint32_t nic) {
  if (connection.disabled_here(lane)) return "disabled";
  return engine.nic_avoided(nic) ? "avoided" : "enabled";
}

// As the record of a lane that has not been made would be; a receiver does not know of such a lane (false).
bool planned_record(const ControlledPlugin& engine, const Connection& connection, uint32_t index,
                    fp_plugin_lane* r) {
  if (connection.direction() != Direction::kSend) return false;
  r->device = connection.planned_nic(index);
  r->index = index;
  const bool spare = connection.planned_spare(index);
  r->transport = engine.lane_kind(spare);
  r->state = *wanted_name(engine, connection, index, r->device) != 'e' ? FP_LANE_DISABLED
             : spare                                                   ? FP_LANE_SPARE
                                                                       : FP_LANE_CONNECTING;
  return true;
}

void add_lane(const ControlledPlugin& engine, const fp_plugin_lane& r, StatusSums* sums) {
  if (r.device >= engine.nic_count()) return;
  StatusSums::Nic& sum = sums->nics[r.device];
  sum.lanes += r.state != FP_LANE_SPARE && r.state != FP_LANE_LAST_RESORT;
  sum.up += r.state == FP_LANE_UP || r.state == FP_LANE_SLOW_START;
  sum.sent += r.sent_bytes;
  sum.received += r.received_bytes;
}

// Its record is not copied: a job has thousands.
void sum_lane(const ControlledPlugin& engine, const Connection& connection, uint32_t index,
              StatusSums* sums) {
  fp_plugin_lane r{};
  using Lane = fp_plugin_lane;
  if (const Lane* record = connection.lane_record(index)) {
    read_fields(record, std::pair{&Lane::device, &r.device}, std::pair{&Lane::state, &r.state},
                std::pair{&Lane::sent_bytes, &r.sent_bytes},
                std::pair{&Lane::received_bytes, &r.received_bytes});
  } else if (!planned_record(engine, connection, index, &r)) {
    return;
  }
  add_lane(engine, r, sums);
}

void render_lane(const ControlledPlugin& engine, const Connection& connection, uint32_t index, uint64_t now,
                 JsonWriter* out) {
  fp_plugin_lane r{};
  if (const fp_plugin_lane* record = connection.lane_record(index)) {
    read_record(record, &r);
  } else if (planned_record(engine, connection, index, &r)) {
    r.state_since_mono_ns = now;
  } else {
    return;
  }
  if (r.device >= engine.nic_count()) return;
  out->open('{').field("lane", uint64_t{r.index}).field("device", engine.nic_name(r.device));
  out->field("peer_device", r.peer_device).field("transport", r.transport == FP_LANE_VERBS ? "verbs" : "tcp");
  out->field("state", state_name(r.state)).field("reason", reason_name(r.last_reason));
  out->field("epoch", uint64_t{r.epoch}).field("queue_pair", r.queue_pair);
  out->field("entropy", uint64_t{r.entropy}).field("weight", uint64_t{r.weight});
  out->field("since_ms", elapsed(now, r.state_since_mono_ns) / 1'000'000);
  out->field("in_flight_bytes", r.in_flight_bytes).field("sent_bytes", r.sent_bytes);
  out->field("received_bytes", r.received_bytes).field("delivery_rate", r.delivery_rate);
  out->field("rtt_us", r.rtt_ns / 1000).field("failovers", r.failovers).field("stalls", r.stalls);
  out->field("repaths", r.repaths)
      .field("corrupt_frames", r.corrupt_frames)
      .field("wanted", wanted_name(engine, connection, index, r.device))
      .close('}');
}

void render_connection(ControlledPlugin& engine, const Connection& connection, const fp_plugin_connection& r,
                       uint64_t now, JsonWriter* out) {
  static constexpr const char* kStates[] = {"open", "open", "lost", "closing"};
  out->open('{').field("connection", hex(r.id)).field("direction", r.direction == 1 ? "send" : "receive");
  out->field("peer", r.peer).field("peer_pid", uint64_t{r.peer_pid});
  rank_field(out, "peer_rank", r.peer_rank);
  out->field("device", engine.nic_name(connection.device())).field("state", kStates[r.state & 3]);
  out->field("requests", uint64_t{r.requests}).field("waits_for", wait_name(r.waits_for));
  uint64_t since =
      r.last_progress_mono_ns > r.oldest_request_mono_ns ? r.last_progress_mono_ns : r.oldest_request_mono_ns;
  out->field("idle_ms", r.requests > 0 ? elapsed(now, since) / 1'000'000 : 0);
  out->field("missing_bytes", r.missing_bytes).field("bytes", r.bytes);
  out->key("flow");
  fp_plugin_collective collective{};
  const fp_plugin_collective* record = engine.telemetry()->collective(r.flow_collective);
  if (record != nullptr) read_record(record, &collective);
  if (collective.state == 0) {
    out->null();
  } else {
    out->open('{').field("collective", collective.function).field("algorithm", collective.algorithm);
    out->field("protocol", collective.protocol);
    rank_field(out, "rank", r.flow_rank);
    rank_field(out, "peer", r.flow_peer);
    rank_field(out, "channel", r.flow_channel);
    out->close('}');
  }
  out->key("lanes");
}

StatusSums take_sums(const ControlledPlugin& engine,
                     const std::vector<std::shared_ptr<Connection>>& connections, uint64_t now) {
  StatusSums sums;
  sums.at_ns = now;
  for (const auto& connection : connections) {
    fp_plugin_connection r{};
    using Record = fp_plugin_connection;
    read_fields(connection->record(), std::pair{&Record::requests, &r.requests},
                std::pair{&Record::waits_for, &r.waits_for});
    ++sums.total;
    sums.waiting += r.requests > 0 && (r.waits_for == FP_WAIT_LANE || r.waits_for == FP_WAIT_DELIVERY);
    for (uint32_t lane = 0; lane < connection->lane_count(); ++lane)
      sum_lane(engine, *connection, lane, &sums);
  }
  return sums;
}

}  // namespace

std::string render_status(ControlledPlugin* engine, const StatusQuery& query, StatusSums* sums) {
  const fp_plugin_header* header = engine->telemetry()->header();
  uint64_t now = engine->now(), listed = 0, last = 0;
  bool more = false;
  const auto connections = engine->connections();  // ascending by id
  if (query.after == 0 || sums->at_ns == 0 || elapsed(now, sums->at_ns) > kSumsNs)
    *sums = take_sums(*engine, connections, now);
  JsonWriter list;
  list.open('[');
  for (const auto& connection : connections) {
    const uint64_t id = connection->id();
    if (!query.connections || id <= query.after) continue;
    // Both ends of a connection may be in this process: they are on one page.
    if (id != last && (listed >= query.limit || list.text().size() >= kStatusPage)) {
      more = true;
      break;
    }
    fp_plugin_connection r{};
    read_record(connection->record(), &r);
    render_connection(*engine, *connection, r, now, &list);
    list.open('[');
    for (uint32_t lane = 0; lane < connection->lane_count(); ++lane)
      render_lane(*engine, *connection, lane, now, &list);
    list.close(']').close('}');
    ++listed;
    last = id;
  }
  list.close(']');
  JsonWriter out;
  out.field("pid", uint64_t{header->pid}).field("host", header->host);
  out.field("workload", header->workload)
      .field("generation", __atomic_load_n(&header->generation, __ATOMIC_ACQUIRE));
  out.field("detail", uint64_t{engine->detail()});
  out.key("devices").open('[');
  for (uint32_t i = 0; i < engine->nic_count(); ++i) {
    out.open('{').field("device", engine->nic_name(i)).field("link", engine->link_up(i) ? "up" : "down");
    out.field("avoided", engine->nic_avoided(i));
    out.field("speed_mbps", engine->nic_bytes_per_second(i) / 125'000);
    out.field("lanes", sums->nics[i].lanes).field("lanes_up", sums->nics[i].up);
    out.field("sent_bytes", sums->nics[i].sent).field("received_bytes", sums->nics[i].received).close('}');
  }
  out.close(']').field("waiting", sums->waiting).field("connections_total", sums->total);
  if (query.connections) {
    out.key("connections").raw(list.text());
    out.key("next");
    if (more) {
      out.string(hex(last));
    } else {
      out.null();
    }
  }
  return out.take();
}

}  // namespace fabricpulse
