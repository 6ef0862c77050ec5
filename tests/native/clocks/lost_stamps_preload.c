// LD_PRELOAD for a probe engine whose kernel or NIC loses time stamps, as drivers do that have one register for them.
// LOST_TX_STAMPS, LOST_RX_STAMPS: percent of the packets whose stamp never comes. Which ones follows from their number,
// and all stamps of a packet are lost together: in the lab a packet has two, as it passes two veth pairs.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
// After time.h: it needs struct timespec and does not say so.
#include <linux/errqueue.h>

static int lost(const char *variable, unsigned number) {
  const char *percent = getenv(variable);
  // Knuth's multiplicative hash: neighbours, which are the packets of one train, have different fates.
  return percent && (number * 2654435761u >> 16) % 100 < (unsigned)atoi(percent);
}

static int lose(struct msghdr *message, int flags) {
  static unsigned received;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
    if ((c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) ||
        (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR)) {
      struct sock_extended_err error;
      memcpy(&error, CMSG_DATA(c), sizeof error);
      if (error.ee_origin == SO_EE_ORIGIN_TIMESTAMPING && lost("LOST_TX_STAMPS", error.ee_data)) return 1;
    }
    if (!(flags & MSG_ERRQUEUE) && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPING &&
        lost("LOST_RX_STAMPS", received++)) {
      memset(CMSG_DATA(c), 0, c->cmsg_len - CMSG_LEN(0));  // what the kernel gives for a packet without a stamp
    }
  }
  return 0;
}

int recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout) {
  static int (*next)(int, struct mmsghdr *, unsigned, int, struct timespec *);
  if (!next) next = dlsym(RTLD_NEXT, "recvmmsg");
  unsigned taken = 0;
  while (taken < count) {
    const struct msghdr fresh = messages[taken].msg_hdr;
    const int got = next(fd, &messages[taken], 1, flags, timeout);
    if (got <= 0) return taken ? (int)taken : got;
    if (lose(&messages[taken].msg_hdr, flags)) {
      messages[taken].msg_hdr = fresh;  // its place is for the next message
    } else {
      ++taken;
    }
  }
  return (int)taken;
}
