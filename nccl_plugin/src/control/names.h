// What states, reasons, waits and events are called in answers (docs/control-protocol.md).
#ifndef FABRICPULSE_CONTROL_NAMES_H_
#define FABRICPULSE_CONTROL_NAMES_H_

#include <cstdint>
#include <string>

#include "control/json.h"
#include "fabricpulse/plugin_telemetry.h"

namespace fabricpulse {

inline const char* state_name(uint32_t state) {
  static constexpr const char* kNames[] = {"free", "connecting", "up",       "slow_start",  "fencing",
                                           "down", "damped",     "disabled", "last_resort", "spare"};
  return state < 10 ? kNames[state] : "free";
}
inline const char* reason_name(uint32_t reason) {
  static constexpr const char* kNames[] = {"none",    "stall",    "link_down",   "socket_error",
                                           "peer",    "command",  "protocol",    "repath",
                                           "corrupt", "deadline", "unreachable", "relieved"};
  return reason < 12 ? kNames[reason] : "none";
}
inline const char* wait_name(uint32_t wait) {
  static constexpr const char* kNames[] = {"nothing",   "peer_receive", "delivery",
                                           "peer_send", "arrival",      "lane"};
  return wait < 6 ? kNames[wait] : "nothing";
}
inline const char* event_name(uint32_t kind) {
  static constexpr const char* kNames[] = {
      "none",      "lane_up", "lane_down", "lane_fenced", "chunks_moved", "link_down",       "link_up",
      "peer_lost", "command", "repath",    "no_lane",     "lane_damped",  "lane_unreachable"};
  return kind < 13 ? kNames[kind] : "none";
}

inline std::string hex(uint64_t id) {
  std::string text(16, '0');
  for (size_t at = text.size(); at-- > 0; id >>= 4) text[at] = "0123456789abcdef"[id & 0xf];
  return text;
}

inline void rank_field(JsonWriter* out, const char* name, uint32_t rank) {
  out->key(name);
  if (rank == UINT32_MAX) {
    out->null();
  } else {
    out->unsigned_number(rank);
  }
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_CONTROL_NAMES_H_
