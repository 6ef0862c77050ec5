// The clocks of one tick: monotonic and real time, unstalled time, steps of the host clock.
#ifndef FABRICPULSE_EXPORTERS_TICK_CLOCK_H_
#define FABRICPULSE_EXPORTERS_TICK_CLOCK_H_

#include <cstdint>

#include "fabricpulse/clock_page.h"
#include "unstalled_clock.h"

namespace fabricpulse {

// The host clock: CLOCK_REALTIME, passed through the virtual clock page where one is named (lab only).
class HostClock {
 public:
  HostClock();  // throws std::invalid_argument for a page that is none
  std::int64_t from_kernel(std::int64_t kernel_ns) const { return fp_virtual_clock_apply(page_, kernel_ns); }
  const fp_virtual_clock* page() const { return page_; }  // nullptr outside of the lab

 private:
  const fp_virtual_clock* page_ = nullptr;
};

// All in ns.
struct TickTime {
  std::int64_t mono = 0;              // CLOCK_MONOTONIC
  std::int64_t real = 0;              // CLOCK_REALTIME, as the kernel stamps packets
  std::int64_t host = 0;              // the same on the host clock
  std::int64_t unstalled = 0;         // unstalled time
  std::int64_t unstalled_before = 0;  // at the tick before this
  std::int64_t stall = 0;             // how long the engine was late beyond what is normal, 0 = on time
  std::int64_t clock_step = 0;        // how far CLOCK_REALTIME was stepped since the last tick, signed
};

class TickClock {
 public:
  // longest_tick_ns : the largest regular distance of two ticks; twice that is a stall.
  explicit TickClock(std::int64_t longest_tick_ns) : unstalled_(2 * longest_tick_ns) {}

  // Reads the clocks; once at the begin of each tick.
  const TickTime& advance();
  const TickTime& time() const { return time_; }
  const HostClock& host() const { return host_; }

 private:
  HostClock host_;
  UnstalledClock unstalled_;
  std::int64_t real_offset_ = 0;  // CLOCK_REALTIME - CLOCK_MONOTONIC
  TickTime time_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_TICK_CLOCK_H_
