// `port_stamps ADDRESS PORT`: sends a stamped packet from each of three source ports of ADDRESS to itself, then takes the TX
// stamps of the last port alone, then of all. Prints the ports whose stamps came the first time, and the second time.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "nic_sockets.h"

int main(int argc, char** argv) {
  using namespace fabricpulse;
  if (argc < 3) return 2;
  constexpr int kPorts = 3;
  Settings settings;
  settings.paths = kPorts;
  settings.port = static_cast<std::uint16_t>(std::strtoul(argv[2], nullptr, 10));
  settings.bind_device = false;
  NicSockets sockets(&settings);
  NicSpec nic;
  nic.address = argv[1];
  const InterfaceQuery query;
  if (!sockets.check(nic, query, 1, true)) return 3;
  SocketAddress to = make_address(argv[1], settings.port);
  const std::uint8_t data[8] = {};
  // The loopback device stamps within the system call.
  for (std::uint8_t path = 0; path < kPorts; ++path) {
    std::vector<Outgoing> packets{{data, sizeof(data), &to, true, 0, 0}};
    sockets.send(path, packets);
    if (packets[0].error != 0 || !packets[0].stamp) return 4;
    sockets.expect_stamp(path, packets[0].id, {0, path, 0});
  }
  const auto say = [](const NicSockets::StampOwner& owner, const TxStamp&) {
    std::printf("%u ", owner.train);
  };
  sockets.drain_stamps(kPorts - 1, say);
  std::printf("| ");
  sockets.drain_stamps(say);
  std::printf("\n");
}
