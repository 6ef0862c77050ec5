// How writers make a file that others map (docs/run-directory.md): under an unpredictable name, to be renamed into
// its place.
#ifndef FABRICPULSE_CREATE_EXCLUSIVE_H_
#define FABRICPULSE_CREATE_EXCLUSIVE_H_

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>

namespace fabricpulse {

// A new file of this process's own, `prefix` and a random suffix: in a directory that all users may write to, one
// that is there already may be somebody else's, who would end this process by truncating it. -1: errno.
inline int create_exclusive(const std::string& prefix, std::string* path) {
  for (int tries = 0; tries < 16; ++tries) {
    uint64_t random = 0;
    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != sizeof(random))
      random = static_cast<uint64_t>(tries) + static_cast<uint64_t>(getpid()) * 65537;
    char suffix[24];
    snprintf(suffix, sizeof(suffix), ".%016llx", static_cast<unsigned long long>(random));
    *path = prefix + suffix;
    int fd = ::open(path->c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_CREATE_EXCLUSIVE_H_
