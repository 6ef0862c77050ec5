#include "control/requests.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "control/commands.h"
#include "control/controlled_plugin.h"
#include "control/names.h"
#include "control/status.h"
#include "core/version.h"

namespace fabricpulse {
namespace {

constexpr size_t kRemembered = 1024;
constexpr uint64_t kStatusKeptNs = 50'000'000;  // half of what the telemetry's own numbers may be old
constexpr uint64_t kMaxEvents = 256;
constexpr const char* kOps[] = {"hello",        "status",      "events",      "nic.avoid",   "nic.restore",
                                "lane.disable", "lane.enable", "lane.weight", "lane.repath", "detail"};

bool connection_id(const std::string& text, uint64_t* id) {
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos) return false;
  *id = strtoull(text.c_str(), nullptr, 16);
  return true;
}

// What a request asks for, in one form: its operation and arguments without the identity and the generation.
std::string canonical(const JsonObject& request) {
  JsonWriter out;
  out.open('{');
  for (const auto& [name, value] : request) {  // ascending by name
    if (name == "op_id" || name == "generation") continue;
    out.foreign_key(name);
    switch (value.kind) {
      case JsonValue::Kind::kNull:
        out.null();
        break;
      case JsonValue::Kind::kBool:
        out.boolean(value.boolean);
        break;
      case JsonValue::Kind::kInteger:
        out.number(value.integer);
        break;
      case JsonValue::Kind::kString:
        out.string(value.text);
        break;
    }
  }
  return out.close('}').text();
}

}  // namespace

std::string ControlRequests::error(const std::string& op_id, const CommandFailure& failure) {
  JsonWriter out;
  out.open('{').field("ok", false);
  if (!op_id.empty()) out.field("op_id", op_id);
  out.key("error")
      .open('{')
      .field("code", failure.code)
      .field("message", failure.message)
      .close('}')
      .close('}');
  return out.text();
}

// Until something happens that is an event, or a connection or a lane comes or goes. What else has changed since, it
// does not have: it says how old it is.
bool ControlRequests::KeptStatus::holds(Telemetry* telemetry, uint64_t now) const {
  return at_ns != 0 && elapsed(now, at_ns) < kStatusKeptNs && events == telemetry->events_next() &&
         tables == __atomic_load_n(&telemetry->header()->tables_sequence, __ATOMIC_ACQUIRE);
}

std::string ControlRequests::status(std::string_view asked, const StatusQuery& query) {
  KeptStatus kept;
  Telemetry* telemetry = engine_->telemetry();
  kept.at_ns = engine_->now();
  kept.events = telemetry->events_next();
  kept.tables = __atomic_load_n(&telemetry->header()->tables_sequence, __ATOMIC_ACQUIRE);
  kept.asked = asked;
  kept.text = render_status(engine_, query, &sums_);
  std::string fresh = kept.at(kept.at_ns);
  // In the middle of a birth or death the next one is not the same.
  kept_ = kept.tables & 1 ? KeptStatus{} : std::move(kept);
  return fresh;
}

std::string ControlRequests::KeptStatus::at(uint64_t now) const {
  JsonWriter out;
  out.open('{').field("ok", true).field("age_ms", elapsed(now, at_ns) / 1'000'000).raw(text);
  return out.close('}').take();
}

std::string ControlRequests::answer(const char* text, size_t size, bool may_read, bool may_change) {
  if (may_read && std::string_view(text, size) == kept_.asked)
    if (const uint64_t now = engine_->now(); kept_.holds(engine_->telemetry(), now)) return kept_.at(now);
  JsonObject request;
  std::string why;
  if (!valid_utf8(text, size)) return error("", {"bad_request", "not a request: its text is not UTF-8"});
  if (!parse_json_object(text, size, &request, &why))
    return error("", {"bad_request", "not a request: " + why});
  const JsonValue* op = member(request, "op", JsonValue::Kind::kString);
  if (op == nullptr) return error("", {"bad_request", "\"op\" (the operation) is missing"});
  const JsonValue* op_id = member(request, "op_id", JsonValue::Kind::kString);
  std::string id = op_id ? op_id->text : "";
  if (!may_read) return error(id, {"denied", "only the job's user and root may talk to this socket"});
  if (op->text == "hello") return hello();
  if (op->text == "status") {
    if (request.count("op_id")) return status_of(id);
    StatusQuery query;
    CommandFailure failure{nullptr, ""};
    return status_query(request, &query, &failure) ? status(std::string_view(text, size), query)
                                                   : error(id, failure);
  }
  if (op->text == "events") return events(request);
  if (std::none_of(std::begin(kOps), std::end(kOps), [&](const char* known) { return op->text == known; }))
    return error(id,
                 {"unknown_op", "operation \"" + op->text + "\" is not known; hello lists those that are"});
  if (!may_change) return error(id, {"denied", "only the job's user and root may change something"});
  return change(op->text, request);
}

