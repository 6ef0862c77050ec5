#ifndef FABRICPULSE_CORE_MONOTONIC_H_
#define FABRICPULSE_CORE_MONOTONIC_H_

#include <time.h>

#include <cstdint>

namespace fabricpulse {

// CLOCK_MONOTONIC, ns: for the edges, where there is no Runtime to ask.
inline uint64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_MONOTONIC_H_
