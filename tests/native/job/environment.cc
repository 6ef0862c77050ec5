// What the libraries that jobs load read in the environment (core/native/job/environment.h), as JSON, and a number of
// 10 to 20 called NUMBER, times 1000.
#include "job/environment.h"

#include <cstdio>

using namespace fabricpulse;

int main() {
  std::string complaint;
  const ProcessSettings settings = ProcessSettings::from_environment(&complaint);
  uint64_t number = 0;
  environment_number("NUMBER", 10, 20, 1000, &number, &complaint);
  printf(
      R"({"run_dir":"%s","host":"%s","workload":"%s","rank":%lld,"telemetry":%s,"number":%llu,"complaint":"%s"})",
      settings.run_dir.c_str(), settings.host.c_str(), settings.workload.c_str(),
      settings.rank == UINT32_MAX ? -1LL : static_cast<long long>(settings.rank),
      settings.telemetry ? "true" : "false", static_cast<unsigned long long>(number), complaint.c_str());
  return 0;
}
