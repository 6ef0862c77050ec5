#include "tick_clock.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "clock_ns.h"

namespace fabricpulse {
namespace {

constexpr std::int64_t kClockStep = 1'000'000;  // ns between two ticks: slewing moves 5 us in that time

}  // namespace

HostClock::HostClock() {
  int error = 0;
  page_ = fp_virtual_clock_open(&error);
  if (error)
    throw std::invalid_argument(std::string(FP_VIRTUAL_CLOCK_ENV) + " does not name a virtual clock");
}

const TickTime& TickClock::advance() {
  time_.mono = clock_ns(CLOCK_MONOTONIC);
  time_.real = clock_ns(CLOCK_REALTIME);
  time_.clock_step = 0;
  const std::int64_t offset = time_.real - time_.mono;
  if (real_offset_ != 0 && std::llabs(offset - real_offset_) > kClockStep) {
    // Two clock reads with a preemption between them look like a step for one tick: read again before
    // believing it.
    const std::int64_t again = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC);
    if (std::llabs(again - real_offset_) > kClockStep) time_.clock_step = again - real_offset_;
    time_.real = time_.mono + again;
    real_offset_ = again;
  } else {
    real_offset_ = offset;
  }
  time_.host = host_.from_kernel(time_.real);
  time_.unstalled_before = unstalled_.now();
  time_.unstalled = unstalled_.advance(time_.mono, &time_.stall);
  return time_;
}

}  // namespace fabricpulse
