// The table of paths, asked by lines on standard input. Each answers one line.
//   s NIC ADDRESS NOW VALUE   the path's failed_ns becomes VALUE
//   g NIC ADDRESS NOW         its failed_ns: 0 if nothing is known of it
// ADDRESS is a number: the last eight bytes, big endian, of an IPv6 address.
#include "core/path_table.h"

#include <iostream>
#include <memory>
#include <string>

int main() {
  auto table = std::make_unique<fabricpulse::PathTable>();
  std::string command;
  uint32_t nic = 0;
  uint64_t number = 0, now = 0;
  while (std::cin >> command >> nic >> number >> now) {
    uint8_t address[16] = {0x20, 0x01};
    for (int i = 0; i < 8; ++i) address[15 - i] = static_cast<uint8_t>(number >> (8 * i));
    auto* path = table->at(nic, address, now);
    if (command == "s") std::cin >> path->failed_ns;
    std::cout << path->failed_ns << "\n";
  }
  return 0;
}
