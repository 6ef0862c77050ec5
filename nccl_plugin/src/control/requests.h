// What the control socket answers (docs/control-protocol.md), without the socket.
#ifndef FABRICPULSE_CONTROL_REQUESTS_H_
#define FABRICPULSE_CONTROL_REQUESTS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "control/commands.h"
#include "control/json.h"
#include "control/status.h"

namespace fabricpulse {

class ControlledPlugin;
class Telemetry;

// One thread at a time. Questions are answered from the telemetry and wait for no connection; changes take
// the lock of the connections that they concern.
class ControlRequests {
 public:
  explicit ControlRequests(ControlledPlugin* engine) : engine_(engine) {}

  // Answers one message. `may_read`, `may_change`: what the client's credentials allow.
  std::string answer(const char* text, size_t size, bool may_read, bool may_change);

  static std::string error(const std::string& op_id, const CommandFailure& failure);

 private:
  struct Done {
    std::string op_id;
    std::string request;  // operation and arguments
    bool applied = false;
    uint64_t generation = 0;
    std::string changed;  // JSON array
    std::string error;    // JSON object
    uint64_t at_ns = 0;
  };

  // The last answer to `status`: clients that ask the same again and again get it as long as it holds.
  struct KeptStatus {
    std::string asked;  // the whole message
    std::string text;   // of render_status()
    uint64_t at_ns = 0, events = 0, tables = 0;
    bool holds(Telemetry* telemetry, uint64_t now) const;
    std::string at(uint64_t now) const;
  };

  std::string hello();
  std::string status(std::string_view asked, const StatusQuery& query);
  std::string status_of(const std::string& op_id);
  static bool status_query(const JsonObject& request, StatusQuery* query, CommandFailure* failure);
  std::string events(const JsonObject& request);
  std::string change(const std::string& op, const JsonObject& request);
  static std::string done_text(const Done& done, const char* result);

  ControlledPlugin* engine_;
  KeptStatus kept_;
  StatusSums sums_;                              // of the last answer to `status` that has taken them
  std::deque<Done> done_;                        // newest last
  std::map<std::string, uint64_t> generations_;  // newest accepted, by target
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CONTROL_REQUESTS_H_
