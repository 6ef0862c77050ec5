// The answer to `status`.
#ifndef FABRICPULSE_CONTROL_STATUS_H_
#define FABRICPULSE_CONTROL_STATUS_H_

#include <cstdint>
#include <string>

namespace fabricpulse {

class ControlledPlugin;

struct StatusQuery {
  bool connections = true;  // list them
  uint64_t after = 0;       // only those with a higher id
  uint32_t limit = UINT32_MAX;
};

// A page of the list ends before an answer would be longer than this; it fits into a socket's default buffer.
constexpr size_t kStatusPage = 64 * 1024;

// Reads the telemetry's records, so that it waits for nobody who moves data.
std::string render_status(ControlledPlugin* engine, const StatusQuery& query);

}  // namespace fabricpulse

#endif  // FABRICPULSE_CONTROL_STATUS_H_
