// `phc_reader`: how many of some readings of a PHC succeed whose driver, or whose host, gets in the way. One line for
// each case that is named on the command line, of numbers: readings that were wrong, those that succeeded, and the errno
// at the end.
#include "clocks/phc_reader.h"

#include <fcntl.h>
#include <linux/ptp_clock.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// What the driver does. Each 0 = it works, else its errno.
int precise = EOPNOTSUPP, raw_brackets = EINVAL, brackets = 0, plain = 0;
bool in_time_namespace = false;
std::int64_t set_by_ns = 0;  // how far somebody has set CLOCK_REALTIME
int calls_to_set = -1;       // in which call of the driver it is set by a second more; -1 = in none

std::int64_t kernel_ns(clockid_t id) {
  timespec t{};
  syscall(SYS_clock_gettime, id, &t);
  return t.tv_sec * kSecond + t.tv_nsec + (id == CLOCK_REALTIME ? set_by_ns : 0);
}

ptp_clock_time as_ptp(std::int64_t ns) {
  ptp_clock_time t{};
  t.sec = ns / kSecond;
  t.nsec = static_cast<std::uint32_t>(ns % kSecond);
  return t;
}

std::int64_t phc_ns() { return kernel_ns(CLOCK_MONOTONIC_RAW) + 37 * kSecond; }

// Of the clock that a PTP ioctl tells, before that of this process.
std::int64_t ahead(clockid_t id) { return in_time_namespace && id == CLOCK_MONOTONIC_RAW ? 5 * kSecond : 0; }

std::int64_t told_ns(clockid_t id) { return kernel_ns(id) + ahead(id); }

int fail(int error) {
  errno = error;
  return -1;
}

void set_the_clock() {
  if (calls_to_set >= 0 && calls_to_set-- == 0) set_by_ns += kSecond;
}

int driver(unsigned long request, void* data) {
  if (request == PTP_SYS_OFFSET_PRECISE) {
    if (precise != 0) return fail(precise);
    auto* both = static_cast<ptp_sys_offset_precise*>(data);
    const std::int64_t raw = kernel_ns(CLOCK_MONOTONIC_RAW);  // one moment for both
    both->sys_monoraw = as_ptp(raw + ahead(CLOCK_MONOTONIC_RAW));
    both->device = as_ptp(raw + 37 * kSecond);
    return 0;
  }
  if (request == PTP_SYS_OFFSET_EXTENDED) {
    auto* samples = static_cast<ptp_sys_offset_extended*>(data);
    const auto clock = static_cast<clockid_t>(samples->rsv[0]);
    const int error = clock == CLOCK_REALTIME ? brackets : raw_brackets;
    if (error != 0) return fail(error);
    for (unsigned i = 0; i < samples->n_samples; ++i) {
      samples->ts[i][0] = as_ptp(told_ns(clock));
      samples->ts[i][1] = as_ptp(phc_ns());
      if (i == 1) set_the_clock();
      samples->ts[i][2] = as_ptp(told_ns(clock));
    }
    return 0;
  }
  if (plain != 0) return fail(plain);
  auto* samples = static_cast<ptp_sys_offset*>(data);
  for (unsigned i = 0; i < samples->n_samples; ++i) {
    samples->ts[2 * i] = as_ptp(told_ns(CLOCK_REALTIME));
    samples->ts[2 * i + 1] = as_ptp(phc_ns());
    set_the_clock();
  }
  samples->ts[2 * samples->n_samples] = as_ptp(told_ns(CLOCK_REALTIME));
  return 0;
}

struct Count {
  int wrong = 0, good = 0;
};

void read(fabricpulse::PhcReader& reader, int times, Count* count) {
  for (int i = 0; i < times; ++i) {
    fabricpulse::PhcReading reading;
    if (!reader.read(&reading)) continue;
    ++count->good;
    const std::int64_t raw = reading.phc_ns - 37 * kSecond;
    if (raw < reading.raw_low_ns || raw > reading.raw_high_ns) ++count->wrong;
  }
}

// Returns whether there is such a case.
bool run(const char* name) {
  precise = EOPNOTSUPP, raw_brackets = EINVAL, brackets = 0, plain = 0;
  in_time_namespace = false;
  fabricpulse::PhcReader reader(0);
  Count count;
  int error = 0;
  if (std::strcmp(name, "set") == 0 || std::strcmp(name, "plain_set") == 0) {
    brackets = name[0] == 'p' ? EOPNOTSUPP : 0;
    read(reader, 100, &count);
    calls_to_set = 0;
    read(reader, 100, &count);
  } else if (std::strcmp(name, "namespace") == 0) {
    in_time_namespace = true;
    precise = raw_brackets = 0;
    read(reader, 200, &count);
  } else if (std::strncmp(name, "precise_", 8) == 0) {
    precise = static_cast<int>(std::strtol(name + 8, nullptr, 10));
    read(reader, 200, &count);
  } else if (std::strncmp(name, "passes_", 7) == 0) {  // the best way fails for a while, later the others do
    precise = static_cast<int>(std::strtol(name + 7, nullptr, 10));
    read(reader, 2'000, &count);
    precise = 0;
    read(reader, 3'000, &count);
    brackets = plain = EIO;
    read(reader, 100, &count);
  } else if (std::strcmp(name, "plain") == 0) {
    brackets = EOPNOTSUPP;
    read(reader, 200, &count);
  } else if (std::strcmp(name, "busy") == 0) {  // for some time, in every way
    precise = brackets = plain = EBUSY;
    read(reader, 200, &count);
    precise = brackets = plain = 0;
    read(reader, 1'000, &count);
  } else if (std::strcmp(name, "gone") == 0) {
    precise = raw_brackets = brackets = plain = ENODEV;
    read(reader, 200, &count);
    error = reader.error();
    precise = 0;  // its driver has come back
    read(reader, 1'000, &count);
  } else {
    return false;
  }
  std::printf("%d %d %d\n", count.wrong, count.good, error != 0 ? error : reader.error());
  return true;
}

}  // namespace

// In place of the C library's.
extern "C" int ioctl(int /*fd*/, unsigned long request, ...) noexcept {
  va_list rest;
  va_start(rest, request);
  void* data = va_arg(rest, void*);
  va_end(rest);
  return driver(request, data);
}

extern "C" int open(const char* /*path*/, int flags, ...) {
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, "/dev/null", flags, 0));
}

extern "C" int clock_gettime(clockid_t id, timespec* out) noexcept {
  const std::int64_t now = kernel_ns(id);
  out->tv_sec = now / kSecond;
  out->tv_nsec = now % kSecond;
  return 0;
}

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (!run(argv[i])) return 2;
  }
}
