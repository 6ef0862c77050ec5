// Settings from the environment. Read once, when the plugin is first initialised.
#ifndef FABRICPULSE_CORE_CONFIG_H_
#define FABRICPULSE_CORE_CONFIG_H_

#include <cstdint>
#include <string>

#include "job/environment.h"

namespace fabricpulse {

// What the scheduler has put into the environment of a job; empty: not set.
struct JobNames {
  std::string slurm_job;      // SLURM_JOB_ID
  std::string account;        // SLURM_JOB_ACCOUNT
  std::string pod_name;       // POD_NAME
  std::string pod_namespace;  // POD_NAMESPACE
  std::string pod_uid;        // POD_UID
  uint32_t nodes = 0;         // SLURM_JOB_NUM_NODES, else SLURM_NNODES
};

struct Config : ProcessSettings {
  std::string nics;            // FABRICPULSE_NICS: names or patterns, comma separated; empty: all
  std::string nics_exclude;    // FABRICPULSE_NICS_EXCLUDE
  std::string lanes = "auto";  // FABRICPULSE_LANES: auto, or a type of transport/choose_transport.h
  // FABRICPULSE_LAST_RESORT: names or patterns of NICs over which a connection has TCP lanes while none of its queue
  // pairs is up; empty: none
  std::string last_resort;
  std::string ibverbs;        // FABRICPULSE_IBVERBS: the library; empty: libibverbs.so.1
  std::string control_group;  // FABRICPULSE_CONTROL_GROUP
  uint32_t max_lanes = 8;     // FABRICPULSE_MAX_LANES: of one connection
  bool balance = true;        // FABRICPULSE_BALANCE: spread a backlog over all lanes
  bool repath = true;         // FABRICPULSE_REPATH: new paths for lanes that stay bad
  int payload_crc = -1;       // FABRICPULSE_PAYLOAD_CRC: 0, 1; -1: where it costs little
  uint32_t paths = 2;         // FABRICPULSE_PATHS: least lanes over a NIC, by other source ports if need be
  uint32_t detail = 0;        // FABRICPULSE_DETAIL: 0 to 2, see `detail` of the control protocol
  uint64_t stall_ns = 25'000'000;  // FABRICPULSE_STALL_MS: least stall timer, see core/stall_timer.h
  uint64_t peer_timeout_ns =
      300'000'000'000;  // FABRICPULSE_PEER_TIMEOUT_S: no lane at all for so long = peer lost
  JobNames job;

  // Values out of range are replaced by the nearest allowed one; `complaint` gets one sentence for each.
  static Config from_environment(std::string* complaint);
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_CONFIG_H_
