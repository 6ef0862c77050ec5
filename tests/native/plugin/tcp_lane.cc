// One TCP lane over loopback (nccl_plugin/src/transport/tcp/tcp_lane.cc).
//
// Usage: plugin_tcp_lane ended|reset|dropped.
//
// dropped: in a network namespace of its own the queue of the NIC drops what this end writes, and then no more. The lane
// is sampled; prints whether bytes waited with none under way, whether the other end has got some within 100 ms, and
// when, in ms after the write (the kernel tries again after 200). Exit status 77 where there is no such namespace.
//
// ended, reset: the other end has said something that this end has not read, and then is closed, as the kernel does when
// a process is killed: in order, or, with `reset`, with words unread. This end writes twice, the second time after the
// kernel's answer to the first, and then reads. Prints the outcome of both writes, of the read, and how many frames it
// has read: LaneStatus as numbers.
#include "transport/tcp/tcp_lane.h"

#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>

using namespace fabricpulse;

namespace {

struct Sink final : LaneSink {
  uint8_t* chunk_begins(uint32_t, const FrameHeader&, bool*) override { return nullptr; }
  void chunk_ends(uint32_t, const FrameHeader&) override {}
  bool state_frame(uint32_t, const FrameHeader&, const HeldState&) override {
    ++frames;
    return true;
  }
  int frames = 0;
};

bool connected_pair(int* here, int* there) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* at = reinterpret_cast<sockaddr*>(&address);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  *here = socket(AF_INET, SOCK_STREAM, 0);
  const bool made = bind(listener, at, size) == 0 && listen(listener, 1) == 0 &&
                    getsockname(listener, at, &size) == 0 && connect(*here, at, size) == 0;
  *there = made ? accept(listener, nullptr, nullptr) : -1;
  close(listener);
  for (int fd : {*here, *there}) fcntl(fd, F_SETFL, O_NONBLOCK);
  return *there >= 0;
}

// Until the kernel has taken in what the other end has done.
void await(int fd, short events) {
  pollfd one{fd, events, 0};
  poll(&one, 1, 10'000);
}

LaneStatus write_ping(LaneTransport* lane) {
  FrameHeader ping;
  ping.type = FrameType::kPing;
  lane->post_state(ping, nullptr);
  return lane->flush();
}

bool own_network() {
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  ifreq loopback{};
  strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP | IFF_RUNNING;
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  const bool up = ioctl(fd, SIOCSIFFLAGS, &loopback) == 0;
  close(fd);
  return up;
}

int dropped() {
  int here = -1, there = -1;
  if (!own_network()) return 77;
  if (!connected_pair(&here, &there)) return 2;
  std::unique_ptr<LaneTransport> lane = make_tcp_lane(here, false);
  if (system("tc qdisc replace dev lo root pfifo limit 0") != 0) return 77;
  const auto written = std::chrono::steady_clock::now();
  write_ping(lane.get());
  const PathSample before = lane->sample();  // dropped once more
  if (system("tc qdisc del dev lo root") != 0) return 2;
  lane->sample();
  pollfd one{there, POLLIN, 0};
  const int arrived = poll(&one, 1, 100);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - written;
  printf("%d %d %d\n", before.unsent > 0 && before.unacknowledged == 0, arrived,
         static_cast<int>(took.count()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  if (strcmp(argv[1], "dropped") == 0) return dropped();
  const bool reset = strcmp(argv[1], "reset") == 0;
  int here = -1, there = -1;
  if (!connected_pair(&here, &there)) return 2;
  std::unique_ptr<LaneTransport> lane = make_tcp_lane(here, false), other = make_tcp_lane(there, false);
  write_ping(other.get());
  if (reset) {
    write_ping(lane.get());
    await(there, POLLIN);
  }
  other->close(true);
  await(here, reset ? POLLERR : POLLRDHUP);
  const LaneStatus first = write_ping(lane.get());
  await(here, POLLERR);  // the answer to it: nobody is there
  const LaneStatus second = write_ping(lane.get());
  Sink sink;
  LaneStatus read = LaneStatus::kIdle;
  for (int tries = 0; tries < 2; ++tries) read = lane->poll(0, &sink);
  printf("%d %d %d %d\n", static_cast<int>(first), static_cast<int>(second), static_cast<int>(read),
         sink.frames);
  return 0;
}
