// `clock_convert PAGE`: prints fleet time now by the raw clock, then the host clock's reading of now converted
// (fleet time, bound, status), the status by the raw clock, and how long all that took, ns. The host clock is the lab's virtual one where
// FABRICPULSE_VIRTUAL_CLOCK names one.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fabricpulse/clock_page.h"

int main(int argc, char** argv) {
  int error;
  const struct fp_virtual_clock* virtual_clock = fp_virtual_clock_open(&error);
  struct fp_fleet_clock clock;
  if (argc != 2 || error) return 2;
  if (fp_fleet_clock_open(&clock, argv[1]) != 0) {
    fprintf(stderr, "%s\n", strerror(errno));
    return 3;
  }
  const int64_t begin_ns = fp_raw_clock_now();
  const int64_t host_ns = fp_host_clock_now(virtual_clock);
  struct fp_clock_page copy;
  const struct fp_fleet_time now = fp_fleet_clock_now(&clock);
  fp_fleet_clock_read(&clock, virtual_clock, &copy);
  const struct fp_fleet_time then = fp_clock_convert(&copy, host_ns);
  printf("%lld %lld %lld %u %u %lld\n", (long long)now.fleet_ns, (long long)then.fleet_ns,
         (long long)then.bound_ns, then.status, now.status, (long long)(fp_raw_clock_now() - begin_ns));
  fp_fleet_clock_close(&clock);
  return 0;
}
