// The clock page: fleet time for every process of a host.
//
// The clocksync sidecar writes it, everybody reads it. A seqlock: `sequence` is odd while the writer works; a
// reader that sees an odd or changed sequence tries again. Fleet time is a chain of straight lines over the
// host's CLOCK_REALTIME; the page holds the line that is valid now and the one before it, so that a packet
// stamp a little older than the last update is still converted with the line of its own time.
//
//   fleet_ns = ref_fleet_ns + (host_ns - ref_host_ns) * (1 + rate_ppt / 10^12)
//   error bound = bound_ns + |host_ns - bound_ref_host_ns| * drift_ppb / 10^9        (earliest <= truth <=
//   latest)
#ifndef FABRICPULSE_CLOCK_PAGE_H_
#define FABRICPULSE_CLOCK_PAGE_H_

#include <stdint.h>
#include <time.h>

#include "fabricpulse/virtual_clock.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FP_CLOCK_PAGE_MAGIC UINT64_C(0x314b434f4c435046)  // "FPCLOCK1", little endian
#define FP_CLOCK_PAGE_VERSION 1u

enum fp_clock_status {
  FP_CLOCK_UNKNOWN = 0,       // never synchronised: no fleet time
  FP_CLOCK_SYNCHRONIZED = 1,  // fed by fresh measurements
  FP_CLOCK_HOLDOVER = 2,      // no fresh measurement; the bound grows
  FP_CLOCK_DISRUPTED = 3,     // the host clock was stepped; wait for the next update
};

struct fp_clock_line {
  int64_t ref_host_ns;   // host CLOCK_REALTIME where the line starts
  int64_t ref_fleet_ns;  // fleet time there
  int64_t rate_ppt;      // fleet rate minus host rate, parts per 10^12
};

struct fp_clock_page {
  uint64_t magic;
  uint32_t version;
  uint32_t size;      // bytes of this struct
  uint32_t sequence;  // seqlock: odd while writing
  uint32_t status;    // enum fp_clock_status
  struct fp_clock_line current;
  struct fp_clock_line previous;
  int64_t bound_ref_host_ns;    // when bound_ns was true
  int64_t bound_ns;             // half width of [earliest, latest]
  int64_t drift_ppb;            // growth of the bound per second of age
  int64_t valid_until_host_ns;  // past this the page is dead (writer gone): treat as FP_CLOCK_UNKNOWN
  int64_t ref_mono_raw_ns;  // CLOCK_MONOTONIC_RAW at current.ref_host_ns: a jump of the difference is a clock
                            // step
  uint64_t disruptions;     // clock steps seen since the writer started
};

struct fp_fleet_time {
  int64_t fleet_ns;
  int64_t bound_ns;
  uint32_t status;
};

// a * b / divisor, exact. A 128-bit division costs more than everything else in a read, and ages are seconds:
// the product nearly always fits 64 bits.
static inline int64_t fp_mul_div(int64_t a, int64_t b, int64_t divisor) {
  int64_t product;
  if (!__builtin_mul_overflow(a, b, &product)) return product / divisor;
  __extension__ typedef __int128 fp_int128;
  return (int64_t)((fp_int128)a * b / divisor);
}

static inline int64_t fp_clock_line_at(const struct fp_clock_line* line, int64_t host_ns) {
  int64_t dt = host_ns - line->ref_host_ns;
  return line->ref_fleet_ns + dt + fp_mul_div(dt, line->rate_ppt, 1000000000000LL);
}

// One consistent copy of the page. Returns 0, or -1 after `tries` collisions with the writer.
static inline int fp_clock_page_read(const struct fp_clock_page* page, struct fp_clock_page* out, int tries) {
  while (tries-- > 0) {
    uint32_t before = __atomic_load_n(&page->sequence, __ATOMIC_ACQUIRE);
    if (before & 1u) continue;
    __builtin_memcpy(out, (const void*)page, sizeof(*out));
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (__atomic_load_n(&page->sequence, __ATOMIC_RELAXED) == before) return 0;
  }
  return -1;
}

// Converts a stamp of the host clock by a copy of the page.
static inline struct fp_fleet_time fp_clock_convert(const struct fp_clock_page* copy, int64_t host_ns) {
  struct fp_fleet_time t;
  const struct fp_clock_line* line = host_ns >= copy->current.ref_host_ns ? &copy->current : &copy->previous;
  t.fleet_ns = fp_clock_line_at(line, host_ns);
  int64_t age = host_ns - copy->bound_ref_host_ns;
  if (age < 0) age = -age;
  t.bound_ns = copy->bound_ns + fp_mul_div(age, copy->drift_ppb, 1000000000LL);
  t.status = host_ns > copy->valid_until_host_ns ? (uint32_t)FP_CLOCK_UNKNOWN : copy->status;
  return t;
}

// What the host clock shows now (the kernel's, or the lab's virtual clock of this host).
static inline int64_t fp_host_clock_now(const struct fp_virtual_clock* virtual_clock) {
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  return fp_virtual_clock_apply(virtual_clock, (int64_t)ts.tv_sec * 1000000000LL + ts.tv_nsec);
}

// Fleet time now, with its bound and status: earliest = fleet_ns - bound_ns, latest = fleet_ns + bound_ns.
// Look at `status` first: FP_CLOCK_UNKNOWN means that there is no fleet time. virtual_clock : NULL outside a
// lab. Returns 0, or -1 when the writer was stopped in the middle of an update: ask again. Lock-free, no
// system call but the vDSO's clock_gettime.
static inline int fp_fleet_clock_now(const struct fp_clock_page* page,
                                     const struct fp_virtual_clock* virtual_clock,
                                     struct fp_fleet_time* now) {
  struct fp_clock_page copy;
  if (fp_clock_page_read(page, &copy, 10000) != 0) return -1;
  *now = fp_clock_convert(&copy, fp_host_clock_now(virtual_clock));
  return 0;
}

#ifdef __cplusplus
}
#endif

#endif  // FABRICPULSE_CLOCK_PAGE_H_
