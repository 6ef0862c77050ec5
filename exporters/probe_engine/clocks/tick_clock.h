// The clocks of one tick: monotonic and real time, unstalled time, the stamp clock, steps of the host clock.
#ifndef FABRICPULSE_EXPORTERS_TICK_CLOCK_H_
#define FABRICPULSE_EXPORTERS_TICK_CLOCK_H_

#include <cstdint>

#include "clocks/hardware_clocks.h"
#include "clocks/stamp_clock.h"
#include "clocks/unstalled_clock.h"
#include "fabricpulse/clock_page.h"

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
  bool steered =
      false;  // the host clock, or a PHC, was steered since the last tick: stamps taken since are in doubt
};

// A stamp on the stamp clock; 0 where it is not known there. error_ns : as of TrainStamps.
struct Stamp {
  std::int64_t ns = 0;
  std::uint16_t error_ns = 0;
};

class TickClock {
 public:
  // longest_tick_ns : the largest regular distance of two ticks; twice that is a stall. old_epoch_ns : of the stamp
  // clock of the engine before this one, 0 = not known.
  TickClock(std::int64_t longest_tick_ns, std::int64_t old_epoch_ns);

  // Reads the clocks; once at the begin of each tick.
  const TickTime& advance();
  const TickTime& time() const { return time_; }
  const HostClock& host() const { return host_; }
  // Whether the host clock still is as it was read at the begin of the tick. If not, stamps of the kernel are unknown until
  // the next one: one that was made after a step would be converted by what was before it. To be asked once what is to be
  // converted has been made.
  bool check();
  bool in_doubt() const { return in_doubt_; }
  // A stamp of the kernel on the stamp clock; 0 where that is not known (StampClock).
  std::int64_t stamp_ns(std::int64_t kernel_ns) const {
    return in_doubt_ ? 0 : stamps_.from_host(host_.from_kernel(kernel_ns));
  }
  // The better of two stamps of one packet: that of the NIC where its PHC is known and the kernel's, of its reception, does
  // not contradict it, else the kernel's. 0 = there is none.
  Stamp stamp(std::int64_t kernel_ns, int phc, std::int64_t nic_ns) const;
  HardwareClocks& hardware() { return hardware_; }
  const HardwareClocks& hardware() const { return hardware_; }
  std::int64_t stamp_epoch_ns() const { return stamps_.epoch_ns(); }

 private:
  HostClock host_;
  StampClock stamps_;
  HardwareClocks hardware_;
  UnstalledClock unstalled_;
  std::int64_t real_offset_ = 0;  // CLOCK_REALTIME - CLOCK_MONOTONIC
  bool in_doubt_ = false;         // of this tick, by check()
  TickTime time_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_TICK_CLOCK_H_
