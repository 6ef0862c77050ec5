// LD_PRELOAD for a program that knows nothing of the lab's virtual clocks: chronyd, as it is installed.
//
//   cc -O2 -shared -fPIC -I core/include virtual_clock_preload.c -o virtual_clock_preload.so
//
// With -DAS_SYSTEM_CLOCK also for our own daemons, which then take the page's clock for the kernel's: a step
// of it is to them a step of CLOCK_REALTIME. The variable is gone once it has been read here, as they would
// go through the page a second time; a program that they start is on the kernel's clock again.
//
// CLOCK_REALTIME and the kernel's packet stamps go through the page that FABRICPULSE_VIRTUAL_CLOCK names, as
// in our own daemons. Only reading is changed: the program must not set the clock (chronyd -x), or steer the
// virtual one by virtual_timex_preload.c. A page that is named and cannot be read ends the program, which
// would otherwise be measured on the wrong clock.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "fabricpulse/virtual_clock.h"

static const struct fp_virtual_clock* page;
static int (*real_clock_gettime)(clockid_t, struct timespec*);
static ssize_t (*real_recvmsg)(int, struct msghdr*, int);
static int (*real_recvmmsg)(int, struct mmsghdr*, unsigned, int, struct timespec*);

__attribute__((constructor)) static void prepare(void) {
  int error = 0;
  page = fp_virtual_clock_open(&error);
  real_clock_gettime = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  real_recvmsg = (ssize_t(*)(int, struct msghdr*, int))dlsym(RTLD_NEXT, "recvmsg");
  real_recvmmsg =
      (int (*)(int, struct mmsghdr*, unsigned, int, struct timespec*))dlsym(RTLD_NEXT, "recvmmsg");
  if (error || real_clock_gettime == NULL || real_recvmsg == NULL || real_recvmmsg == NULL) {
    fputs("virtual_clock_preload: cannot read the page that " FP_VIRTUAL_CLOCK_ENV " names\n", stderr);
    abort();
  }
#ifdef AS_SYSTEM_CLOCK
  unsetenv(FP_VIRTUAL_CLOCK_ENV);
#endif
}

static void convert(struct timespec* t) {
  if (t->tv_sec == 0 && t->tv_nsec == 0) return;  // no stamp
  int64_t ns = fp_virtual_clock_apply(page, (int64_t)t->tv_sec * 1000000000 + t->tv_nsec);
  t->tv_sec = (time_t)(ns / 1000000000);
  t->tv_nsec = (long)(ns % 1000000000);
}

static void convert_stamps(struct msghdr* message) {
  for (struct cmsghdr* c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type != SO_TIMESTAMPING && c->cmsg_type != SO_TIMESTAMPNS) continue;
    // Of the three stamps of SO_TIMESTAMPING the first is the system clock's.
    struct timespec stamp;
    memcpy(&stamp, CMSG_DATA(c), sizeof(stamp));
    convert(&stamp);
    memcpy(CMSG_DATA(c), &stamp, sizeof(stamp));
  }
}

int clock_gettime(clockid_t clock, struct timespec* t) {
  int result = real_clock_gettime(clock, t);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) convert(t);
  return result;
}

ssize_t recvmsg(int fd, struct msghdr* message, int flags) {
  ssize_t result = real_recvmsg(fd, message, flags);
  if (result >= 0) convert_stamps(message);
  return result;
}

int recvmmsg(int fd, struct mmsghdr* messages, unsigned count, int flags, struct timespec* timeout) {
  int result = real_recvmmsg(fd, messages, count, flags, timeout);
  for (int i = 0; i < result; ++i) convert_stamps(&messages[i].msg_hdr);
  return result;
}
