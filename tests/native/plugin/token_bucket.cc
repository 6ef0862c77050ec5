// Plays a script to a bucket that bounds what clients of the control socket cost
// (nccl_plugin/src/control/token_bucket.h); tests/unit/plugin/test_token_bucket.py writes it. Arguments:
// tokens a second, most tokens. One command a line on standard input:
//   a <now_ns>   time passes; prints how many tokens can be taken, and the nanoseconds until the next one
//   t            takes one
//   c <count>    takes so many, a decimal number
//   g            takes all that there are
//   e            empties it
//   r <rate>     tokens a second from here on
//   s <now_ns> <cpu_ns>  what a process has used by then; prints the rate of CostShare: of 1 % of a processor, in tokens
//                of 20,000 ns, 10 to 100 a second,
//                and whether it was time for it
#include "control/token_bucket.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  fabricpulse::TokenBucket bucket(strtod(argv[1], nullptr), strtod(argv[2], nullptr));
  fabricpulse::CostShare share({0.01, 20'000, 10, 100});
  std::string command;
  while (std::cin >> command) {
    if (command == "a") {
      uint64_t now;
      std::cin >> now;
      if (!std::cin) return 2;
      bucket.advance(now);
      fabricpulse::TokenBucket copy = bucket;
      int there = 0;
      for (; copy.any(); ++there) copy.take();
      printf("%d %llu\n", there, static_cast<unsigned long long>(bucket.wait_ns()));
    } else if (command == "t") {
      bucket.take();
    } else if (command == "c") {
      double taken;
      std::cin >> taken;
      if (!std::cin) return 2;
      bucket.take(taken);
    } else if (command == "g") {
      while (bucket.any()) bucket.take();
    } else if (command == "r") {
      double rate;
      std::cin >> rate;
      if (!std::cin) return 2;
      bucket.set_rate(rate);
    } else if (command == "s") {
      uint64_t now, cpu;
      std::cin >> now >> cpu;
      if (!std::cin) return 2;
      const bool due = share.due(now);
      const double rate = share.note(now, cpu);
      printf("%.0f %d\n", rate, due);
    } else if (command == "e") {
      bucket.empty();
    } else {
      return 2;
    }
  }
  return 0;
}
