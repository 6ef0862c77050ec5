// Time, and how a thread waits that has nothing to do for the moment.
#ifndef FABRICPULSE_RING_WAITING_H_
#define FABRICPULSE_RING_WAITING_H_

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

namespace fabricpulse::ring {

inline uint64_t now_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(ts.tv_nsec);
}

inline double now_s() { return static_cast<double>(now_ns()) * 1e-9; }

// A progress thread's pause. NCCL's yields when idle; on a machine with fewer processors than ranks that is
// not enough, so that it sleeps after a while.
class Pause {
 public:
  // busy: never. poll_us: its sleep, microseconds.
  Pause(bool busy, uint32_t poll_us) : busy_(busy), poll_us_(poll_us) {}
  // After each turn; `moved`: something has happened in it.
  void after(bool moved) {
    if (moved || busy_) {
      idle_since_ns_ = 0;
      return;
    }
    uint64_t now = now_ns();
    if (idle_since_ns_ == 0) idle_since_ns_ = now;
    if (now - idle_since_ns_ < 50'000) {
      sched_yield();
    } else {
      usleep(poll_us_);
    }
  }

 private:
  const bool busy_;
  const uint32_t poll_us_;
  uint64_t idle_since_ns_ = 0;
};

}  // namespace fabricpulse::ring

#endif  // FABRICPULSE_RING_WAITING_H_
