#include "core/config.h"

#include <stdlib.h>

#include <utility>

namespace fabricpulse {
namespace {

JobNames job_names() {
  JobNames job;
  const std::pair<const char*, std::string*> names[] = {{"SLURM_JOB_ID", &job.slurm_job},
                                                        {"SLURM_JOB_ACCOUNT", &job.account},
                                                        {"POD_NAME", &job.pod_name},
                                                        {"POD_NAMESPACE", &job.pod_namespace},
                                                        {"POD_UID", &job.pod_uid}};
  for (auto [name, to] : names)
    if (const char* v = environment_text(name)) *to = v;
  for (const char* name : {"SLURM_JOB_NUM_NODES", "SLURM_NNODES"}) {
    const char* v = environment_text(name);
    if (v == nullptr) continue;
    // Not ours, and it affects nothing: what is no number is ignored, without a warning.
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
  static_cast<ProcessSettings&>(config) = ProcessSettings::from_environment(complaint);
  if (const char* v = environment_text("FABRICPULSE_NICS")) config.nics = v;
  if (const char* v = environment_text("FABRICPULSE_NICS_EXCLUDE")) config.nics_exclude = v;
  if (const char* v = environment_text("FABRICPULSE_CONTROL_GROUP")) config.control_group = v;
  if (const char* v = environment_text("FABRICPULSE_IBVERBS")) config.ibverbs = v;
  if (const char* v = environment_text("FABRICPULSE_LAST_RESORT")) config.last_resort = v;
  if (const char* v = environment_text("FABRICPULSE_LANES")) config.lanes = v;
  config.job = job_names();
  uint64_t value = config.max_lanes;
  environment_number("FABRICPULSE_MAX_LANES", 1, 16, 1, &value, complaint);
  config.max_lanes = static_cast<uint32_t>(value);
  value = 1;
  environment_number("FABRICPULSE_BALANCE", 0, 1, 1, &value, complaint);
  config.balance = value != 0;
  value = 1;
  environment_number("FABRICPULSE_REPATH", 0, 1, 1, &value, complaint);
  config.repath = value != 0;
  value = UINT64_MAX;
  environment_number("FABRICPULSE_PAYLOAD_CRC", 0, 1, 1, &value, complaint);
  if (value != UINT64_MAX) config.payload_crc = static_cast<int>(value);
  value = config.paths;
  environment_number("FABRICPULSE_PATHS", 1, 16, 1, &value, complaint);
  config.paths = static_cast<uint32_t>(value);
  value = 0;
  environment_number("FABRICPULSE_DETAIL", 0, 2, 1, &value, complaint);
  config.detail = static_cast<uint32_t>(value);
  environment_number("FABRICPULSE_STALL_MS", 20, 10'000, 1'000'000, &config.stall_ns, complaint);
  environment_number("FABRICPULSE_PEER_TIMEOUT_S", 1, 86'400, 1'000'000'000, &config.peer_timeout_ns,
                     complaint);
  return config;
}

}  // namespace fabricpulse
