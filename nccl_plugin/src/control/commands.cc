#include "control/commands.h"

#include <cstdlib>
#include <memory>

#include "control/controlled_plugin.h"
#include "control/names.h"
#include "core/send_connection.h"

namespace fabricpulse {
namespace {

void changed_entry(JsonWriter* out, const Connection& connection, uint32_t lane) {
  out->open('{').field("connection", hex(connection.id())).field("lane", uint64_t{lane}).close('}');
}

}  // namespace

bool change_nic(ControlledPlugin* engine, const JsonObject& request, bool avoid, std::string* changed,
                CommandFailure* failure) {
  const std::string& name = member(request, "device", JsonValue::Kind::kString)->text;
  uint32_t index = 0;
  if (!engine->find_nic(name, &index)) {
    *failure = {"unknown_device", "NIC " + name + " is not one that this process uses"};
    return false;
  }
  auto connections = engine->connections();
  if (avoid) {
    for (auto& connection : connections) {
      ConnectionLock locked(connection.get());
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
  engine->set_avoided(index, avoid);
  JsonWriter list;
  list.open('[');
  uint64_t now = engine->now();
  for (auto& connection : connections) {
    ConnectionLock locked(connection.get());
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

bool change_lane(ControlledPlugin* engine, const std::string& op, const JsonObject& request,
                 std::string* changed, CommandFailure* failure) {
  const std::string& connection_text = member(request, "connection", JsonValue::Kind::kString)->text;
  uint64_t id = strtoull(connection_text.c_str(), nullptr, 16);
  int64_t index = member(request, "lane", JsonValue::Kind::kInteger)->integer;
  std::shared_ptr<Connection> connection;
  for (auto& candidate : engine->connections())
    // The sending end, if both are in this process: it decides about weights and paths.
    if (candidate->id() == id && (!connection || candidate->direction() == Direction::kSend))
      connection = candidate;
  if (!connection) {
    *failure = {"unknown_lane", "connection " + connection_text + " is not open in this process"};
    return false;
  }
  uint64_t now = engine->now();
  ConnectionLock locked(connection.get());
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
    connection->set_disabled(static_cast<uint32_t>(index), op == "lane.disable");
    connection->desired_changed(now);
  } else if (op == "lane.repath") {
    auto entropy = request.find("entropy");
    bool any = entropy == request.end() || entropy->second.kind == JsonValue::Kind::kNull;
    if (!any && (entropy->second.kind != JsonValue::Kind::kInteger || entropy->second.integer < 1024 ||
                 entropy->second.integer > 65535)) {
      *failure = {"bad_request", "lane.repath takes \"entropy\", a source port from 1024 to 65535, or null"};
      return false;
    }
    static_cast<SendConnection*>(connection.get())
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
    static_cast<SendConnection*>(connection.get())
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
