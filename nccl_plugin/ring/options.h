// Command line of fabricpulse-ring.
#ifndef FABRICPULSE_RING_OPTIONS_H_
#define FABRICPULSE_RING_OPTIONS_H_

#include <cstdint>
#include <string>

namespace fabricpulse::ring {

enum class Order {
  kInTurn,    // connect and accept are asked for by turns
  kOneByOne,  // rank 0 connects all, then accepts; the others accept all, then connect
  kBackwards  // the same, and accepts start with the last listener
};

enum class Pattern { kRing, kAllToAll };

struct Options {
  std::string plugin;  // path of the library
  std::string abi = "v12";
  uint32_t rank = 0, size = 0;
  std::string rendezvous;      // host:port of rank 0
  uint64_t bytes = 16 << 20;   // of the all-reduce
  uint64_t slice = 512 << 10;  // of one isend
  uint32_t channels = 2, depth = 8;
  uint64_t rounds = 0;  // 0: until SIGTERM
  double seconds = 0;   // 0: no limit
  uint32_t interval_ms = 1000;
  int connect_seconds = 60;
  uint32_t compute_ms = 0;  // pause between rounds, as a training step has
  uint32_t late_ms = 2000;  // how much later than the others a straggler enters a round
  Order order = Order::kInTurn;
  Pattern pattern = Pattern::kRing;
  bool has_hot = false;
  uint32_t hot = 0;                    // rank of an all-to-all to which a skewed rank sends more
  uint32_t skew = 5;                   // how many times as much
  bool stream = false;                 // numbered messages instead of the all-reduce
  uint64_t least = 0, most = 1 << 20;  // bytes of a message of the stream
  uint32_t abort_ms = 0;               // after all have received something, close everything; 0: never
  bool profile = false;                // call the plugin's profiler for each all-reduce
  bool json = false, busy = false;
  uint32_t poll_us = 50;  // sleep of a progress thread for which nothing moves, microseconds
  uint64_t seed = 1;
};

// False: print `message` to standard error (or, for --help, to standard output) and exit with `status`.
bool parse_options(int argc, char** argv, Options* options, std::string* message, int* status);

}  // namespace fabricpulse::ring

#endif  // FABRICPULSE_RING_OPTIONS_H_
