#include "clocks/phc_reader.h"

#include <fcntl.h>
#include <linux/ptp_clock.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "clocks/clock_ns.h"

namespace fabricpulse {
namespace {

constexpr int kReadsToRetry = 500;  // some 5 s
constexpr int kMostReadsToRetry =
    32'000;                       // of better ways that go on failing: a driver may take long to say so
constexpr int kMostFailed = 8;    // readings in a row, then the next way is taken
constexpr unsigned kSamples = 3;  // the narrowest is taken
constexpr std::int64_t kResolutionNs = 8;  // of what hardware latches, and of the kernel's conversion
constexpr std::int64_t kSlackNs = 1'000;   // of what is read within a call
constexpr std::int64_t kMostSeconds = 9'000'000'000;

bool nanoseconds(const ptp_clock_time& t, std::int64_t* ns) {
  if (t.sec < 0 || t.sec > kMostSeconds) return false;
  *ns = t.sec * 1'000'000'000 + t.nsec;
  return true;
}

// Whether this kernel, this driver or this device never does it. ENODEV: PTP_SYS_OFFSET_PRECISE says so too where the
// kernel runs by another clocksource than the hardware latches (ptp_kvm beside tsc), and other ways work.
bool is_lasting(int error) {
  return error == EOPNOTSUPP || error == EINVAL || error == ENOTTY || error == ENOSYS || error == ENODEV;
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

// What CLOCK_REALTIME was ahead by in a call that lies between two readings of it. It may be steered at any moment
// between them; how far is seen by then.
Ahead within(const Ahead& before, const Ahead& after) {
  return {std::min(before.low, after.low), std::max(before.high, after.high)};
}

// The narrowest of some brackets.
class Narrowest {
 public:
  explicit Narrowest(PhcReading* reading) : reading_(reading) {}
  // EAGAIN for what is no bracket.
  int add(const ptp_clock_time& from, const ptp_clock_time& device, const ptp_clock_time& to,
          const Ahead& ahead) {
    std::int64_t low, phc, high;
    if (!nanoseconds(from, &low) || !nanoseconds(device, &phc) || !nanoseconds(to, &high) || high < low) {
      return EAGAIN;
    }
    if (width_ >= 0 && high - low >= width_) return 0;
    width_ = high - low;
    *reading_ = {phc, low + ahead.low, high + ahead.high};
    return 0;
  }

 private:
  PhcReading* reading_;
  std::int64_t width_ = -1;
};

}  // namespace

PhcReader::PhcReader(int index) : index_(index) { reopen(); }

void PhcReader::reopen() {
  char path[32];
  std::snprintf(path, sizeof(path), "/dev/ptp%d", index_);
  if (fd_ < 0) fd_ = open(path, O_RDONLY | O_CLOEXEC);
  error_ = fd_ < 0 ? errno : 0;
  way_ = Way::kPrecise;
  failed_ = reads_by_way_ = 0;
  reads_to_retry_ = kReadsToRetry;
}

PhcReader::~PhcReader() {
  if (fd_ >= 0) close(fd_);
}

bool PhcReader::read(PhcReading* reading) {
  if ((fd_ < 0 || way_ == Way::kNone) && ++idle_reads_ % kReadsToRetry == 0) reopen();
  if (fd_ < 0) return false;
  if (way_ != Way::kNone && way_ != Way::kPrecise && ++reads_by_way_ >= reads_to_retry_) retry_better();
  for (Way way = way_; way != Way::kNone; way = next(way)) {
    const int error = read_by(way, reading);
    if (error == 0) {
      if (way == way_) failed_ = 0;
      error_ = 0;
      const fp_virtual_clock* page = fp_virtual_clock_of_process();
      reading->raw_low_ns = fp_virtual_raw_clock_apply(page, reading->raw_low_ns);
      reading->raw_high_ns = fp_virtual_raw_clock_apply(page, reading->raw_high_ns);
      return true;
    }
    error_ = error;
    if (way == way_ && (is_lasting(error) || ++failed_ >= kMostFailed)) {
      way_ = next(way);
      failed_ = reads_by_way_ = 0;
    }
    // The reading is lost, the way is not; one that is worse would say no more.
    if (error == EAGAIN) return false;
  }
  if (error_ == ENODEV) {  // by the last way too: it is gone
    close(fd_);
    fd_ = -1;
  }
  return false;
}

// What has failed for a moment, or as long as the kernel ran by another clocksource, need not fail for ever.
void PhcReader::retry_better() {
  reads_by_way_ = 0;
  for (Way way = Way::kPrecise; way != way_; way = next(way)) {
    PhcReading reading;
    if (read_by(way, &reading) != 0) continue;
    way_ = way;
    failed_ = 0;
    reads_to_retry_ = kReadsToRetry;
    return;
  }
  reads_to_retry_ = std::min(2 * reads_to_retry_, kMostReadsToRetry);
}

int PhcReader::read_by(Way way, PhcReading* reading) {
  const std::int64_t before = clock_ns(CLOCK_MONOTONIC_RAW);
  const int error = way == Way::kPrecise ? precise(reading)
                    : way == Way::kPlain ? plain(reading)
                                         : extended(way == Way::kRawBrackets, reading);
  if (error != 0) return error;
  // CLOCK_REALTIME was stepped in between. Each time: in a time namespace PTP ioctls tell the raw clock of the first one.
  if (reading->raw_low_ns < before - kSlackNs ||
      reading->raw_high_ns > clock_ns(CLOCK_MONOTONIC_RAW) + kSlackNs) {
    return EAGAIN;
  }
  return 0;
}

int PhcReader::precise(PhcReading* reading) {
  ptp_sys_offset_precise both{};
  if (ioctl(fd_, PTP_SYS_OFFSET_PRECISE, &both) != 0) return errno;
  std::int64_t raw;
  if (!nanoseconds(both.device, &reading->phc_ns) || !nanoseconds(both.sys_monoraw, &raw)) return EAGAIN;
  reading->raw_low_ns = raw - kResolutionNs;
  reading->raw_high_ns = raw + kResolutionNs;
  return 0;
}

int PhcReader::extended(bool raw, PhcReading* reading) {
  ptp_sys_offset_extended samples{};
  samples.n_samples = kSamples;
  // `clockid` of newer headers; before Linux 6.12 it was reserved and has to be 0, which is CLOCK_REALTIME.
  samples.rsv[0] = raw ? CLOCK_MONOTONIC_RAW : 0;
  const Ahead before = raw ? Ahead{0, 0} : raw_ahead();
  if (ioctl(fd_, PTP_SYS_OFFSET_EXTENDED, &samples) != 0) return errno;
  const Ahead ahead = raw ? before : within(before, raw_ahead());
  Narrowest narrowest(reading);
  for (unsigned i = 0; i < kSamples; ++i) {
    if (const int error = narrowest.add(samples.ts[i][0], samples.ts[i][1], samples.ts[i][2], ahead))
      return error;
  }
  return 0;
}

int PhcReader::plain(PhcReading* reading) {
  ptp_sys_offset samples{};
  samples.n_samples = kSamples;
  const Ahead before = raw_ahead();
  if (ioctl(fd_, PTP_SYS_OFFSET, &samples) != 0) return errno;
  const Ahead ahead = within(before, raw_ahead());
  Narrowest narrowest(reading);
  for (unsigned i = 0; i < 2 * kSamples; i += 2) {
    if (const int error = narrowest.add(samples.ts[i], samples.ts[i + 1], samples.ts[i + 2], ahead))
      return error;
  }
  return 0;
}

}  // namespace fabricpulse
