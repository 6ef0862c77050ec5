// `clock_watch PAGE OTHER SECONDS`: reads fleet time of two hosts of one machine as fast as it can, both at
// the same moment; each by the raw clock of its host, the virtual clock beside its page. Prints: reads, how often the first ran backward and by how much at most, how often the two
// differed by more than both bounds and by how much at most, reads in each status of the first.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fabricpulse/clock_page.h"

static const struct fp_virtual_clock* clock_beside(const char* page) {
  char path[4096];
  int error;
  snprintf(path, sizeof(path), "%s", page);
  char* slash = strrchr(path, '/');
  snprintf(slash, sizeof(path) - (size_t)(slash - path), "/virtual_clock");
  setenv(FP_VIRTUAL_CLOCK_ENV, path, 1);
  const struct fp_virtual_clock* found = fp_virtual_clock_open(&error);
  unsetenv(FP_VIRTUAL_CLOCK_ENV);
  return found;
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  struct fp_fleet_clock first, second;
  if (fp_fleet_clock_open(&first, argv[1]) != 0 || fp_fleet_clock_open(&second, argv[2]) != 0) return 3;
  const struct fp_virtual_clock *first_clock = clock_beside(argv[1]), *second_clock = clock_beside(argv[2]);
  const int64_t until = fp_raw_clock_now() + (int64_t)(atof(argv[3]) * 1e9);
  long reads = 0, backward = 0, outside = 0, statuses[4] = {0, 0, 0, 0};
  int64_t last = 0, furthest = 0, widest = 0, raw;
  do {
    struct fp_clock_page mine, other;
    fp_clock_file_copy(first.file, &mine);
    raw = fp_clock_file_copy(second.file, &other);
    const struct fp_fleet_time a = fp_clock_at(&mine, fp_virtual_raw_clock_apply(first_clock, raw)),
                               b = fp_clock_at(&other, fp_virtual_raw_clock_apply(second_clock, raw));
    ++reads;
    ++statuses[a.status & 3];
    if (a.status != FP_CLOCK_UNKNOWN && a.fleet_ns < last) {
      ++backward;
      if (last - a.fleet_ns > furthest) furthest = last - a.fleet_ns;
    }
    last = a.fleet_ns;
    const int64_t apart = llabs(a.fleet_ns - b.fleet_ns);
    if (apart > a.bound_ns + b.bound_ns) {
      ++outside;
      if (apart > widest) widest = apart;
    }
  } while (raw < until);
  printf("%ld %ld %lld %ld %lld %ld %ld %ld %ld\n", reads, backward, (long long)furthest, outside,
         (long long)widest, statuses[0], statuses[1], statuses[2], statuses[3]);
  fp_fleet_clock_close(&first);
  fp_fleet_clock_close(&second);
  return 0;
}
