#include "process/leftovers.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "core/monotonic.h"
#include "core/runtime.h"
#include "fabricpulse/plugin_telemetry.h"
#include "job/run_files.h"

namespace fabricpulse {
namespace {

// Whether the process that writes a telemetry file has done so lately. It may live in another PID namespace,
// where our process table does not know it.
bool beats(const std::string& path) {
  constexpr uint64_t kFreshNs = 5'000'000'000;  // it beats once a second
  fp_plugin_header header{};
  // Any user may put a FIFO here, which would be waited for, or a link to a device.
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  bool whole = pread(fd, &header, sizeof(header), 0) == static_cast<ssize_t>(sizeof(header));
  ::close(fd);
  return whole && elapsed(monotonic_ns(), header.heartbeat_mono_ns) < kFreshNs;
}

// Whether somebody listens on a control socket. True too for one that may not be asked.
bool listens(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return false;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return true;
  bool refused = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 &&
                 (errno == ECONNREFUSED || errno == ENOENT);
  ::close(fd);
  return !refused;
}

// Whether the process that left `name` has ended. In another PID namespace our process table knows nothing of
// it, but a process that is stopped, and so does not beat, has its control socket still.
bool is_stale(const std::string& directory, const std::string& name, uint32_t pid, bool foreign) {
  std::string path = directory + "/" + name;
  if (beats(path + ".telemetry")) return false;
  return foreign ? !listens(path + ".sock") : process_start_ticks(pid) == 0;
}

}  // namespace

void remove_leftovers(const std::string& directory) {
  DIR* dir = opendir(directory.c_str());
  if (dir == nullptr) return;
  while (dirent* entry = readdir(dir)) {
    const bool hidden = entry->d_name[0] == '.';  // was being made: .<name>.<random>
    const char* text = entry->d_name + (hidden ? 1 : 0);
    char* end = nullptr;
    unsigned long pid = strtoul(text, &end, 10);
    if (end == text || pid == 0) continue;
    bool foreign = *end == '-' && strtoull(end + 1, &end, 16) != pid_namespace();
    if (!hidden && strcmp(end, ".telemetry") != 0 && strcmp(end, ".sock") != 0) continue;
    std::string name(text, static_cast<size_t>(end - text));
    if (is_stale(directory, name, static_cast<uint32_t>(pid), foreign))
      unlink((directory + "/" + entry->d_name).c_str());
  }
  closedir(dir);
}

}  // namespace fabricpulse
