#include "job/environment.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace fabricpulse {
namespace {

// Digits and nothing else: strtoull would take blanks, and signs.
bool whole_number(const char* text, uint64_t* out) {
  if (text[0] < '0' || text[0] > '9') return false;
  char* end = nullptr;
  errno = 0;
  *out = strtoull(text, &end, 10);
  return errno == 0 && *end == '\0';
}

std::string assignment(const char* name, const char* value) { return std::string(name) + "=" + value; }

uint32_t rank_of_process(std::string* complaint) {
  for (const char* name :
       {"FABRICPULSE_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    const char* value = environment_text(name);
    if (value == nullptr) continue;
    uint64_t rank = 0;
    if (whole_number(value, &rank) && rank < UINT32_MAX) return static_cast<uint32_t>(rank);
    // Another variable, or the nearest number, might name another process's rank.
    *complaint += assignment(name, value) + " is no rank; it is unknown. ";
    break;
  }
  return UINT32_MAX;
}

}  // namespace

const char* environment_text(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && value[0] != '\0' ? value : nullptr;
}

void environment_number(const char* name, uint64_t low, uint64_t high, uint64_t unit, uint64_t* out,
                        std::string* complaint) {
  const char* value = environment_text(name);
  if (value == nullptr) return;
  uint64_t parsed = 0;
  if (!whole_number(value, &parsed)) {
    *complaint += assignment(name, value) + " is not a number; the default stands. ";
    return;
  }
  const uint64_t allowed = std::min(std::max(parsed, low), high);
  if (allowed != parsed)
    *complaint += assignment(name, value) + " is out of range; " + std::to_string(allowed) + " is used. ";
  *out = allowed * unit;
}

ProcessSettings ProcessSettings::from_environment(std::string* complaint) {
  ProcessSettings settings;
  if (const char* v = environment_text("FABRICPULSE_RUN_DIR")) settings.run_dir = v;
  for (const char* name : {"FABRICPULSE_WORKLOAD", "SLURM_JOB_ID"}) {
    const char* v = environment_text(name);
    if (v == nullptr) continue;
    settings.workload = v;
    break;
  }
  if (const char* v = environment_text("FABRICPULSE_HOST")) {
    settings.host = v;
  } else {
    char name[96] = {};
    if (gethostname(name, sizeof(name) - 1) == 0) settings.host = name;
  }
  settings.rank = rank_of_process(complaint);
  uint64_t telemetry = 1;
  environment_number("FABRICPULSE_TELEMETRY", 0, 1, 1, &telemetry, complaint);
  settings.telemetry = telemetry != 0;
  return settings;
}

}  // namespace fabricpulse