std::string ControlRequests::hello() {
  const fp_plugin_header* header = engine_->telemetry()->header();
  JsonWriter out;
  out.open('{').field("ok", true).field("protocol", uint64_t{1}).field("plugin_version", kPluginVersion);
  out.field("pid", uint64_t{header->pid}).field("host", header->host).field("workload", header->workload);
  rank_field(&out, "rank", header->rank);
  out.field("abi", header->abi).field("telemetry", engine_->telemetry()->path());
  out.field("start_host_ns", static_cast<uint64_t>(header->start_host_ns));
  out.key("ops").open('[');
  for (const char* op : kOps) out.string(op);
  out.close(']').close('}');
  return out.text();
}

bool ControlRequests::status_query(const JsonObject& request, StatusQuery* query, CommandFailure* failure) {
  if (request.count("connections")) {
    const JsonValue* connections = member(request, "connections", JsonValue::Kind::kBool);
    if (connections == nullptr) {
      *failure = {"bad_request", "\"connections\" must be true or false"};
      return false;
    }
    query->connections = connections->boolean;
  }
  if (request.count("after")) {
    const JsonValue* after = member(request, "after", JsonValue::Kind::kString);
    if (after == nullptr || !connection_id(after->text, &query->after)) {
      *failure = {"bad_request", "\"after\" must be a connection, 16 hexadecimal digits"};
      return false;
    }
  }
  if (request.count("limit")) {
    const JsonValue* limit = member(request, "limit", JsonValue::Kind::kInteger);
    if (limit == nullptr || limit->integer < 1 || limit->integer > INT32_MAX) {
      *failure = {"bad_request", "\"limit\" must be an integer, 1 or more"};
      return false;
    }
    query->limit = static_cast<uint32_t>(limit->integer);
  }
  return true;
}

std::string ControlRequests::done_text(const Done& done, const char* result) {
  JsonWriter out;
  out.open('{').field("ok", done.applied).field("op_id", done.op_id);
  if (done.applied) {
    out.field("result", result).field("generation", done.generation).key("changed").raw(done.changed);
  } else {
    out.key("error").raw(done.error);
  }
  out.close('}');
  return out.text();
}

std::string ControlRequests::status_of(const std::string& op_id) {
  for (auto it = done_.rbegin(); it != done_.rend(); ++it) {
    const Done& done = *it;
    if (done.op_id != op_id) continue;
    JsonWriter out;
    out.open('{')
        .field("ok", true)
        .field("op_id", op_id)
        .field("result", done.applied ? "applied" : "refused");
    out.field("generation", done.generation);
    if (done.applied) {
      out.key("changed").raw(done.changed);
    } else {
      out.key("error").raw(done.error);
    }
    out.field("age_ms", (engine_->now() - done.at_ns) / 1'000'000).close('}');
    return out.text();
  }
  JsonWriter out;
  out.open('{').field("ok", true).field("op_id", op_id).field("result", "unknown").close('}');
  return out.text();
}

std::string ControlRequests::events(const JsonObject& request) {
  Telemetry* telemetry = engine_->telemetry();
  uint64_t next = telemetry->events_next(), since = 0;
  if (request.count("since")) {
    const JsonValue* value = member(request, "since", JsonValue::Kind::kInteger);
    if (value == nullptr || value->integer < 0)
      return error("", {"bad_request", "\"since\" must be an integer, 0 or more"});
    since = static_cast<uint64_t>(value->integer);
  }
  uint64_t oldest = next > Telemetry::kEvents ? next - Telemetry::kEvents : 0;
  uint64_t start = std::max(std::min(since, next), oldest);
  uint64_t lost = request.count("since") && since < oldest ? oldest - since : 0;
  uint64_t end = std::min(next, start + kMaxEvents);
  JsonWriter out;
  out.open('{').field("ok", true).field("next", end).field("lost", lost).key("events").open('[');
  for (uint64_t i = start; i < end; ++i) {
    fp_plugin_event event;
    if (!telemetry->read_event(i, &event)) continue;
    out.open('{').field("index", i).key("host_ns").number(event.host_ns).field("mono_ns", event.mono_ns);
    out.field("kind", event_name(event.kind)).field("reason", reason_name(event.reason));
    out.key("connection");
    if (event.connection_id != 0) {
      out.string(hex(event.connection_id));
    } else {
      out.null();
    }
    out.key("lane");
    if (event.lane != UINT32_MAX) {
      out.unsigned_number(event.lane);
    } else {
      out.null();
    }
    out.key("device");
    if (event.device < engine_->nic_count()) {
      out.string(engine_->nic_name(event.device));
    } else {
      out.null();
    }
    out.field("peer", event.peer).field("peer_device", event.peer_device);
    out.field("epoch", uint64_t{event.epoch}).field("value", event.value).close('}');
  }
  out.close(']').close('}');
  return out.text();
}

