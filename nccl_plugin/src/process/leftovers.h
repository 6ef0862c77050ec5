// Files of jobs that were killed.
#ifndef FABRICPULSE_PROCESS_LEFTOVERS_H_
#define FABRICPULSE_PROCESS_LEFTOVERS_H_

#include <string>

namespace fabricpulse {

// Removes the telemetry files and control sockets of processes that have ended. directory : of the plugin's files;
// nothing happens if it is not there.
void remove_leftovers(const std::string& directory);

}  // namespace fabricpulse

#endif  // FABRICPULSE_PROCESS_LEFTOVERS_H_
