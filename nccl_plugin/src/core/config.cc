#include "core/config.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace fabricpulse {
namespace {

const char* text(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && value[0] != '\0' ? value : nullptr;
}

void number(const char* name, uint64_t low, uint64_t high, uint64_t unit, uint64_t* out,
            std::string* complaint) {
  const char* value = text(name);
  if (value == nullptr) return;
  char* end = nullptr;
  errno = 0;
  unsigned long long parsed = strtoull(value, &end, 10);
  if (errno != 0 || *end != '\0' || value[0] == '-') {
    *complaint += std::string(name) + "=" + value + " is not a number; the default stands. ";
    return;
  }
  uint64_t clamped = std::min<uint64_t>(std::max<uint64_t>(parsed, low), high);
  if (clamped != parsed)
    *complaint +=
        std::string(name) + "=" + value + " is out of range; " + std::to_string(clamped) + " is used. ";
  *out = clamped * unit;
}

JobNames job_names() {
  JobNames job;
  const std::pair<const char*, std::string*> names[] = {{"SLURM_JOB_ID", &job.slurm_job},
                                                        {"SLURM_JOB_ACCOUNT", &job.account},
                                                        {"POD_NAME", &job.pod_name},
                                                        {"POD_NAMESPACE", &job.pod_namespace},
                                                        {"POD_UID", &job.pod_uid}};
  for (auto [name, to] : names)
    if (const char* v = text(name)) *to = v;
  for (const char* name : {"SLURM_JOB_NUM_NODES", "SLURM_NNODES"}) {
    const char* v = text(name);
    if (v == nullptr) continue;
    // Not ours, and nothing hangs on it: what is no number says nothing, without a complaint.
    char* end = nullptr;
    unsigned long nodes = strtoul(v, &end, 10);
    if (*end == '\0' && v[0] != '-' && nodes < UINT32_MAX) job.nodes = static_cast<uint32_t>(nodes);
    break;
  }
  return job;
}

}  // namespace

Config Config::from_environment(std::string* complaint) {
  Config config;
  if (const char* v = text("FABRICPULSE_RUN_DIR")) config.run_dir = v;
  if (const char* v = text("FABRICPULSE_NICS")) config.nics = v;
  if (const char* v = text("FABRICPULSE_NICS_EXCLUDE")) config.nics_exclude = v;
  if (const char* v = text("FABRICPULSE_CONTROL_GROUP")) config.control_group = v;
  if (const char* v = text("FABRICPULSE_IBVERBS")) config.ibverbs = v;
  if (const char* v = text("FABRICPULSE_LAST_RESORT")) config.last_resort = v;
  if (const char* v = text("FABRICPULSE_LANES")) {
    std::string choice = v;
    if (choice == "verbs") config.lanes = LaneChoice::kVerbs;
    if (choice == "tcp") config.lanes = LaneChoice::kTcp;
    if (choice != "verbs" && choice != "tcp" && choice != "auto")
      *complaint += "FABRICPULSE_LANES=" + choice + " is none of auto, verbs, tcp; auto stands. ";
  }
  for (const char* name : {"FABRICPULSE_WORKLOAD", "SLURM_JOB_ID"}) {
    if (const char* v = text(name)) {
      config.workload = v;
      break;
    }
  }
  config.job = job_names();
  if (const char* v = text("FABRICPULSE_HOST")) {
    config.host = v;
  } else {
    char name[96] = {};
    if (gethostname(name, sizeof(name) - 1) == 0) config.host = name;
  }
  uint64_t value = UINT64_MAX;
  for (const char* name :
       {"FABRICPULSE_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    if (text(name) == nullptr) continue;
    number(name, 0, UINT32_MAX - 1, 1, &value, complaint);
    if (value != UINT64_MAX) config.rank = static_cast<uint32_t>(value);
    break;
  }
  value = config.max_lanes;
  number("FABRICPULSE_MAX_LANES", 1, 16, 1, &value, complaint);
  config.max_lanes = static_cast<uint32_t>(value);
  value = 1;
  number("FABRICPULSE_BALANCE", 0, 1, 1, &value, complaint);
  config.balance = value != 0;
  value = 1;
  number("FABRICPULSE_REPATH", 0, 1, 1, &value, complaint);
  config.repath = value != 0;
  value = UINT64_MAX;
  number("FABRICPULSE_PAYLOAD_CRC", 0, 1, 1, &value, complaint);
  if (value != UINT64_MAX) config.payload_crc = static_cast<int>(value);
  value = config.paths;
  number("FABRICPULSE_PATHS", 1, 16, 1, &value, complaint);
  config.paths = static_cast<uint32_t>(value);
  value = 1;
  number("FABRICPULSE_TELEMETRY", 0, 1, 1, &value, complaint);
  config.telemetry = value != 0;
  value = 0;
  number("FABRICPULSE_DETAIL", 0, 2, 1, &value, complaint);
  config.detail = static_cast<uint32_t>(value);
  number("FABRICPULSE_STALL_MS", 20, 10'000, 1'000'000, &config.stall_ns, complaint);
  number("FABRICPULSE_PEER_TIMEOUT_S", 1, 86'400, 1'000'000'000, &config.peer_timeout_ns, complaint);
  return config;
}

}  // namespace fabricpulse
