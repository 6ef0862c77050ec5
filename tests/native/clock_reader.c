// Cost of reading fleet time in C: `clock_reader FILE N` prints ns per read, and the status of the last.
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
  long backward = 0, failed = 0;
  uint32_t status = 0;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (long i = 0; i < reads; ++i) {
    struct fp_fleet_time now;
    while (fp_fleet_clock_now(&clock, &now) != 0) ++failed;
    if (now.fleet_ns < last) ++backward;
    last = now.fleet_ns;
    status = now.status;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  double ns = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
  printf("%.2f %u %ld %ld\n", ns / (double)reads, status, backward, failed);
  int stale = fp_fleet_clock_stale(&clock, argv[1]);
  fp_fleet_clock_close(&clock);
  return stale;
}
