// The clock of a host in the lab.
//
// All network namespaces of one machine share one kernel clock, so a lab host gets its clock in software:
// every stamp that a daemon reads (system clock, kernel packet stamps) goes through this page. The lab
// appends segments, daemons only read. A host without FABRICPULSE_VIRTUAL_CLOCK in its environment has no
// page and its stamps are the kernel's: one branch, no cost.
//
//   host_ns = kernel_ns + offset_ns + (kernel_ns - start_ns) * rate_ppt / 10^12
//
// with the last segment whose start_ns <= kernel_ns (before the first: the first). Segments are append-only
// and ordered by start_ns; their count is stored with release order after the segment, so a reader needs no lock.
// There are two lists of segments: of CLOCK_REALTIME, with what the oscillator does and what daemons do to the
// clock, and of CLOCK_MONOTONIC_RAW, with what the oscillator does alone. Without any of the second kind the raw
// clock is the kernel's.
//
// The Python mirror is core/fabricpulse/core/shm/virtual_clock.py; tests/unit/core/test_layouts.py holds the
// two together.
#ifndef FABRICPULSE_VIRTUAL_CLOCK_H_
#define FABRICPULSE_VIRTUAL_CLOCK_H_

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FP_VIRTUAL_CLOCK_MAGIC UINT64_C(0x314b4c4356505046)  // "FPPVCLK1", little endian
#define FP_VIRTUAL_CLOCK_VERSION 2u
#define FP_VIRTUAL_CLOCK_ENV "FABRICPULSE_VIRTUAL_CLOCK"

struct fp_virtual_clock_segment {
  int64_t start_ns;   // the kernel's clock from which on the segment holds
  int64_t offset_ns;  // host minus kernel at start_ns
  int64_t rate_ppt;   // host rate minus kernel rate, parts per 10^12 (1 ppm = 10^6); positive = host is fast
};

struct fp_virtual_clock {
  uint64_t magic;
  uint32_t version;
  uint32_t capacity;   // segments that fit, of each kind
  uint32_t count;      // segments of CLOCK_REALTIME that hold; written with release order
  uint32_t raw_count;  // the same of CLOCK_MONOTONIC_RAW, which lie behind all of the others
  __extension__ struct fp_virtual_clock_segment segments[];  // in C++ an extension, which all compilers have
};

// The page named by FABRICPULSE_VIRTUAL_CLOCK, or NULL when the variable is unset. A page that is named but
// cannot be read is a broken lab: *error is set to 1 and NULL returned, and the caller must refuse to start.
static inline const struct fp_virtual_clock* fp_virtual_clock_open(int* error) {
  *error = 0;
  const char* path = getenv(FP_VIRTUAL_CLOCK_ENV);
  if (path == NULL || path[0] == '\0') return NULL;
  *error = 1;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NULL;
  struct stat st;
  if (fstat(fd, &st) != 0 || (size_t)st.st_size < sizeof(struct fp_virtual_clock)) {
    close(fd);
    return NULL;
  }
  void* map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (map == MAP_FAILED) return NULL;
  const struct fp_virtual_clock* page = (const struct fp_virtual_clock*)map;
  if (page->magic != FP_VIRTUAL_CLOCK_MAGIC || page->version != FP_VIRTUAL_CLOCK_VERSION ||
      (size_t)st.st_size < sizeof(*page) + 2u * page->capacity * sizeof(struct fp_virtual_clock_segment)) {
    munmap(map, (size_t)st.st_size);
    return NULL;
  }
  *error = 0;
  return page;
}

static inline int64_t fp_virtual_clock_at(const struct fp_virtual_clock_segment* segments,
                                          const uint32_t* counter, int64_t kernel_ns) {
  uint32_t count = __atomic_load_n(counter, __ATOMIC_ACQUIRE);
  if (count == 0) return kernel_ns;
  uint32_t i = count - 1;
  while (i > 0 && segments[i].start_ns > kernel_ns) --i;  // stamps are recent: the last or the one before
  const struct fp_virtual_clock_segment* s = &segments[i];
  __extension__ typedef __int128 fp_int128;
  fp_int128 drift = (fp_int128)(kernel_ns - s->start_ns) * s->rate_ppt / 1000000000000LL;
  return kernel_ns + s->offset_ns + (int64_t)drift;
}

// Kernel CLOCK_REALTIME nanoseconds -> what this host's clock showed then.
static inline int64_t fp_virtual_clock_apply(const struct fp_virtual_clock* page, int64_t kernel_ns) {
  return page == NULL ? kernel_ns : fp_virtual_clock_at(page->segments, &page->count, kernel_ns);
}

// Kernel CLOCK_MONOTONIC_RAW nanoseconds -> what this host's raw clock showed then.
static inline int64_t fp_virtual_raw_clock_apply(const struct fp_virtual_clock* page, int64_t kernel_ns) {
  return page == NULL ? kernel_ns
                      : fp_virtual_clock_at(page->segments + page->capacity, &page->raw_count, kernel_ns);
}

// The page of this process (fp_virtual_clock_open), found once; NULL outside of the lab, and for a page that is none.
static inline const struct fp_virtual_clock* fp_virtual_clock_of_process(void) {
  static const struct fp_virtual_clock* page = NULL;
  static int found = 0;
  if (!__atomic_load_n(&found, __ATOMIC_ACQUIRE)) {
    int error;
    const struct fp_virtual_clock* opened = fp_virtual_clock_open(&error);
    __atomic_store_n(&page, opened, __ATOMIC_RELAXED);
    __atomic_store_n(&found, 1, __ATOMIC_RELEASE);
  }
  return __atomic_load_n(&page, __ATOMIC_RELAXED);
}

#ifdef __cplusplus
}
#endif

#endif  // FABRICPULSE_VIRTUAL_CLOCK_H_
