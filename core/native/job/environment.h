// What the environment of a process says to the libraries that jobs load.
#ifndef FABRICPULSE_JOB_ENVIRONMENT_H_
#define FABRICPULSE_JOB_ENVIRONMENT_H_

#include <cstdint>
#include <string>

namespace fabricpulse {

// The value of a variable; nullptr where it is not set, or empty.
const char* environment_text(const char* name);

// A whole number, times `unit`. What is out of range is replaced by the nearest allowed value; what is no number, or
// not set, leaves *out as it is. `complaint` gets one sentence for what was not taken as it stands.
void environment_number(const char* name, uint64_t low, uint64_t high, uint64_t unit, uint64_t* out,
                        std::string* complaint);

// What all of the libraries take. `complaint` as above.
struct ProcessSettings {
  std::string run_dir = "/run/fabricpulse";  // FABRICPULSE_RUN_DIR
  std::string host;                          // FABRICPULSE_HOST, else the host name
  std::string workload = "unknown";          // FABRICPULSE_WORKLOAD, else SLURM_JOB_ID
  uint32_t rank = UINT32_MAX;                // FABRICPULSE_RANK, else the launcher's; UINT32_MAX: unknown
  bool telemetry = true;                     // FABRICPULSE_TELEMETRY

  static ProcessSettings from_environment(std::string* complaint);
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_JOB_ENVIRONMENT_H_
