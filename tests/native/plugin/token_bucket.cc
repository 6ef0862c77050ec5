// Plays a script to a bucket that bounds what clients of the control socket cost
// (nccl_plugin/src/control/token_bucket.h); tests/unit/plugin/test_token_bucket.py writes it. Arguments:
// tokens a second, most tokens. One command a line on standard input:
//   a <now_ns>   time passes; prints how many tokens can be taken, and the nanoseconds until the next one
//   t            takes one
//   c <count>    takes so many, a decimal number
//   g            takes all that there are
//   e            empties it
#include "control/token_bucket.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  fabricpulse::TokenBucket bucket(strtod(argv[1], nullptr), strtod(argv[2], nullptr));
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
    } else if (command == "e") {
      bucket.empty();
    } else {
      return 2;
    }
  }
  return 0;
}
