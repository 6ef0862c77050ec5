// `stamp_numbering ADDRESS [old|full]`: what becomes of the numbers of TX stamps where the kernel has used one up that the
// socket has not given, from ADDRESS to itself. `old`: a kernel that takes no numbers from us. `full`: no descriptor is
// left the first time that it would be asked. Prints whether the numbering is uncertain, and whether each packet that is
// sent then gets its own stamp: after a packet that was dropped by the device behind another one and then sent again;
// after an unknown number has come soon after the beginning, and later; and after a new beginning.
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "probe_socket.h"

namespace {

enum class Trick { kNone, kDropSecond, kOneMore } trick = Trick::kNone;
bool old_kernel = false;

// Before Linux 6.13 a control message with a number fails the packet.
int kernel_sends(int fd, mmsghdr* messages, unsigned count, int flags) {
  unsigned good = 0;
  while (good < count) {
    const cmsghdr* control = CMSG_FIRSTHDR(&messages[good].msg_hdr);
    if (old_kernel && control != nullptr && control->cmsg_type != SO_TIMESTAMPING) break;
    ++good;
  }
  if (good > 0) return static_cast<int>(syscall(SYS_sendmmsg, fd, messages, good, flags));
  errno = EINVAL;
  return -1;
}

}  // namespace

// In place of the C library's.
extern "C" int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  const Trick now = trick;
  trick = Trick::kNone;
  if (now == Trick::kDropSecond) {
    // It has got its number and its stamp, and the device had no room for it.
    kernel_sends(fd, messages, 2, flags);
    return 1;
  }
  if (now == Trick::kOneMore) kernel_sends(fd, messages, 1, flags);
  return kernel_sends(fd, messages, count, flags);
}

int main(int argc, char** argv) {
  using namespace fabricpulse;
  if (argc < 2) return 2;
  old_kernel = argc > 2 && std::strcmp(argv[2], "old") == 0;
  ProbeSocket socket;
  SocketAddress to = make_address(argv[1], 0);
  const std::uint8_t data[8] = {};
  std::vector<Outgoing> packets;
  std::vector<std::uint32_t> stamps;
  const auto open = [&] { return socket.open(make_address(argv[1], 0), {}) == 0; };
  const auto send = [&](std::size_t count) {
    packets.assign(count, Outgoing{data, sizeof(data), &to, true, 0, 0});
    socket.send(packets);
  };
  const auto drain = [&] {
    stamps.clear();
    socket.tx_stamps([&](const TxStamp& stamp) { stamps.push_back(stamp.id); }, [](const HopAnswer&) {});
  };
  // Whether each packet that was sent last has a stamp, and none is newer.
  const auto own = [&] {
    drain();
    std::size_t k = packets.size();
    if (stamps.empty() || !packets.back().stamp || packets.back().id != stamps.back()) return false;
    for (std::size_t i = stamps.size(); k > 0 && i > 0; --i) {
      if (packets[k - 1].stamp && packets[k - 1].id == stamps[i - 1]) --k;
    }
    return k == 0;
  };
  const auto say = [&](bool has_own) { std::printf("%d %d ", socket.numbering_uncertain(), has_own); };
  to.any.sa_family == AF_INET6 ? to.v6.sin6_port = htons(9) : to.v4.sin_port = htons(9);

  if (argc > 2 && std::strcmp(argv[2], "full") == 0) {
    rlimit before{};
    if (!open() || getrlimit(RLIMIT_NOFILE, &before) != 0) return 1;
    const rlimit none{0, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    trick = Trick::kDropSecond;
    send(2);
    setrlimit(RLIMIT_NOFILE, &before);
    if (!socket.numbering_uncertain()) return 4;
  }

  if (!open()) return 1;
  trick = Trick::kDropSecond;
  send(2);
  say(own());

  if (!open()) return 1;
  trick = Trick::kOneMore;
  send(1);
  drain();
  say(true);
  send(9);
  drain();
  send(3);
  say(own());

  if (socket.unsent()) return 3;
  socket.restart_numbering();
  send(3);
  say(own());
}
