#include "clocks/tick_clock.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "clocks/clock_ns.h"
#include "packets/wire.h"

namespace fabricpulse {
namespace {

constexpr std::int64_t kClockStep = 1'000'000;  // ns between two ticks: slewing moves 5 us in that time

constexpr int kReadings = 5;
// Epochs are multiples of it: an engine that begins anew has the same one, or another clock by so much that nobody
// takes it for the old one.
constexpr std::int64_t kEpochNs = 1 << 20;
constexpr std::int64_t kSameBootNs = 3'600'000'000'000;

ClockReading read_once(const fp_virtual_clock* page) {
  const std::int64_t before = fp_raw_clock_now();
  const std::int64_t host = fp_host_clock_now(page);
  const std::int64_t width = fp_raw_clock_now() - before;
  return {host, before + width / 2, width};
}

// The mean of those readings that were hardly slower than the fastest; the first pays for cold caches, any may meet
// an interrupt.
ClockReading read_clocks(const fp_virtual_clock* page) {
  ClockReading readings[kReadings];
  ClockReading best;
  for (int i = 0; i < kReadings; ++i) {
    readings[i] = read_once(page);
    if (i == 0 || readings[i].width_ns < best.width_ns) best = readings[i];
  }
  std::int64_t sum = 0;
  int count = 0;
  for (const ClockReading& one : readings) {
    if (one.width_ns > best.width_ns + best.width_ns / 4) continue;
    const std::int64_t apart = (one.raw_ns - best.raw_ns) - (one.host_ns - best.host_ns);
    if (fp_distance(apart, 0) > best.width_ns) continue;  // the host clock was stepped in between
    sum += apart;
    ++count;
  }
  best.raw_ns += sum / count;
  return best;
}

std::int64_t epoch_of(const ClockReading& now, std::int64_t old_ns) {
  const std::int64_t epoch = (now.host_ns - now.raw_ns) / kEpochNs * kEpochNs;
  return old_ns != 0 && fp_distance(epoch, old_ns) < kSameBootNs ? old_ns : epoch;
}

}  // namespace

HostClock::HostClock() {
  int error = 0;
  page_ = fp_virtual_clock_open(&error);
  if (error)
    throw std::invalid_argument(std::string(FP_VIRTUAL_CLOCK_ENV) + " does not name a virtual clock");
}

TickClock::TickClock(std::int64_t longest_tick_ns, std::int64_t old_epoch_ns)
    : stamps_(epoch_of(read_clocks(host_.page()), old_epoch_ns)), unstalled_(2 * longest_tick_ns) {}

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
  in_doubt_ = false;
  time_.steered = !stamps_.observe(read_clocks(host_.page()));
  time_.steered = !hardware_.read() || time_.steered;
  time_.unstalled_before = unstalled_.now();
  time_.unstalled = unstalled_.advance(time_.mono, &time_.stall);
  return time_;
}

bool TickClock::check() {
  // Twice: a reading that was interrupted says little, and says so by its width.
  in_doubt_ =
      in_doubt_ || !(stamps_.holds(read_once(host_.page())) || stamps_.holds(read_once(host_.page())));
  return !in_doubt_;
}

Stamp TickClock::stamp(std::int64_t kernel_ns, int phc, std::int64_t nic_ns) const {
  if (nic_ns != 0) {
    const RawStamp raw = hardware_.from_phc(phc, nic_ns);
    const std::int64_t ns = raw.raw_ns + stamps_.epoch_ns();
    if (raw.error_ns > 0 && raw.error_ns <= kMostStampErrorNs &&
        (kernel_ns == 0 || stamps_.agrees(host_.from_kernel(kernel_ns), ns, raw.error_ns))) {
      return {ns, static_cast<std::uint16_t>(raw.error_ns)};
    }
  }
  return {kernel_ns != 0 ? stamp_ns(kernel_ns) : 0, 0};
}

}  // namespace fabricpulse
