// Plays a script to the path selector (nccl_plugin/src/core/path_selector.h);
// tests/unit/plugin/test_path_selector.py writes it. One command a line on standard input:
//   s <lane> <up> <movable> <busy> <delivered> <speed> <congested_segments> <rtt_ns> <ahead> <now_ns>
//   v <lanes> <waiting> <now_ns>     prints the lane to move, or -1
//   r                                prints whether that lane is to have its former path again
//   m <lane> <by_command> <now_ns>   the lane has its new path
//   k <lane>                         the lane keeps its path
#include "core/path_selector.h"

#include <cstdio>
#include <iostream>
#include <string>

int main() {
  fabricpulse::PathSelector selector;
  std::string command;
  while (std::cin >> command) {
    if (command == "s") {
      uint32_t lane;
      uint64_t now;
      fabricpulse::PathSelector::Sample sample;
      std::cin >> lane >> sample.up >> sample.movable >> sample.busy >> sample.delivered >> sample.speed >>
          sample.congested_segments >> sample.rtt_ns >> sample.ahead >> now;
      if (!std::cin || lane >= fabricpulse::kMaxLanes) return 2;
      selector.sample(lane, sample, now);
    } else if (command == "v") {
      uint32_t lanes;
      bool waiting;
      uint64_t now;
      std::cin >> lanes >> waiting >> now;
      if (!std::cin) return 2;
      uint32_t chosen = selector.select(lanes, waiting, now);
      printf("%d\n", chosen == fabricpulse::PathSelector::kNobody ? -1 : static_cast<int>(chosen));
    } else if (command == "r") {
      printf("%d\n", selector.returns());
    } else if (command == "m") {
      uint32_t lane;
      bool by_command;
      uint64_t now;
      std::cin >> lane >> by_command >> now;
      if (!std::cin || lane >= fabricpulse::kMaxLanes) return 2;
      selector.moved(lane, by_command, now);
    } else if (command == "k") {
      uint32_t lane;
      std::cin >> lane;
      if (!std::cin || lane >= fabricpulse::kMaxLanes) return 2;
      selector.stayed(lane);
    } else {
      return 2;
    }
    fflush(stdout);
  }
  return 0;
}
