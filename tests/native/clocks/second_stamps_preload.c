// LD_PRELOAD for a probe engine whose packets are stamped a second time behind a queue. In the lab a packet has two
// transmit stamps, as it passes two veth pairs under one socket; here the second is 0.4 ms late.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
// After time.h: it needs struct timespec and does not say so.
#include <linux/errqueue.h>

#define NUMBERS 4096  // of packets; more than can be on their way
#define DESCRIPTORS 1024

static unsigned last[DESCRIPTORS]
                    [NUMBERS];  // number plus one of the packet whose stamp came last in this place

static int is_second(int fd, unsigned number) {
  if (fd < 0 || fd >= DESCRIPTORS) return 0;
  unsigned* const place = &last[fd][number % NUMBERS];
  const int again = *place == number + 1;
  *place = number + 1;
  return again;
}

static void delay_second(int fd, struct msghdr* message) {
  struct timespec* stamp = NULL;
  int second = 0;
  for (struct cmsghdr* c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPING)
      stamp = (struct timespec*)CMSG_DATA(c);
    if ((c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) ||
        (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR)) {
      struct sock_extended_err error;
      memcpy(&error, CMSG_DATA(c), sizeof error);
      second = error.ee_origin == SO_EE_ORIGIN_TIMESTAMPING && is_second(fd, error.ee_data);
    }
  }
  if (!stamp || !second) return;
  stamp->tv_nsec += 400000;
  stamp->tv_sec += stamp->tv_nsec / 1000000000;
  stamp->tv_nsec %= 1000000000;
}

int recvmmsg(int fd, struct mmsghdr* messages, unsigned count, int flags, struct timespec* timeout) {
  static int (*next)(int, struct mmsghdr*, unsigned, int, struct timespec*);
  if (!next) next = dlsym(RTLD_NEXT, "recvmmsg");
  const int got = next(fd, messages, count, flags, timeout);
  for (int i = 0; i < got && (flags & MSG_ERRQUEUE); ++i) delay_second(fd, &messages[i].msg_hdr);
  return got;
}
