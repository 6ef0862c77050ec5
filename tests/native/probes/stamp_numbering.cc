// `stamp_numbering`: what becomes of the numbers of TX stamps where the kernel has used one up that the socket has not
// given. Prints whether the numbering is uncertain after a packet that was dropped by the device behind another one and
// then sent again; as an unknown number comes, soon after the beginning and later; and whether each packet gets its own
// stamp after the new beginning.
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "probe_socket.h"

namespace {

enum class Trick { kNone, kDropSecond, kOneMore } trick = Trick::kNone;

int kernel_sends(int fd, mmsghdr* messages, unsigned count, int flags) {
  return static_cast<int>(syscall(SYS_sendmmsg, fd, messages, count, flags));
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

int main() {
  using namespace fabricpulse;
  ProbeSocket socket;
  SocketAddress to = make_address("127.0.0.1", 0);
  if (socket.open(to, {}) != 0) return 1;
  to.v4.sin_port = htons(9);
  const std::uint8_t data[8] = {};
  std::vector<std::uint32_t> stamps;
  const auto send = [&](int count) {
    std::vector<Outgoing> packets(static_cast<std::size_t>(count),
                                  Outgoing{data, sizeof(data), &to, true, 0, 0});
    socket.send(packets);
    return packets.back().id;
  };
  const auto drain = [&] {
    stamps.clear();
    socket.tx_stamps([&](const TxStamp& stamp) { stamps.push_back(stamp.id); }, [](const HopAnswer&) {});
    return stamps.size();
  };

  trick = Trick::kDropSecond;
  send(2);
  const bool after_drop = socket.numbering_uncertain();
  drain();
  socket.restart_numbering();

  trick = Trick::kOneMore;
  send(1);
  drain();
  const bool at_once = socket.numbering_uncertain();
  send(9);
  drain();
  const bool later = socket.numbering_uncertain();
  socket.restart_numbering();

  const std::uint32_t last = send(3);
  const bool own = drain() == 3 && stamps.back() == last && !socket.numbering_uncertain();
  std::printf("%d %d %d %d\n", after_drop, at_once, later, own);
}
