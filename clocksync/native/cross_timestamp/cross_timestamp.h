// Cross-timestamps of CLOCK_REALTIME and CLOCK_MONOTONIC_RAW: both clocks at one moment, from many readings.
#ifndef FABRICPULSE_CLOCKSYNC_CROSS_TIMESTAMP_H_
#define FABRICPULSE_CLOCKSYNC_CROSS_TIMESTAMP_H_

#include <cstdint>
#include <vector>

namespace fabricpulse {

// The raw clock, the real one, and the raw one again, right after each other; ns.
struct ClockReading {
  int64_t before;
  int64_t real;
  int64_t after;
};

// What both clocks showed at one moment, ns. error : how far `raw` may be off: each of the readings was somewhere within
// its two of the raw clock.
struct CrossTimestamp {
  int64_t real;
  int64_t raw;
  int64_t error;
};

// The mean of those readings that were hardly slower than the fastest. The first after a sleep find cold
// caches: they are slow, and wrong to one side, as those are that met an interrupt. Throws
// std::invalid_argument without a reading, std::runtime_error when the raw clock ran backward in all of them.
CrossTimestamp combine(const std::vector<ClockReading>& readings);

// Reads CLOCK_MONOTONIC_RAW and CLOCK_REALTIME `tries` times. Throws std::invalid_argument when that is not
// positive.
CrossTimestamp cross_timestamp(int tries);

}  // namespace fabricpulse

#endif  // FABRICPULSE_CLOCKSYNC_CROSS_TIMESTAMP_H_
