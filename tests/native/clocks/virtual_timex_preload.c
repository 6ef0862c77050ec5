// LD_PRELOAD that gives a lab host a clock discipline of its own: what `adjtimex` is to a machine.
//
//   cc -O2 -shared -fPIC -I core/include virtual_timex_preload.c -o virtual_timex_preload.so
//
// A program that steers the clock (chronyd without -x; with virtual_clock_preload.so, by which it reads it)
// then steers the page that FABRICPULSE_VIRTUAL_CLOCK names: frequency and tick become the rate of a new
// segment, a step its offset. From its first adjustment on the page has no other writer. What the program
// says of the clock (status, maximum and estimated error, TAI) is kept in the file `<page>.timex`, where
// every program of the host that loads this finds it, as the kernel does it: maxerror grows by 500 us a
// second, at 16 s the clock is unsynchronized, and a step makes it so at once.
//
// The machine's own clock is never set: all calls that could do it end here. The kernel's PLL (ADJ_OFFSET)
// and adjtime() are refused, except for ending them: chronyd slews by frequency.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#include "fabricpulse/virtual_clock.h"

enum { kMostErrorUs = 16000000, kErrorGrowthPpm = 500, kNominalTickUs = 10000 };
static const int64_t kMostFrequency = 500 << 16;

// Of the host, in the file.
struct discipline {
  int64_t oscillator_ppt;  // the page's rate when nobody had steered it
  int64_t frequency;       // as struct timex: ppm * 2^16
  int64_t tick_us;
  int64_t maxerror_us, esterror_us;
  int64_t maxerror_ns;  // kernel time when maxerror_us was said
  int64_t constant;
  int32_t status, tai;
};

static struct fp_virtual_clock* page;
static int state = -1;

static void fail(const char* what) {
  fprintf(stderr, "virtual_timex_preload: %s\n", what);
  abort();
}

// Not by clock_gettime of libc, which virtual_clock_preload.so may have replaced.
static int64_t kernel_now(void) {
  struct timespec t;
  if (syscall(SYS_clock_gettime, CLOCK_REALTIME, &t) != 0) fail("the kernel does not tell the time");
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

__attribute__((constructor)) static void prepare(void) {
  int error = 0;
  const struct fp_virtual_clock* checked = fp_virtual_clock_open(&error);
  if (error || checked == NULL) fail("cannot read the page that " FP_VIRTUAL_CLOCK_ENV " names");
  size_t size = sizeof(*page) + checked->capacity * sizeof(struct fp_virtual_clock_segment);
  char path[4096];
  const char* name = getenv(FP_VIRTUAL_CLOCK_ENV);
  if ((size_t)snprintf(path, sizeof(path), "%s.timex", name) >= sizeof(path)) fail("the name is too long");
  int fd = open(name, O_RDWR | O_CLOEXEC);
  void* map = fd < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) fail("cannot write the page that " FP_VIRTUAL_CLOCK_ENV " names");
  close(fd);
  page = (struct fp_virtual_clock*)map;
  if (page->count == 0) fail("the page has no segment yet");
  state = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (state < 0) fail("cannot write <page>.timex");
}

// Locks the host's discipline and reads it; at its first use as a machine has it after the boot.
static struct discipline lock_discipline(void) {
  struct discipline d;
  if (flock(state, LOCK_EX) != 0) fail("cannot lock <page>.timex");
  if (pread(state, &d, sizeof(d), 0) == sizeof(d)) return d;
  memset(&d, 0, sizeof(d));
  d.oscillator_ppt = page->segments[page->count - 1].rate_ppt;
  d.tick_us = kNominalTickUs;
  d.maxerror_us = d.esterror_us = kMostErrorUs;
  d.maxerror_ns = kernel_now();
  d.constant = 2;
  d.status = STA_UNSYNC;
  return d;
}

static void unlock_discipline(const struct discipline* d) {
  if (pwrite(state, d, sizeof(*d), 0) != sizeof(*d)) fail("cannot write <page>.timex");
  flock(state, LOCK_UN);
}

static int64_t maxerror_us(const struct discipline* d, int64_t now) {
  int64_t grown = d->maxerror_us + (now - d->maxerror_ns) / 1000 * kErrorGrowthPpm / 1000000;
  return grown < kMostErrorUs ? grown : kMostErrorUs;
}

// From `now` on the clock runs as the discipline says, and is `step_ns` further.
static void append_segment(const struct discipline* d, int64_t now, int64_t step_ns) {
  if (page->count == page->capacity) fail("the page of the virtual clock is full");
  const struct fp_virtual_clock_segment* last = &page->segments[page->count - 1];
  struct fp_virtual_clock_segment next;
  next.start_ns = now > last->start_ns ? now : last->start_ns;
  next.offset_ns = fp_virtual_clock_apply(page, next.start_ns) - next.start_ns + step_ns;
  // A tick is 10 ms: 1 us of it are 100 ppm.
  double steered = (double)(d->tick_us - kNominalTickUs) * 1e8 + (double)d->frequency * 1e6 / 65536;
  double oscillator = (double)d->oscillator_ppt;
  next.rate_ppt = (int64_t)(oscillator + steered + oscillator * steered * 1e-12);
  page->segments[page->count] = next;
  __atomic_store_n(&page->count, page->count + 1, __ATOMIC_RELEASE);
}

