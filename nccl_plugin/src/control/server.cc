#include "control/server.h"

#include <errno.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "engine.h"

namespace fabricpulse {
namespace {

constexpr size_t kMaxMessage = 256 * 1024;
constexpr size_t kMaxClients = 32;
constexpr size_t kRemembered = 1024;
constexpr uint64_t kMaxEvents = 256;
constexpr const char* kOps[] = {"hello",        "status",      "events",      "nic.avoid",   "nic.restore",
                                "lane.disable", "lane.enable", "lane.weight", "lane.repath", "detail"};

const char* state_name(fp_lane_state state) {
  static constexpr const char* kNames[] = {"free",    "connecting", "up",     "slow_start",
                                           "fencing", "down",       "damped", "disabled"};
  return kNames[state];
}
const char* reason_name(uint32_t reason) {
  static constexpr const char* kNames[] = {"none", "stall",   "link_down", "socket_error",
                                           "peer", "command", "protocol",  "repath"};
  return reason < 8 ? kNames[reason] : "none";
}
const char* wait_name(fp_wait wait) {
  static constexpr const char* kNames[] = {"nothing",   "peer_receive", "delivery",
                                           "peer_send", "arrival",      "lane"};
  return kNames[wait];
}
const char* event_name(uint32_t kind) {
  static constexpr const char* kNames[] = {"none",         "lane_up",   "lane_down", "lane_fenced",
                                           "chunks_moved", "link_down", "link_up",   "peer_lost",
                                           "command",      "repath",    "no_lane",   "lane_damped"};
  return kind < 12 ? kNames[kind] : "none";
}

std::string hex(uint64_t id) {
  char text[17];
  snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(id));
  return text;
}

const JsonValue* find(const JsonObject& object, const char* name, JsonValue::Kind kind) {
  auto found = object.find(name);
  return found != object.end() && found->second.kind == kind ? &found->second : nullptr;
}

void rank_field(JsonWriter* out, const char* name, uint32_t rank) {
  out->key(name);
  if (rank == UINT32_MAX) {
    out->null();
  } else {
    out->unsigned_number(rank);
  }
}

void changed_entry(JsonWriter* out, const Connection& connection, uint32_t lane) {
  out->open('{').field("connection", hex(connection.id())).field("lane", uint64_t{lane}).close('}');
}

}  // namespace

ControlServer::~ControlServer() {
  for (auto& entry : clients_) ::close(entry.second.fd);
  if (fd_ >= 0) ::close(fd_);
  if (!path_.empty()) unlink(path_.c_str());
}

void ControlServer::open(std::string* complaint) {
  const Config& config = engine_->config();
  std::string path = config.run_dir + "/plugin/" + std::to_string(getpid()) + ".sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    *complaint = "no control socket: the path " + path + " is too long";
    return;
  }
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  mode_t mode = 0600;
  if (!config.control_group.empty()) {
    group* entry = getgrnam(config.control_group.c_str());
    if (entry != nullptr) {
      group_ = entry->gr_gid;
      mode = 0660;
    } else {
      *complaint = "FABRICPULSE_CONTROL_GROUP=" + config.control_group +
                   " is no group of this host; only the job's user and root may connect";
    }
  }
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  unlink(path.c_str());
  // The mode is set before anybody can connect: between bind and listen.
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), mode) != 0 ||
      (mode == 0660 && chown(path.c_str(), static_cast<uid_t>(-1), group_) != 0) || listen(fd, 64) != 0) {
    *complaint += "no control socket: " + path + ": " + strerror(errno);
    if (fd >= 0) ::close(fd);
    return;
  }
  fd_ = fd;
  path_ = path;
}

void ControlServer::accept_client(const std::function<void(int fd, uint64_t id)>& watch) {
  int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  Client client;
  client.fd = fd;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0) {
    client.may_change = credentials.uid == geteuid() || credentials.uid == 0;
    client.may_look =
        client.may_change || group_ != static_cast<gid_t>(-1);  // the mode has let it in by its group
  }
  if (clients_.size() >= kMaxClients) drop(clients_.begin()->first);  // the oldest
  uint64_t id = next_client_++;
  clients_[id] = client;
  watch(fd, id);
}

void ControlServer::drop(uint64_t id) {
  auto found = clients_.find(id);
  if (found == clients_.end()) return;
  ::close(found->second.fd);  // leaves the epoll set by itself
  clients_.erase(found);
}

