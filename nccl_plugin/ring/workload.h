// What a rank does with its links, and what it has seen.
#ifndef FABRICPULSE_RING_WORKLOAD_H_
#define FABRICPULSE_RING_WORKLOAD_H_

#include <atomic>
#include <cstdint>

#include "waiting.h"

namespace fabricpulse::ring {

inline uint64_t mix(uint64_t x) {  // splitmix64
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

struct Counters {
  std::atomic<uint64_t> rounds{0}, bytes{0}, corrupt_bytes{0}, errors{0};
  std::atomic<uint64_t> double_or_lost{0};  // messages; only a stream counts them
  std::atomic<uint64_t> late_writes{0};   // buffers written into after their receive was done; only a stream
  std::atomic<uint64_t> stall_ns_max{0};  // longest gap between two completed receives within a round
  std::atomic<uint64_t> stall_ns_interval{0};  // the same since the reader has set it to 0
  std::atomic<uint64_t> last_progress_ns{0};   // 0: between rounds
  std::atomic<bool> straggles{false};          // asked for: enters each round later than the others
  std::atomic<bool> skewed{false};             // asked for: sends the hot rank more than the others

  // A receive of `size` bytes has completed.
  void arrived(uint64_t size) {
    uint64_t now = now_ns(), last = last_progress_ns.exchange(now);
    if (last != 0 && now > last) {
      raise_to(&stall_ns_max, now - last);
      raise_to(&stall_ns_interval, now - last);
    }
    bytes += size;
  }

 private:
  static void raise_to(std::atomic<uint64_t>* value, uint64_t candidate) {
    uint64_t seen = value->load();
    while (candidate > seen && !value->compare_exchange_weak(seen, candidate)) {
    }
  }
};

// Threads as in NCCL: the service thread connects, accepts, registers and closes; the progress thread sends,
// receives and tests. The caller's thread only looks at `Counters`.
class Workload {
 public:
  virtual ~Workload() = default;
  // Service thread. Connects to both neighbours on all channels.
  virtual void connect(std::atomic<bool>* stop) = 0;
  // Progress thread. Runs until the limit, or until a rank has set `stop`. Throws when the plugin fails.
  virtual void run(std::atomic<bool>* stop) = 0;
  // Service thread, after run().
  virtual void close() = 0;
};

}  // namespace fabricpulse::ring

#endif  // FABRICPULSE_RING_WORKLOAD_H_
