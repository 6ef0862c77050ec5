// LD_PRELOAD for ptp4l in the lab. There a packet passes two veth pairs under one socket, and the kernel stamps it at
// each: the second stamp lies unread in the error queue, which ptp4l takes for a fault of the port. Here stamps that
// nobody waits for are thrown away: before a send, and when ptp4l waits for anything else. The first stamp, which ptp4l
// uses, stays as it is.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>

static int drain(int fd) {
  char data[256], control[512];
  struct iovec part = {data, sizeof data};
  int drained = 0;
  for (;;) {
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return drained;
    ++drained;
  }
}

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t length) {
  static ssize_t (*next)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
  if (!next) next = dlsym(RTLD_NEXT, "sendto");
  drain(fd);
  return next(fd, data, size, flags, to, length);
}

int poll(struct pollfd *fds, nfds_t count, int timeout) {
  static int (*next)(struct pollfd *, nfds_t, int);
  if (!next) next = dlsym(RTLD_NEXT, "poll");
  for (;;) {
    int ready = next(fds, count, timeout);
    // Alone: ptp4l waits for the stamp of what it has just sent.
    if (ready <= 0 || count == 1) return ready;
    int left = 0;
    for (nfds_t i = 0; i < count; ++i) {
      if ((fds[i].revents & POLLERR) && drain(fds[i].fd) > 0) fds[i].revents &= ~(POLLERR | POLLPRI);
      left += fds[i].revents != 0;
    }
    if (left) return left;
  }
}
