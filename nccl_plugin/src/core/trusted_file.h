// Which files in the run directory this process may map (docs/run-directory.md).
//
// Whoever may truncate a file ends every process that has it mapped, by SIGBUS. So a process maps only files
// of its own user, of root, and of the owner of a run directory that nobody else may write to.
#ifndef FABRICPULSE_CORE_TRUSTED_FILE_H_
#define FABRICPULSE_CORE_TRUSTED_FILE_H_

#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace fabricpulse {

// Whether nobody but those may write to `path`, a regular file in `folder`. False too if it is not there.
inline bool trusted_file(const std::string& folder, const std::string& path) {
  struct stat file, directory;
  if (lstat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode) || (file.st_mode & 022) != 0) return false;
  if (file.st_uid == 0 || file.st_uid == geteuid()) return true;
  return stat(folder.c_str(), &directory) == 0 && directory.st_uid == file.st_uid &&
         (directory.st_mode & 022) == 0;
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_TRUSTED_FILE_H_
