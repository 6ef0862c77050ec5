// When a process warns that it has too few file descriptors for lanes (nccl_plugin/src/process/handshakes.h): a
// connection with lanes over rail0 and rail1 and a spare one. Standard input: a line for each step, after which
// `MS WARNING` is printed for a warning that has come.
//
//   lane N        lane N is up
//   down N        NIC N loses its link
//   wait MS       so much time passes, a tick each millisecond
//   refused MS    the same, while descriptors are exhausted in each
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "core/send_connection.h"
#include "idle_transport.h"
#include "process/handshakes.h"
#include "test_runtime.h"
#include "transport/tcp/tcp_lane.h"

using namespace fabricpulse;

int main() {
  SteppedRuntime runtime;
  ProcessIdentity identity{};
  NicTable nics;
  for (unsigned index : {2, 3}) {
    NicInfo nic;
    nic.name = "rail" + std::to_string(index - 2);
    nic.ifindex = index;
    nics.add(nic, true);
  }
  ConnectionTable connections;
  Handshakes handshakes(&runtime, &identity, &nics, &connections);
  auto sender = std::make_shared<SendConnection>(&runtime, 7, 0, 1, std::vector<NicPair>{{0, 0}, {1, 1}});
  {
    ConnectionLock locked(sender.get());
    sender->add_spares({{0, 1}}, runtime.now_ns);
  }
  connections.add(sender, {});
  IdleTransport transport;
  const std::atomic<uint16_t> port{1};
  handshakes.start(&transport, &port);

  std::string step;
  uint64_t number = 0;
  while (std::cin >> step >> number) {
    if (step == "down") nics.mutable_at(static_cast<uint32_t>(number)).link_up = false;
    if (step == "lane") {
      ConnectionLock locked(sender.get());
      DialPlan plan;
      while (sender->want_dial(runtime.now_ns, &plan)) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) return 1;
        const bool up = plan.lane == number;
        HelloReply reply;
        sender->dialled(plan.lane, plan.epoch, up ? make_tcp_lane(pair[0], false) : nullptr,
                        up ? &reply : nullptr, runtime.now_ns);
      }
      if (!sender->lanes()[number].up) return 1;
    }
    for (uint64_t ms = 0; (step == "wait" || step == "refused") && ms < number; ++ms) {
      runtime.now_ns += 1'000'000;
      if (step == "refused") handshakes.descriptors_exhausted(runtime.now_ns);
      handshakes.tick(runtime.now_ns);
      if (runtime.warned.empty()) continue;
      printf("%llu %s\n", static_cast<unsigned long long>(runtime.now_ns / 1'000'000 - 1000),
             runtime.warned.c_str());
      runtime.warned.clear();
    }
  }
  return 0;
}
