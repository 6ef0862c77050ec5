// LD_PRELOAD for chronyd in the lab: of one packet's transmit stamps it sees the first, as of a NIC's, which gives one.
//
//   cc -O2 -shared -fPIC first_tx_stamp.c -o first_tx_stamp.so
//
// In the lab a packet passes two veth pairs under one socket: out of its host, and out of the router, behind the queue
// that is shaped. The kernel stamps it at both, and chronyd takes the later stamp. It would then measure from behind the
// queue to the other host, a way without load that no network shows to a host. Here a second stamp of the same packet
// comes with the time of the first. ptp4l has one_tx_stamp.c, because it cannot bear a second stamp at all; our own
// engine takes the first by itself.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

// An NTP packet without extensions. The error queue gives the packet with all its headers, which differ at both places;
// the last bytes do not, and no two packets have the same: each carries its own transmit time.
enum { TAIL = 48, REMEMBERED = 256 };

static struct {
  char tail[TAIL];
  struct timespec stamp;
} seen[REMEMBERED];
static unsigned next_slot;

static void first(struct timespec *stamp, const char *tail) {
  for (unsigned k = 0; k < REMEMBERED; ++k)
    if (memcmp(seen[k].tail, tail, TAIL) == 0) {
      *stamp = seen[k].stamp;
      return;
    }
  memcpy(seen[next_slot].tail, tail, TAIL);
  seen[next_slot].stamp = *stamp;
  next_slot = (next_slot + 1) % REMEMBERED;
}

static void correct(struct msghdr *message, size_t length) {
  if (!(message->msg_flags & MSG_ERRQUEUE) || message->msg_iovlen != 1) return;
  if (length < TAIL || length > message->msg_iov[0].iov_len) return;
  const char *tail = (const char *)message->msg_iov[0].iov_base + length - TAIL;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_TIMESTAMPING) continue;
    struct timespec stamp;
    memcpy(&stamp, CMSG_DATA(c), sizeof(stamp));
    if (stamp.tv_sec == 0 && stamp.tv_nsec == 0) continue;  // a stamp of hardware
    first(&stamp, tail);
    memcpy(CMSG_DATA(c), &stamp, sizeof(stamp));
  }
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
  static ssize_t (*real)(int, struct msghdr *, int);
  if (!real) real = (ssize_t(*)(int, struct msghdr *, int))dlsym(RTLD_NEXT, "recvmsg");
  ssize_t result = real(fd, message, flags);
  if (result >= 0) correct(message, (size_t)result);
  return result;
}

int recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout) {
  static int (*real)(int, struct mmsghdr *, unsigned, int, struct timespec *);
  if (!real) real = (int (*)(int, struct mmsghdr *, unsigned, int, struct timespec *))dlsym(RTLD_NEXT, "recvmmsg");
  int result = real(fd, messages, count, flags, timeout);
  for (int i = 0; i < result; ++i) correct(&messages[i].msg_hdr, messages[i].msg_len);
  return result;
}
