// What the commands of the control protocol do to NICs and lanes (docs/control-protocol.md). Who may send one, whether
// it was seen before and whether it is too old is settled before (requests.h).
#ifndef FABRICPULSE_CONTROL_COMMANDS_H_
#define FABRICPULSE_CONTROL_COMMANDS_H_

#include <string>

#include "control/json.h"

namespace fabricpulse {

class ControlledPlugin;

struct CommandFailure {
  const char* code;  // of the protocol
  std::string message;
};

// nic.avoid and nic.restore. request : has "device", a string. changed : JSON array of the lanes that it concerns.
// False, with nothing changed and the failure: an unknown NIC, or the last healthy lane of a connection.
bool change_nic(ControlledPlugin* engine, const JsonObject& request, bool avoid, std::string* changed,
                CommandFailure* failure);

// Operations that begin with "lane.". request : has "connection", 16 hexadecimal digits, and "lane", an integer. The
// rest as above.
bool change_lane(ControlledPlugin* engine, const std::string& op, const JsonObject& request,
                 std::string* changed, CommandFailure* failure);

}  // namespace fabricpulse

#endif  // FABRICPULSE_CONTROL_COMMANDS_H_