// As ntp_clear() of the kernel does when the clock is stepped.
static void step(struct discipline* d, int64_t now, int64_t step_ns) {
  append_segment(d, now, step_ns);
  d->status |= STA_UNSYNC;
  d->maxerror_us = d->esterror_us = kMostErrorUs;
  d->maxerror_ns = now;
}

static int refuse(int error) {
  errno = error;
  return -1;
}

int adjtimex(struct timex* t) {
  const unsigned modes = t->modes;
  const unsigned known = ADJ_OFFSET | ADJ_FREQUENCY | ADJ_MAXERROR | ADJ_ESTERROR | ADJ_STATUS |
                         ADJ_TIMECONST | ADJ_TAI | ADJ_SETOFFSET | ADJ_MICRO | ADJ_NANO | ADJ_TICK |
                         ADJ_OFFSET_SS_READ;
  if (modes & ~known) return refuse(EINVAL);
  if ((modes & ADJ_OFFSET) && modes != ADJ_OFFSET_SS_READ && t->offset != 0) {
    fputs("virtual_timex_preload: slewing by ADJ_OFFSET or adjtime is not offered here\n", stderr);
    return refuse(EOPNOTSUPP);
  }
  if ((modes & ADJ_TICK) && (t->tick < 9000 || t->tick > 11000)) return refuse(EINVAL);
  const int64_t unit_ns = (modes & ADJ_NANO) ? 1 : 1000;
  if ((modes & ADJ_SETOFFSET) && (t->time.tv_usec < 0 || t->time.tv_usec >= 1000000000 / unit_ns)) {
    return refuse(EINVAL);
  }

  struct discipline d = lock_discipline();
  const int64_t now = kernel_now();
  if (modes & ADJ_SETOFFSET) {
    step(&d, now, (int64_t)t->time.tv_sec * 1000000000 + t->time.tv_usec * unit_ns);
  }
  if (modes & ADJ_STATUS) d.status = (d.status & STA_RONLY) | (t->status & ~STA_RONLY);
  if (modes & ADJ_NANO) d.status |= STA_NANO;
  if (modes & ADJ_MICRO) d.status &= ~STA_NANO;
  if (modes & ADJ_MAXERROR) {
    d.maxerror_us = t->maxerror < 0 ? 0 : t->maxerror;
    d.maxerror_ns = now;
  }
  if (modes & ADJ_ESTERROR) d.esterror_us = t->esterror;
  if (modes & ADJ_TIMECONST) d.constant = t->constant;
  if (modes & ADJ_TAI) d.tai = (int32_t)t->constant;
  if (modes & ADJ_FREQUENCY) {
    d.frequency = t->freq;
    if (d.frequency > kMostFrequency) d.frequency = kMostFrequency;
    if (d.frequency < -kMostFrequency) d.frequency = -kMostFrequency;
  }
  if (modes & ADJ_TICK) d.tick_us = t->tick;
  if (modes & (ADJ_FREQUENCY | ADJ_TICK)) append_segment(&d, now, 0);
  if (maxerror_us(&d, now) >= kMostErrorUs) d.status |= STA_UNSYNC;

  const int64_t shown = fp_virtual_clock_apply(page, now);
  t->offset = 0;
  t->freq = d.frequency;
  t->maxerror = maxerror_us(&d, now);
  t->esterror = d.esterror_us;
  t->status = d.status;
  t->constant = d.constant;
  t->precision = 1;
  t->tolerance = kMostFrequency;
  t->tick = d.tick_us;
  t->tai = d.tai;
  t->time.tv_sec = shown / 1000000000;
  t->time.tv_usec = shown % 1000000000 / ((d.status & STA_NANO) ? 1 : 1000);
  unlock_discipline(&d);
  return d.status & (STA_UNSYNC | STA_CLOCKERR) ? TIME_ERROR : TIME_OK;
}

int ntp_adjtime(struct timex* t) { return adjtimex(t); }

int clock_adjtime(clockid_t clock, struct timex* t) {
  return clock == CLOCK_REALTIME ? adjtimex(t) : refuse(EOPNOTSUPP);
}

int clock_settime(clockid_t clock, const struct timespec* t) {
  if (clock != CLOCK_REALTIME) return refuse(EPERM);
  struct discipline d = lock_discipline();
  const int64_t now = kernel_now();
  step(&d, now, (int64_t)t->tv_sec * 1000000000 + t->tv_nsec - fp_virtual_clock_apply(page, now));
  unlock_discipline(&d);
  return 0;
}

int settimeofday(const struct timeval* t, const struct timezone* zone) {
  if (zone != NULL) return refuse(EPERM);
  if (t == NULL) return 0;
  const struct timespec at = {.tv_sec = t->tv_sec, .tv_nsec = t->tv_usec * 1000};
  return clock_settime(CLOCK_REALTIME, &at);
}

int adjtime(const struct timeval* delta, struct timeval* left) {
  if (delta != NULL && (delta->tv_sec != 0 || delta->tv_usec != 0)) return refuse(EOPNOTSUPP);
  if (left != NULL) memset(left, 0, sizeof(*left));
  return 0;
}
