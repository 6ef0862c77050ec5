// The host's truth for guests: `host_time FILE` keeps CLOCK_MONOTONIC_RAW in the first eight bytes of FILE, which guests
// map as the memory of a device (ivshmem), for 4 ms of each 100 ms; 0 between. As a library, what reads it there.
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

static int64_t raw_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC_RAW, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// Readings of `page` into rows of three: our raw clock before, the host's, ours after; those of which the value was not
// there at the reading before, so that it is no older than that one. Returns their number.
int read_host(const volatile int64_t *page, int64_t *rows, int most, int64_t for_ns) {
  int count = 0;
  int64_t last = *page, before_last = raw_ns();
  for (int64_t begin = before_last; count < most && before_last - begin < for_ns;) {
    const int64_t before = raw_ns(), host = *page, after = raw_ns();
    if (host != 0 && last != 0 && host != last) {
      rows[3 * count] = before_last;
      rows[3 * count + 1] = host;
      rows[3 * count + 2] = after;
      ++count;
    }
    last = host;
    before_last = before;
  }
  return count;
}

int main(int count, char **arguments) {
  if (count != 2) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpriority(PRIO_PROCESS, 0, -15);  // as root: a burst that is interrupted is of no use
  const int fd = open(arguments[1], O_RDWR);
  volatile int64_t *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) return 1;
  for (;;) {
    for (const int64_t begin = raw_ns(); raw_ns() - begin < 4000000;) *page = raw_ns();
    *page = 0;
    nanosleep(&(struct timespec){.tv_nsec = 96000000}, 0);
  }
}
