// An independent reader of a ClockBound v2 segment, written from the published layout, and a hammer for torn
// reads.
//
// clockbound_reader FILE            prints: status bound_ns max_drift_ppb disruption earliest_ns latest_ns
// clockbound_reader FILE torn N     N snapshots; a consistent one has bound == disruption_marker * 1000 (the
// test's
//                                   writer sees to that); prints: reads torn retries changes
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct segment {
  uint32_t magic[2];
  uint32_t size;
  uint16_t version;
  uint16_t generation;
  struct timespec as_of;
  struct timespec void_after;
  int64_t bound_ns;
  uint64_t disruption_marker;
  uint32_t max_drift_ppb;
  int32_t status;
  uint8_t disruption_support;
  uint8_t padding[7];
};
_Static_assert(sizeof(struct segment) == 80, "ClockBound v2 has 80 bytes");

static int64_t ns(struct timespec t) { return t.tv_sec * 1000000000LL + t.tv_nsec; }

static long retries;

static struct segment snapshot(const struct segment* shared) {
  struct segment copy;
  for (;;) {
    uint16_t before = __atomic_load_n(&shared->generation, __ATOMIC_ACQUIRE);
    if ((before & 1) == 0) {
      memcpy(&copy, (const void*)shared, sizeof(copy));
      __atomic_thread_fence(__ATOMIC_ACQUIRE);
      if (__atomic_load_n(&shared->generation, __ATOMIC_RELAXED) == before) return copy;
    }
    ++retries;
  }
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  int fd = open(argv[1], O_RDONLY);
  if (fd < 0) return 3;
  const struct segment* shared = mmap(NULL, sizeof(struct segment), PROT_READ, MAP_SHARED, fd, 0);
  if (shared == MAP_FAILED) return 4;
  if (shared->magic[0] != 0x414D5A4Eu || shared->magic[1] != 0x43420200u || shared->version != 2 ||
      shared->size != sizeof(struct segment) || shared->generation == 0)
    return 5;
  if (argc == 4) {
    long reads = 0, torn = 0, changes = 0;
    uint64_t last = 0;
    // Until the writer has been seen at work often enough, too.
    for (; reads < atol(argv[3]) || changes < 1000; ++reads) {
      struct segment s = snapshot(shared);
      if (s.bound_ns != (int64_t)(s.disruption_marker * 1000) || ns(s.as_of) != s.bound_ns) ++torn;
      if (s.disruption_marker != last) ++changes;
      last = s.disruption_marker;
    }
    printf("%ld %ld %ld %ld\n", reads, torn, retries, changes);
    return 0;
  }
  // With the flag a client opens the VMClock too and compares markers; our writer does not read that device.
  if (shared->disruption_support != 0) return 7;
  struct timespec real, mono;
  clock_gettime(CLOCK_REALTIME, &real);
  clock_gettime(CLOCK_MONOTONIC, &mono);
  struct segment s = snapshot(shared);
  int64_t age = ns(mono) - ns(s.as_of);
  if (age < -1000) return 6;
  if (age < 0) age = 0;
  int status = s.status;
  if (status == 1 && age >= 5000000000LL) status = 2;
  if ((status == 1 || status == 2) && ns(mono) >= ns(s.void_after)) status = 0;
  int64_t bound = s.bound_ns + (int64_t)((double)age * 1e-9 * s.max_drift_ppb);
  printf("%d %lld %u %llu %lld %lld\n", status, (long long)s.bound_ns, s.max_drift_ppb,
         (unsigned long long)s.disruption_marker, (long long)(ns(real) - bound),
         (long long)(ns(real) + bound));
  return 0;
}
