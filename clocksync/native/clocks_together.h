// Two clocks of a host at one moment, from many readings of both.
#ifndef FABRICPULSE_CLOCKSYNC_CLOCKS_TOGETHER_H_
#define FABRICPULSE_CLOCKSYNC_CLOCKS_TOGETHER_H_

#include <cstdint>
#include <vector>

namespace fabricpulse {

// The raw clock, the real one, and the raw one again, right after each other; ns.
struct ClockReading {
  int64_t before;
  int64_t real;
  int64_t after;
};

// What both clocks showed at one moment, ns.
struct ClockMoment {
  int64_t real;
  int64_t raw;
};

// The mean of those readings that were hardly slower than the fastest. The first after a sleep find cold
// caches: they are slow, and wrong to one side, as those are that met an interrupt. Throws
// std::invalid_argument without a reading, std::runtime_error when the raw clock ran backward in all of them.
ClockMoment moment_of(const std::vector<ClockReading>& readings);

// Reads CLOCK_MONOTONIC_RAW and CLOCK_REALTIME `tries` times. Throws std::invalid_argument when that is not
// positive.
ClockMoment read_clocks_together(int tries);

}  // namespace fabricpulse

#endif  // FABRICPULSE_CLOCKSYNC_CLOCKS_TOGETHER_H_
