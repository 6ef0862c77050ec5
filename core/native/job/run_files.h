// Files of this process in the run directory (docs/run-directory.md).
#ifndef FABRICPULSE_JOB_RUN_FILES_H_
#define FABRICPULSE_JOB_RUN_FILES_H_

#include <cstdint>
#include <string>

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

// A file that other processes map, while it is being made: nobody finds it before it is whole and in its place. One
// that never gets there goes away with this object. Mode 0644 whatever the umask, since its readers are other users.
class NewRunFile {
 public:
  // `directory` is there. The name until then is ".<name>.<random>". fd() < 0: errno.
  NewRunFile(const std::string& directory, const std::string& name);
  ~NewRunFile();
  NewRunFile(const NewRunFile&) = delete;
  NewRunFile& operator=(const NewRunFile&) = delete;

  int fd() const { return fd_; }
  // In place of what is called so. False: errno.
  bool put_in_place(const std::string& path);
  // The descriptor, which the caller closes.
  int release();

 private:
  std::string temporary_;  // empty once it is in its place
  int fd_ = -1;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_JOB_RUN_FILES_H_
