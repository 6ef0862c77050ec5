#include "clocks/phc_reader.h"

#include <fcntl.h>
#include <linux/ptp_clock.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "clocks/clock_ns.h"

namespace fabricpulse {
namespace {

constexpr int kReadsToReopen = 500;        // some 5 s
constexpr unsigned kSamples = 3;           // the narrowest is taken
constexpr std::int64_t kResolutionNs = 8;  // of what hardware latches, and of the kernel's conversion
constexpr std::int64_t kSlackNs = 1'000;   // of what is read within a call
constexpr std::int64_t kMostSeconds = 9'000'000'000;

bool nanoseconds(const ptp_clock_time& t, std::int64_t* ns) {
  if (t.sec < 0 || t.sec > kMostSeconds) return false;
  *ns = t.sec * 1'000'000'000 + t.nsec;
  return true;
}

// The raw clock minus CLOCK_REALTIME, within [low, high].
struct Ahead {
  std::int64_t low, high;
};

Ahead raw_ahead() {
  Ahead best{0, 0};
  for (int i = 0; i < 3; ++i) {
    const std::int64_t before = clock_ns(CLOCK_MONOTONIC_RAW);
    const std::int64_t real = clock_ns(CLOCK_REALTIME);
    const std::int64_t after = clock_ns(CLOCK_MONOTONIC_RAW);
    if (i == 0 || after - before < best.high - best.low) best = {before - real, after - real};
  }
  return best;
}

}  // namespace

PhcReader::PhcReader(int index) : index_(index) { reopen(); }

void PhcReader::reopen() {
  char path[32];
  std::snprintf(path, sizeof(path), "/dev/ptp%d", index_);
  fd_ = open(path, O_RDONLY | O_CLOEXEC);
  error_ = fd_ < 0 ? errno : 0;
  way_ = Way::kPrecise;
}

PhcReader::~PhcReader() {
  if (fd_ >= 0) close(fd_);
}

bool PhcReader::read(PhcReading* reading) {
  if (fd_ < 0 && ++closed_reads_ % kReadsToReopen == 0) reopen();
  if (fd_ < 0) return false;
  while (way_ != Way::kNone) {
    const std::int64_t before = clock_ns(CLOCK_MONOTONIC_RAW);
    bool done = way_ == Way::kPrecise ? precise(reading) : brackets(way_ == Way::kRawBrackets, reading);
    if (done && (reading->raw_low_ns < before - kSlackNs ||
                 reading->raw_high_ns > clock_ns(CLOCK_MONOTONIC_RAW) + kSlackNs)) {
      // In a time namespace: PTP ioctls tell the raw clock of the first one.
      done = false;
      errno = EINVAL;
    }
    if (done) {
      error_ = 0;
      const fp_virtual_clock* page = fp_virtual_clock_of_process();
      reading->raw_low_ns = fp_virtual_raw_clock_apply(page, reading->raw_low_ns);
      reading->raw_high_ns = fp_virtual_raw_clock_apply(page, reading->raw_high_ns);
      return true;
    }
    error_ = errno;
    if (error_ == ENODEV) {
      close(fd_);
      fd_ = -1;
    }
    if (error_ != EOPNOTSUPP && error_ != EINVAL && error_ != ENOTTY && error_ != ENOSYS) return false;
    way_ = static_cast<Way>(static_cast<int>(way_) + 1);
  }
  return false;
}

bool PhcReader::precise(PhcReading* reading) {
  ptp_sys_offset_precise both{};
  if (ioctl(fd_, PTP_SYS_OFFSET_PRECISE, &both) != 0) return false;
  std::int64_t raw;
  if (!nanoseconds(both.device, &reading->phc_ns) || !nanoseconds(both.sys_monoraw, &raw)) {
    errno = EINVAL;
    return false;
  }
  reading->raw_low_ns = raw - kResolutionNs;
  reading->raw_high_ns = raw + kResolutionNs;
  return true;
}

bool PhcReader::brackets(bool raw, PhcReading* reading) {
  ptp_sys_offset_extended samples{};
  samples.n_samples = kSamples;
  // `clockid` of newer headers; before Linux 6.12 it was reserved and has to be 0, which is CLOCK_REALTIME.
  samples.rsv[0] = raw ? CLOCK_MONOTONIC_RAW : 0;
  const Ahead before = raw ? Ahead{0, 0} : raw_ahead();
  if (ioctl(fd_, PTP_SYS_OFFSET_EXTENDED, &samples) != 0) return false;
  // CLOCK_REALTIME may be steered at any moment between the two; how far is seen by then.
  const Ahead after = raw ? Ahead{0, 0} : raw_ahead();
  const Ahead ahead{before.low < after.low ? before.low : after.low,
                    before.high > after.high ? before.high : after.high};
  std::int64_t narrowest = -1;
  for (unsigned i = 0; i < kSamples; ++i) {
    std::int64_t low, phc, high;
    if (!nanoseconds(samples.ts[i][0], &low) || !nanoseconds(samples.ts[i][1], &phc) ||
        !nanoseconds(samples.ts[i][2], &high) || high < low) {
      errno = EINVAL;
      return false;
    }
    if (narrowest >= 0 && high - low >= narrowest) continue;
    narrowest = high - low;
    *reading = {phc, low + ahead.low, high + ahead.high};
  }
  return true;
}

}  // namespace fabricpulse
