// Which files in the run directory this process may map (docs/run-directory.md).
//
// A process that may truncate a file can kill every process that has it mapped, by SIGBUS. So a process maps only files
// of its own user, of root, and of the owner of a run directory that nobody else may write to.
#ifndef FABRICPULSE_TRUSTED_FILE_H_
#define FABRICPULSE_TRUSTED_FILE_H_

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace fabricpulse {

// Opens `path`, a regular file in `folder`, for reading, if nobody but those may write to it. Returns the
// descriptor, or -1 with errno: EACCES for a file that others may write to, ELOOP for a symbolic link. What
// is checked is the file that is open, not what the name stood for a moment earlier.
inline int open_trusted_file(const std::string& folder, const std::string& path) {
  // O_NONBLOCK: in place of the file there may be a FIFO, and opening one waits for its writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return -1;
  struct stat file, directory;
  bool trusted = fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && (file.st_mode & 022) == 0;
  if (trusted && file.st_uid != 0 && file.st_uid != geteuid()) {
    trusted = stat(folder.c_str(), &directory) == 0 && directory.st_uid == file.st_uid &&
              (directory.st_mode & 022) == 0;
  }
  if (trusted) return fd;
  ::close(fd);
  errno = EACCES;
  return -1;
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRUSTED_FILE_H_
