// Plays rtnetlink messages to what watches the plugin's NICs (nccl_plugin/src/process/link_monitor.h), which are rail0
// (index 2) and rail1 (index 3); FABRICPULSE_NICS would be rail*. tests/unit/plugin/test_link_events.py writes them.
//
// Standard input: of each datagram the length as four bytes, and its bytes; the clock moves by 1 ms after each, with a
// tick. Prints how often each NIC was looked at and how often all interfaces were: `RAIL0 RAIL1 ALL`.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "idle_transport.h"
#include "process/link_monitor.h"
#include "test_runtime.h"

using namespace fabricpulse;

namespace {

struct Counts final : IdleTransport {
  std::vector<NicInfo> discover(const std::vector<std::string>&) const override {
    ++scans;
    return {};
  }
  bool wants(const std::string& name) const override { return name.compare(0, 4, "rail") == 0; }
  std::optional<bool> look_up(NicInfo* nic) const override {
    ++looks[nic->ifindex & 1];
    return true;
  }
  mutable int looks[2] = {}, scans = 0;
};

}  // namespace

int main() {
  SteppedRuntime runtime;
  Counts transport;
  NicTable nics;
  ConnectionTable connections;
  std::mutex nics_lock;
  std::atomic<uint16_t> port{1};
  LinkMonitor monitor(&runtime, &transport, &nics, &connections, &nics_lock, &port);
  for (unsigned index : {2, 3}) {
    NicInfo nic;
    nic.name = "rail" + std::to_string(index - 2);
    nic.ifindex = index;
    monitor.add_nic(nic);
  }
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0) return 1;
  monitor.watch(pair[0]);
  uint32_t size = 0;
  std::vector<char> datagram;
  while (fread(&size, sizeof(size), 1, stdin) == 1) {
    datagram.resize(size);
    if (fread(datagram.data(), 1, size, stdin) != size) return 2;
    if (send(pair[1], datagram.data(), size, 0) != static_cast<ssize_t>(size)) return 1;
    monitor.events(runtime.now_ns);
    monitor.tick(runtime.now_ns);
    runtime.now_ns += 1'000'000;
  }
  close(pair[1]);
  printf("%d %d %d\n", transport.looks[0], transport.looks[1], transport.scans);
  return 0;
}
