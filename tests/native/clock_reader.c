// Cost of reading fleet time in C: `clock_reader FILE N` prints ns per read, and the status of the last.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "fabricpulse/clock_page.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  int fd = open(argv[1], O_RDONLY);
  if (fd < 0) return 3;
  const struct fp_clock_page* page = mmap(NULL, sizeof(*page), PROT_READ, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED || page->magic != FP_CLOCK_PAGE_MAGIC || page->version != FP_CLOCK_PAGE_VERSION)
    return 4;
  long reads = atol(argv[2]);
  struct timespec begin, end;
  int64_t last = 0;
  long backward = 0, failed = 0;
  uint32_t status = 0;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (long i = 0; i < reads; ++i) {
    struct fp_fleet_time now;
    while (fp_fleet_clock_now(page, NULL, &now) != 0) ++failed;
    if (now.fleet_ns < last) ++backward;
    last = now.fleet_ns;
    status = now.status;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  double ns = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
  printf("%.2f %u %ld %ld\n", ns / (double)reads, status, backward, failed);
  return 0;
}
