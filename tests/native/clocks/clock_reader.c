// Cost of reading fleet time in C: `clock_reader FILE N` prints ns per read, the status of the last, how often fleet time
// ran backward, and how often it was unknown.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "fabricpulse/clock_page.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  struct fp_fleet_clock clock;
  if (fp_fleet_clock_open(&clock, argv[1]) != 0) return 3;
  long reads = atol(argv[2]);
  struct timespec begin, end;
  int64_t last = 0;
  long backward = 0, unknown = 0;
  uint32_t status = 0;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (long i = 0; i < reads; ++i) {
    const struct fp_fleet_time now = fp_fleet_clock_now(&clock);
    status = now.status;
    unknown += status == FP_CLOCK_UNKNOWN;
    if (status == FP_CLOCK_UNKNOWN) continue;
    if (now.fleet_ns < last) ++backward;
    last = now.fleet_ns;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  double ns = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
  printf("%.2f %u %ld %ld\n", ns / (double)reads, status, backward, unknown);
  int stale = fp_fleet_clock_stale(&clock, argv[1]);
  fp_fleet_clock_close(&clock);
  return stale;
}
