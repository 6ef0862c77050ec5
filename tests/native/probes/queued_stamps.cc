// `queued_stamps FROM TO PER_TICK TICKS [old]`: sends PER_TICK stamped packets each 10 ms from address FROM to TO, two
// devices of one host, as the engine does, over a link that may be too slow for them. The receiver's stamps are the
// truth: veth passes a packet on within microseconds. Before the last quarter it pauses, until nothing waits any more.
// Prints the TX stamps that were right, those that were another packet's, the right ones of the last quarter, and the sends
// that failed. `old`: a kernel that takes no
// numbers of stamps from us.
#include <linux/net_tstamp.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "clocks/clock_ns.h"
#include "nic_sockets.h"

namespace {

bool old_kernel = false;

constexpr std::size_t kSize = 200;
constexpr std::uint16_t kPort = 9620;

struct Sent {
  std::int64_t before_ns = 0, sent_ns = 0, received_ns = 0;
};

}  // namespace

// In place of the C library's.
extern "C" int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  unsigned good = 0;
  while (good < count) {
    const cmsghdr* control = CMSG_FIRSTHDR(&messages[good].msg_hdr);
    if (old_kernel && control != nullptr && control->cmsg_type != SO_TIMESTAMPING) break;
    ++good;
  }
  if (good == 0) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(syscall(SYS_sendmmsg, fd, messages, good, flags));
}

int main(int argc, char** argv) {
  using namespace fabricpulse;
  if (argc < 5) return 2;
  const std::size_t per_tick = std::strtoul(argv[3], nullptr, 10), ticks = std::strtoul(argv[4], nullptr, 10);
  old_kernel = argc > 5;
  Settings settings;
  settings.paths = 1;
  settings.port = kPort;
  settings.bind_device = false;
  NicSockets sockets(&settings);
  NicSpec nic;
  nic.address = argv[1];
  const InterfaceQuery query;
  if (!sockets.check(nic, query, 1, true)) return 3;
  ProbeSocket peer;
  SocketAddress to = make_address(argv[2], kPort);
  if (peer.open(to, {}) != 0) return 4;

  std::vector<Sent> sent(per_tick * ticks);
  std::vector<std::vector<std::uint8_t>> data(per_tick, std::vector<std::uint8_t>(kSize));
  const auto receive = [&] {
    peer.receive(
        100'000, [] {},
        [&](const Received& received) {
          std::uint32_t number;
          std::memcpy(&number, received.data, sizeof(number));
          sent[number].received_ns = received.kernel_ns;
        });
  };
  const auto drain = [&] {
    sockets.drain_stamps([&](const NicSockets::StampOwner& owner, const TxStamp& stamp) {
      // EdgeTrains does not take one from before the packet was sent.
      if (stamp.kernel_ns >= sent[owner.train].before_ns) sent[owner.train].sent_ns = stamp.kernel_ns;
    });
    receive();
  };
  int errors = 0;
  std::uint32_t next = 0;
  const auto pause = [&](int pauses) {
    for (int i = 0; i < pauses; ++i) {
      usleep(10'000);
      drain();
      sockets.give_up_stamps();
    }
  };
  for (std::size_t t = 0; t < ticks; ++t) {
    pause(t == ticks - ticks / 4 ? 100 : 1);
    const std::int64_t before = clock_ns(CLOCK_REALTIME);
    std::vector<Outgoing> packets;
    for (std::size_t k = 0; k < per_tick; ++k) {
      const std::uint32_t number = next + static_cast<std::uint32_t>(k);
      std::memcpy(data[k].data(), &number, sizeof(number));
      sent[number].before_ns = before;
      packets.push_back({data[k].data(), kSize, &to, true, 0, 0});
    }
    sockets.send(0, packets);
    for (std::size_t k = 0; k < per_tick; ++k, ++next) {
      if (packets[k].error != 0) ++errors;
      if (packets[k].error == 0 && packets[k].stamp) sockets.expect_stamp(0, packets[k].id, {0, next, 0});
    }
    drain();
  }
  pause(100);
  int right = 0, wrong = 0, late = 0;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const Sent& one = sent[i];
    if (one.sent_ns == 0 || one.received_ns == 0) continue;
    const std::int64_t took = one.received_ns - one.sent_ns;
    if (took < 0 || took > 1'000'000) {
      ++wrong;
      continue;
    }
    ++right;
    late += i >= sent.size() - ticks / 4 * per_tick;
  }
  std::printf("%d %d %d %d\n", right, wrong, late, errors);
}