// Everything that changes something goes through here: known before? too old? then do it, and remember.
std::string ControlRequests::change(const std::string& op, const JsonObject& request) {
  kept_ = {};
  const JsonValue* op_id = member(request, "op_id", JsonValue::Kind::kString);
  const JsonValue* generation = member(request, "generation", JsonValue::Kind::kInteger);
  if (op_id == nullptr || op_id->text.empty() || op_id->text.size() > 128)
    return error("", {"bad_request", op + " needs \"op_id\", a string of 1 to 128 bytes"});
  const std::string asked = canonical(request);
  for (const Done& done : done_) {
    if (done.op_id != op_id->text || !done.applied) continue;
    if (done.request == asked) return done_text(done, "duplicate");
    return error(op_id->text, {"op_id_reused", "op_id " + op_id->text + " was another operation: " +
                                                   done.request + "; nothing is changed"});
  }
  if (generation == nullptr || generation->integer < 0)
    return error(op_id->text, {"bad_request", op + " needs \"generation\", an integer, 0 or more"});
  uint64_t number = static_cast<uint64_t>(generation->integer);

  std::string target = "process";
  if (op.compare(0, 4, "nic.") == 0) {
    const JsonValue* device = member(request, "device", JsonValue::Kind::kString);
    if (device == nullptr)
      return error(op_id->text, {"bad_request", op + " needs \"device\", the name of a NIC"});
    target = "nic " + device->text;
  } else if (op.compare(0, 5, "lane.") == 0) {
    const JsonValue* connection = member(request, "connection", JsonValue::Kind::kString);
    const JsonValue* lane = member(request, "lane", JsonValue::Kind::kInteger);
    uint64_t id = 0;
    if (connection == nullptr || !connection_id(connection->text, &id) || lane == nullptr)
      return error(
          op_id->text,
          {"bad_request", op + " needs \"connection\", 16 hexadecimal digits, and \"lane\", an integer"});
    target = "lane " + connection->text + " " + std::to_string(lane->integer);
  }
  auto newest = generations_.find(target);
  if (newest != generations_.end() && number < newest->second)
    return error(op_id->text, {"stale_generation",
                               target + " was changed by generation " + std::to_string(newest->second) +
                                   " already; this request has " + std::to_string(number)});
  std::string changed = "[]";
  CommandFailure failure{nullptr, ""};
  bool applied;
  if (op == "nic.avoid" || op == "nic.restore") {
    applied = change_nic(engine_, request, op == "nic.avoid", &changed, &failure);
  } else if (op == "detail") {
    const JsonValue* level = member(request, "level", JsonValue::Kind::kInteger);
    applied = level != nullptr && level->integer >= 0 && level->integer <= 2;
    if (applied) {
      engine_->set_detail(static_cast<uint32_t>(level->integer));
    } else {
      failure = {"bad_request", "detail needs \"level\", 0, 1 or 2"};
    }
  } else {
    applied = change_lane(engine_, op, request, &changed, &failure);
  }
  if (!applied && strcmp(failure.code, "bad_request") == 0) return error(op_id->text, failure);
  Done done;
  done.op_id = op_id->text;
  done.request = asked;
  done.applied = applied;
  done.generation = number;
  done.changed = changed;
  done.at_ns = engine_->now();
  if (!applied) {
    JsonWriter text;
    text.open('{').field("code", failure.code).field("message", failure.message).close('}');
    done.error = text.text();
  }
  std::string text = done_text(done, "applied");
  if (applied) {
    // A lane that no longer exists will not be asked about again; the table must not grow with the job's age.
    if (generations_.size() >= 4 * kRemembered) {
      for (auto it = generations_.begin(); it != generations_.end();)
        it = it->first.compare(0, 5, "lane ") == 0 ? generations_.erase(it) : std::next(it);
    }
    generations_[target] = number;
    fp_plugin_header* header = engine_->telemetry()->header();
    if (number > header->generation) __atomic_store_n(&header->generation, number, __ATOMIC_RELEASE);
    EventFields fields{FP_EVENT_COMMAND};
    fields.reason = FP_REASON_COMMAND;
    fields.value = number;
    engine_->telemetry()->event(fields, engine_->event_time(engine_->now()));
  }
  // A refusal is remembered for status(op_id), but does not use up the id: the same request may succeed
  // later.
  done_.push_back(std::move(done));
  if (done_.size() > kRemembered) done_.pop_front();
  return text;
}

}  // namespace fabricpulse
