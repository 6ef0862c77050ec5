// Plays a script to what decides whether a peer's process has ended (nccl_plugin/src/core/peer_liveness.h);
// tests/unit/plugin/test_peer_liveness.py writes it. One command a line on standard input:
//   o                        what follows is of the other one of two connections
//   p <process>              the connection's peer is this process
//   u                        a lane is up
//   a                        a hello was answered
//   v                        a hello was answered by another version; prints 1 if the peer is taken to run it, else 0
//   e                        a lane was ended in order by the peer's host, without a BYE
//   c                        a connection was taken, and nothing said on it yet
//   r <was_up 0|1> <first 0|1> <now_ns>  a connection was refused; prints 1 if the process is gone, else 0
#include "core/peer_liveness.h"

#include <cstdio>
#include <iostream>
#include <string>

int main() {
  fabricpulse::PeerLiveness connections[2];
  fabricpulse::PeerEnds ends;
  size_t at = 0;
  std::string command;
  while (std::cin >> command) {
    fabricpulse::PeerLiveness& peer = connections[at];
    if (command == "o") {
      at = 1 - at;
    } else if (command == "p") {
      uint64_t process[2] = {};
      std::cin >> process[0];
      peer.share(ends.of(process));
    } else if (command == "u") {
      peer.lane_up();
    } else if (command == "a") {
      peer.answered();
    } else if (command == "v") {
      peer.other_version();
      printf("%d\n", peer.runs_other_version());
    } else if (command == "e") {
      peer.lane_ended();
    } else if (command == "c") {
      peer.listens();
    } else if (command == "r") {
      int was_up, first;
      uint64_t now;
      std::cin >> was_up >> first >> now;
      if (!std::cin) return 2;
      peer.refused(was_up != 0, first != 0, now);
      printf("%d\n", peer.has_ended());
    } else {
      return 2;
    }
  }
  return 0;
}