void ControlServer::serve(uint64_t id, const std::function<void(int fd, uint64_t id)>& watch) {
  if (id == 0) {
    accept_client(watch);
    return;
  }
  auto found = clients_.find(id);
  if (found == clients_.end()) return;
  static thread_local char buffer[kMaxMessage];
  iovec vector{buffer, sizeof(buffer)};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  // One message a round: a client that floods waits its turn behind the timers.
  ssize_t got = recvmsg(found->second.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    drop(id);
    return;
  }
  std::string text;
  if (message.msg_flags & MSG_TRUNC) {
    text = error("", {"bad_request", "the message is longer than 256 KiB"});
  } else {
    text = answer(buffer, static_cast<size_t>(got), found->second.may_look, found->second.may_change);
  }
  int room = static_cast<int>(std::max<size_t>(text.size() * 2, 65536));
  setsockopt(found->second.fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
  if (send(found->second.fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) drop(id);
}

std::string ControlServer::error(const std::string& op_id, const Failure& failure) {
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

std::string ControlServer::answer(const char* text, size_t size, bool may_look, bool may_change) {
  JsonObject request;
  std::string why;
  if (!parse_json_object(text, size, &request, &why))
    return error("", {"bad_request", "not a request: " + why});
  const JsonValue* op = find(request, "op", JsonValue::Kind::kString);
  if (op == nullptr) return error("", {"bad_request", "\"op\" is missing; it says what to do"});
  const JsonValue* op_id = find(request, "op_id", JsonValue::Kind::kString);
  std::string id = op_id ? op_id->text : "";
  if (!may_look) return error(id, {"denied", "only the job's user and root may talk to this socket"});
  if (op->text == "hello") return hello();
  if (op->text == "status") {
    const JsonValue* connections = find(request, "connections", JsonValue::Kind::kBool);
    return request.count("op_id") ? status_of(id) : status(connections == nullptr || connections->boolean);
  }
  if (op->text == "events") return events(request);
  if (std::none_of(std::begin(kOps), std::end(kOps), [&](const char* known) { return op->text == known; }))
    return error(id,
                 {"unknown_op", "operation \"" + op->text + "\" is not known; hello lists those that are"});
  if (!may_change) return error(id, {"denied", "only the job's user and root may change something"});
  return change(op->text, request);
}

std::string ControlServer::hello() {
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

std::string ControlServer::status(bool with_connections) {
  fp_plugin_header* header = engine_->telemetry()->header();
  uint64_t now = engine_->now();
  JsonWriter out;
  out.open('{').field("ok", true).field("pid", uint64_t{header->pid}).field("host", header->host);
  out.field("workload", header->workload).field("generation", header->generation);
  out.field("detail", uint64_t{engine_->detail()});
  uint32_t lanes[kMaxNics] = {}, up[kMaxNics] = {};
  uint64_t sent[kMaxNics] = {}, received[kMaxNics] = {}, waiting = 0;
  JsonWriter list;
  list.open('[');
  for (auto& connection : engine_->connections()) {
    Entered entered(connection.get());
    const ProcessIdentity& peer = connection->peer();
    bool send = connection->direction() == Direction::kSend;
    std::string_view waits_for = wait_name(connection->waits_for());
    waiting += connection->requests() > 0 && (waits_for == "lane" || waits_for == "delivery");
    list.open('{').field("connection", hex(connection->id())).field("direction", send ? "send" : "receive");
    list.field("peer", peer.host).field("peer_pid", uint64_t{peer.pid});
    rank_field(&list, "peer_rank", peer.rank);
    list.field("device", engine_->nic_name(connection->device()));
    list.field("state", connection->lost() ? "lost" : connection->closed_by_peer() ? "closing" : "open");
    list.field("requests", uint64_t{connection->requests()})
        .field("waits_for", wait_name(connection->waits_for()));
    list.field("bytes", connection->record()->bytes);
    list.key("lanes").open('[');
    for (const Lane& lane : connection->lanes()) {
      if (!lane.named) continue;
      ++lanes[lane.nic];
      up[lane.nic] += lane.up;
      static const fp_plugin_lane kNothing{};
      const fp_plugin_lane& r = lane.record ? *lane.record : kNothing;
      sent[lane.nic] += r.sent_bytes;
      received[lane.nic] += r.received_bytes;
      const char* wanted = lane.disabled                    ? "disabled"
                           : engine_->nic_avoided(lane.nic) ? "avoided"
                                                            : "enabled";
      list.open('{').field("lane", uint64_t{lane.index}).field("device", engine_->nic_name(lane.nic));
      list.field("peer_device", lane.peer_device)
          .field("transport", "tcp")
          .field("state", state_name(lane.state));
      list.field("reason", reason_name(lane.reason))
          .field("epoch", uint64_t{connection->lane_epoch(lane.index)});
      list.field("queue_pair", r.queue_pair).field("entropy", uint64_t{r.entropy});
      list.field("weight", uint64_t{r.weight})
          .field("since_ms", elapsed(now, lane.state_since_ns) / 1'000'000);
      list.field("in_flight_bytes", connection->lane_in_flight(lane.index)).field("sent_bytes", r.sent_bytes);
      list.field("received_bytes", r.received_bytes).field("delivery_rate", r.delivery_rate);
      list.field("rtt_us", lane.rtt_ns / 1000).field("failovers", r.failovers).field("stalls", r.stalls);
      list.field("repaths", r.repaths).field("wanted", wanted).close('}');
    }
    list.close(']').close('}');
  }
  list.close(']');
  out.key("devices").open('[');
  for (uint32_t i = 0; i < engine_->nic_count(); ++i) {
    const Engine::Nic& nic = engine_->nic(i);
    out.open('{').field("device", nic.name).field("link", nic.link_up.load() ? "up" : "down");
    out.field("avoided", nic.avoided.load()).field("speed_mbps", uint64_t{nic.speed_mbps});
    out.field("lanes", uint64_t{lanes[i]}).field("lanes_up", uint64_t{up[i]});
    out.field("sent_bytes", sent[i]).field("received_bytes", received[i]).close('}');
  }
  out.close(']').field("waiting", waiting);
  // A job of many peers has more lanes than one message holds; whoever steers NICs asks without them.
  if (with_connections) out.key("connections").raw(list.text());
  out.close('}');
  return out.text();
}

std::string ControlServer::done_text(const Done& done, const char* result) {
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

std::string ControlServer::status_of(const std::string& op_id) {
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

std::string ControlServer::events(const JsonObject& request) {
  Telemetry* telemetry = engine_->telemetry();
  uint64_t next = telemetry->events_next(), since = 0;
  if (request.count("since")) {
    const JsonValue* value = find(request, "since", JsonValue::Kind::kInteger);
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
std::string ControlServer::change(const std::string& op, const JsonObject& request) {
  const JsonValue* op_id = find(request, "op_id", JsonValue::Kind::kString);
  const JsonValue* generation = find(request, "generation", JsonValue::Kind::kInteger);
  if (op_id == nullptr || op_id->text.empty() || op_id->text.size() > 128)
    return error("", {"bad_request", op + " needs \"op_id\", a string of 1 to 128 bytes"});
  for (const Done& done : done_)
    if (done.op_id == op_id->text && done.applied) return done_text(done, "duplicate");
  if (generation == nullptr || generation->integer < 0)
    return error(op_id->text, {"bad_request", op + " needs \"generation\", an integer, 0 or more"});
  uint64_t number = static_cast<uint64_t>(generation->integer);

  std::string target = "process";
  if (op.compare(0, 4, "nic.") == 0) {
    const JsonValue* device = find(request, "device", JsonValue::Kind::kString);
    if (device == nullptr)
      return error(op_id->text, {"bad_request", op + " needs \"device\", the name of a NIC"});
    target = "nic " + device->text;
  } else if (op.compare(0, 5, "lane.") == 0) {
    const JsonValue* connection = find(request, "connection", JsonValue::Kind::kString);
    const JsonValue* lane = find(request, "lane", JsonValue::Kind::kInteger);
    if (connection == nullptr || connection->text.size() != 16 ||
        connection->text.find_first_not_of("0123456789abcdef") != std::string::npos || lane == nullptr)
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
  Failure failure{nullptr, ""};
  bool applied;
  if (op == "nic.avoid" || op == "nic.restore") {
    applied = change_nic(request, op == "nic.avoid", &changed, &failure);
  } else if (op == "detail") {
    const JsonValue* level = find(request, "level", JsonValue::Kind::kInteger);
    applied = level != nullptr && level->integer >= 0 && level->integer <= 2;
    if (applied) {
      engine_->set_detail(static_cast<uint32_t>(level->integer));
    } else {
      failure = {"bad_request", "detail needs \"level\", 0, 1 or 2"};
    }
  } else {
    applied = change_lane(op, request, &changed, &failure);
  }
  if (!applied && strcmp(failure.code, "bad_request") == 0) return error(op_id->text, failure);
  Done done;
  done.op_id = op_id->text;
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
    // A lane that is gone will not be asked about again; the table must not grow with the job's age.
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
    engine_->telemetry()->event(fields, engine_->host_clock(), engine_->now());
  }
  // A refusal is remembered for status(op_id), but does not use up the id: the same request may succeed
  // later.
  done_.push_back(std::move(done));
  if (done_.size() > kRemembered) done_.pop_front();
  return text;
}

bool ControlServer::change_nic(const JsonObject& request, bool avoid, std::string* changed,
                               Failure* failure) {
  const std::string& name = find(request, "device", JsonValue::Kind::kString)->text;
  uint32_t index = 0;
  if (engine_->find_nic(name, &index) == nullptr) {
    *failure = {"unknown_device", "NIC " + name + " is not one that this process uses"};
    return false;
  }
  auto connections = engine_->connections();
  if (avoid) {
    for (auto& connection : connections) {
      Entered entered(connection.get());
      if (connection->lost() || connection->closed_by_peer()) continue;
      uint32_t left = 0, taken = 0;
      for (const Lane& lane : connection->lanes()) {
        if (!lane.up || !connection->wanted(lane)) continue;
        (lane.nic == index ? taken : left) += 1;
      }
      if (taken > 0 && left == 0) {
        *failure = {"last_healthy_lane",
                    name + " stays in service: " + connection->describe() + " has no other healthy lane"};
        return false;
      }
    }
  }
  engine_->set_avoided(index, avoid);
  JsonWriter list;
  list.open('[');
  uint64_t now = engine_->now();
  for (auto& connection : connections) {
    Entered entered(connection.get());
    bool any = false;
    for (const Lane& lane : connection->lanes()) {
      if (!lane.named || lane.nic != index) continue;
      any = true;
      changed_entry(&list, *connection, lane.index);
    }
    if (any) connection->desired_changed(now);
  }
  list.close(']');
  *changed = list.text();
  return true;
}

bool ControlServer::change_lane(const std::string& op, const JsonObject& request, std::string* changed,
                                Failure* failure) {
  const std::string& connection_text = find(request, "connection", JsonValue::Kind::kString)->text;
  uint64_t id = strtoull(connection_text.c_str(), nullptr, 16);
  int64_t index = find(request, "lane", JsonValue::Kind::kInteger)->integer;
  std::shared_ptr<Connection> connection;
  for (auto& candidate : engine_->connections())
    if (candidate->id() == id) connection = candidate;
  if (!connection) {
    *failure = {"unknown_lane", "connection " + connection_text + " is not open in this process"};
    return false;
  }
  uint64_t now = engine_->now();
  Entered entered(connection.get());
  if (index < 0 || static_cast<size_t>(index) >= connection->lanes().size()) {
    *failure = {"unknown_lane", "connection " + connection_text + " has lanes 0 to " +
                                    std::to_string(connection->lanes().size() - 1)};
    return false;
  }
  Lane& lane = connection->lanes()[static_cast<size_t>(index)];
  bool last = lane.up && connection->wanted(lane) && connection->lanes_healthy() == 1;
  bool sends = connection->direction() == Direction::kSend;
  if (op == "lane.disable") {
    if (last) {
      *failure = {"last_healthy_lane", "lane " + std::to_string(index) + " stays in service: " +
                                           connection->describe() + " has no other healthy lane"};
      return false;
    }
  }
  if ((op == "lane.weight" || op == "lane.repath") && !sends) {
    *failure = {"bad_request", op + " is for the sending end of a connection"};
    return false;
  }
  if (op == "lane.disable" || op == "lane.enable") {
    lane.disabled = op == "lane.disable";
    connection->desired_changed(now);
  } else if (op == "lane.repath") {
    auto entropy = request.find("entropy");
    bool any = entropy == request.end() || entropy->second.kind == JsonValue::Kind::kNull;
    if (!any && (entropy->second.kind != JsonValue::Kind::kInteger || entropy->second.integer < 1024 ||
                 entropy->second.integer > 65535)) {
      *failure = {"bad_request", "lane.repath takes \"entropy\", a source port from 1024 to 65535, or null"};
      return false;
    }
    static_cast<Sender*>(connection.get())
        ->repath(static_cast<uint32_t>(index), any ? 0 : static_cast<uint16_t>(entropy->second.integer), true,
                 now);
  } else {
    auto weight = request.find("weight");
    bool automatic = weight != request.end() && weight->second.kind == JsonValue::Kind::kNull;
    if (weight == request.end() ||
        (!automatic && (weight->second.kind != JsonValue::Kind::kInteger || weight->second.integer < 0 ||
                        weight->second.integer > 1000))) {
      *failure = {"bad_request", "lane.weight needs \"weight\", 0 to 1000 or null"};
      return false;
    }
    static_cast<Sender*>(connection.get())
        ->set_weight(static_cast<uint32_t>(index),
                     automatic ? -1 : static_cast<int32_t>(weight->second.integer));
  }
  JsonWriter list;
  list.open('[');
  changed_entry(&list, *connection, static_cast<uint32_t>(index));
  list.close(']');
  *changed = list.text();
  return true;
}

}  // namespace fabricpulse
