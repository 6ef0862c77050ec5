// A POSIX clock as nanoseconds.
#ifndef FABRICPULSE_EXPORTERS_CLOCK_NS_H_
#define FABRICPULSE_EXPORTERS_CLOCK_NS_H_

#include <cstdint>
#include <ctime>

namespace fabricpulse {

inline std::int64_t clock_ns(clockid_t id) {
  timespec t;
  clock_gettime(id, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_CLOCK_NS_H_
