#include "transport/tcp/lane_sockets.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>

#include "core/owned_fds.h"
#include "transport/tcp/nics.h"

namespace fabricpulse {
namespace {

// Left to first lanes of connections, of which there may be one for each channel and direction, and to the application.
constexpr rlim_t kReserved = 64;

}  // namespace

void bind_to_device(int fd, const std::string& name) {
  (void)!setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name.c_str(), static_cast<socklen_t>(name.size() + 1));
}

void no_delay(int fd) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

bool descriptors_scarce(int fd) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  auto high = [&] {
    const rlim_t number = static_cast<rlim_t>(fd);
    return number >= limit.rlim_cur / 4 * 3 || number + kReserved >= limit.rlim_cur;
  };
  if (!high()) return false;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return high();
  }
  return true;
}

uint32_t full_packets(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return std::min(2 * info.tcpi_snd_mss, kMaxPadding);
}

bool is_ready(int fd, short events) {
  pollfd asked{fd, events, 0};
  return poll(&asked, 1, 0) == 1;
}

int dial_socket(const NicInfo& from, const DialRequest& request, uint16_t source_port) {
  sockaddr_storage to, source;
  socklen_t to_size = to_sockaddr(request.address.data(), request.port, &to);
  socklen_t source_size = to_sockaddr(from.address.data(), source_port, &source);
  int fd = own_fd(socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd < 0) {
    (void)descriptors_scarce(INT32_MAX);  // more of them for the next time
    return -1;
  }
  if (request.optional && descriptors_scarce(fd)) {
    close_owned(fd);
    errno = EMFILE;
    return -1;
  }
  bind_to_device(fd, from.name);
  no_delay(fd);
  // Where none is asked for, the port is chosen at connect(), so that a busy host does not run out of them.
  int late = source_port == 0;
  (void)!setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &late, sizeof(late));
  // One that is asked for may be that of a connection to elsewhere: connect() alone knows what is taken.
  int shared = 1;
  (void)!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &shared, sizeof(shared));
  if (bind(fd, reinterpret_cast<sockaddr*>(&source), source_size) == 0 &&
      (connect(fd, reinterpret_cast<sockaddr*>(&to), to_size) == 0 || errno == EINPROGRESS))
    return fd;
  int error = errno;
  close_owned(fd);
  errno = error;
  return -1;
}

void reset_owned(int fd) {
  const linger hard{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  close_owned(fd);
}

}  // namespace fabricpulse
