// Files of this process in the run directory (docs/run-directory.md).
#ifndef FABRICPULSE_CORE_RUN_FILES_H_
#define FABRICPULSE_CORE_RUN_FILES_H_

#include <cstdint>
#include <string>

#include "fabricpulse/create_exclusive.h"

namespace fabricpulse {

// With its parents, mode 0755. False: errno.
bool make_directories(const std::string& path);

// Inode of the PID namespace of this process; 0 without /proc.
uint64_t pid_namespace();

// Field 22 of /proc/<pid>/stat; 0 if there is no such process.
uint64_t process_start_ticks(uint32_t pid);

// What the files of this process are called: "<pid>-<inode of its PID namespace, hexadecimal>". The pid alone
// is not enough where containers share the run directory: each has a process 1.
std::string process_file_name();

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_RUN_FILES_H_
