// The answer to `status`.
#ifndef FABRICPULSE_CONTROL_STATUS_H_
#define FABRICPULSE_CONTROL_STATUS_H_

#include <cstdint>
#include <string>

#include "core/wire.h"

namespace fabricpulse {

class ControlledPlugin;

struct StatusQuery {
  bool connections = true;  // list them
  uint64_t after = 0;       // only those with a higher id
  uint32_t limit = UINT32_MAX;
};

// The status of the whole job. To read it takes longer than a page does: a client that asks for one page after
// the other gets it once, see kSumsNs.
struct StatusSums {
  struct Nic {
    uint64_t lanes = 0, up = 0, sent = 0, received = 0;
  };
  Nic nics[kMaxNics];
  uint64_t waiting = 0, total = 0;
  uint64_t at_ns = 0;  // 0: never taken
};

// Pages after the first have the sums of an answer that is no older.
constexpr uint64_t kSumsNs = 10'000'000'000;

// A page of the list ends before an answer would be longer than this; it fits into a socket's default buffer.
constexpr size_t kStatusPage = 64 * 1024;

// The members of the answer, without "ok". Reads the telemetry's records, so that it never waits for a thread that moves
// data. sums: of the last answer.
std::string render_status(ControlledPlugin* engine, const StatusQuery& query, StatusSums* sums);

}  // namespace fabricpulse

#endif  // FABRICPULSE_CONTROL_STATUS_H_
