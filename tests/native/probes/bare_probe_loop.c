// The system calls of the probe engine and nothing else: what the kernel takes for them is the floor of the
// engine's CPU. `bare_probe_loop RATE DEVICE LOCAL REMOTE [DEVICE LOCAL REMOTE]...`; DEVICE "-" binds none.
//
// Wakes RATE times a second with the engine's jitter, takes in what has arrived, sends three packets of the
// size of a probe to every remote address, the first without a TX stamp, and reads the stamps. No MAC, no
// tables, no health, no samples, no pause between the packets of a train.
//
// A line on standard input (seconds) is one measurement, its answer a JSON object on standard output. It runs
// only then. The edges of a device and local address share a socket and stand together.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

enum { PORT = 9720, SIZE = 120, TRAIN = 3, SOCKETS = 128, REMOTES = 64, BATCH = 64, ROOM = 256 };
static const double WARM_UP_S = 0.3;

struct probe_socket {
  const char *device, *local;
  int fd, count;
  struct sockaddr_in to[REMOTES];
};

static struct probe_socket sockets[SOCKETS];
static int socket_count;
static long sent, received, stamps;

static int64_t now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static void open_socket(struct probe_socket* s) {
  const int probe = IP_PMTUDISC_PROBE, one = 1, room = 4 << 20;
  const unsigned stamping = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_RX_SOFTWARE |
                            SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_TSONLY;
  struct sockaddr_in local = {.sin_family = AF_INET, .sin_port = htons(PORT)};
  if (inet_pton(AF_INET, s->local, &local.sin_addr) != 1) fail(s->local);
  s->fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
  if (s->fd < 0) fail("socket");
  if (strcmp(s->device, "-") != 0 &&
      setsockopt(s->fd, SOL_SOCKET, SO_BINDTODEVICE, s->device, (socklen_t)strlen(s->device)) != 0)
    fail(s->device);
  if (setsockopt(s->fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)) != 0 ||
      setsockopt(s->fd, IPPROTO_IP, IP_MTU_DISCOVER, &probe, sizeof(probe)) != 0 ||
      setsockopt(s->fd, SOL_SOCKET, SO_RXQ_OVFL, &one, sizeof(one)) != 0 ||
      setsockopt(s->fd, SOL_SOCKET, SO_TIMESTAMPING, &stamping, sizeof(stamping)) != 0)
    fail("setsockopt");
  if (bind(s->fd, (struct sockaddr*)&local, sizeof(local)) != 0) fail("bind");
}

struct batch {
  struct mmsghdr messages[BATCH];
  struct iovec vectors[BATCH];
  char data[BATCH][ROOM], control[BATCH][ROOM];
  struct sockaddr_in names[BATCH];
  int fresh;  // so many were written to by the last call and must be set up again
};

// Takes everything that waits; flags : MSG_ERRQUEUE for TX stamps. Returns the number of messages.
static long drain(int fd, int flags) {
  static struct batch batches[2];
  struct batch* b = &batches[flags != 0];
  if (b->fresh == 0) b->fresh = BATCH;
  long total = 0;
  for (;;) {
    for (int i = 0; i < b->fresh; ++i) {
      struct msghdr* h = &b->messages[i].msg_hdr;
      memset(h, 0, sizeof(*h));
      h->msg_control = b->control[i];
      h->msg_controllen = ROOM;
      if (flags != 0) continue;
      b->vectors[i] = (struct iovec){b->data[i], ROOM};
      h->msg_name = &b->names[i];
      h->msg_namelen = sizeof(b->names[i]);
      h->msg_iov = &b->vectors[i];
      h->msg_iovlen = 1;
    }
    const int n = recvmmsg(fd, b->messages, BATCH, MSG_DONTWAIT | flags, NULL);
    if (n > 0) total += n;
    b->fresh = n < BATCH ? (n > 0 ? n : 0) + 1 : BATCH;
    if (n < BATCH) return total;
  }
}

static void send_position(struct probe_socket* s, int position) {
  static struct mmsghdr messages[REMOTES];
  static char payload[SIZE];
  static union {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(uint32_t))];
  } unstamped;
  unstamped.header.cmsg_level = SOL_SOCKET;
  unstamped.header.cmsg_type = SO_TIMESTAMPING;
  unstamped.header.cmsg_len = CMSG_LEN(sizeof(uint32_t));
  static struct iovec vector = {payload, SIZE};
  for (int i = 0; i < s->count; ++i) {
    struct msghdr* h = &messages[i].msg_hdr;
    memset(h, 0, sizeof(*h));
    h->msg_name = &s->to[i];
    h->msg_namelen = sizeof(s->to[i]);
    h->msg_iov = &vector;
    h->msg_iovlen = 1;
    if (position == 0) h->msg_control = &unstamped, h->msg_controllen = sizeof(unstamped);
  }
  const int n = sendmmsg(s->fd, messages, (unsigned)s->count, MSG_DONTWAIT);
  if (n > 0) sent += n;
}

static void run(double seconds, double rate) {
  const int64_t end = now(CLOCK_MONOTONIC) + (int64_t)(seconds * 1e9);
  const double period = 1e9 / rate;
  int64_t planned = now(CLOCK_MONOTONIC);
  while (planned < end) {
    const struct timespec until = {planned / 1000000000, planned % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    for (int i = 0; i < socket_count; ++i) received += drain(sockets[i].fd, 0);
    for (int i = 0; i < socket_count; ++i) {
      for (int position = 0; position < TRAIN; ++position) send_position(&sockets[i], position);
    }
    for (int i = 0; i < socket_count; ++i) stamps += drain(sockets[i].fd, MSG_ERRQUEUE);
    planned += (int64_t)(period * (0.75 + 0.5 * drand48()));
  }
}

int main(int argc, char** argv) {
  if (argc < 5 || (argc - 2) % 3 != 0) return 2;
  const double rate = atof(argv[1]);
  for (int i = 2; i < argc; i += 3) {
    struct probe_socket* s = socket_count > 0 ? &sockets[socket_count - 1] : NULL;
    if (s == NULL || strcmp(s->device, argv[i]) != 0 || strcmp(s->local, argv[i + 1]) != 0) {
      if (socket_count == SOCKETS) return 2;
      s = &sockets[socket_count++];
      s->device = argv[i];
      s->local = argv[i + 1];
      open_socket(s);
    }
    if (s->count == REMOTES) return 2;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    if (inet_pton(AF_INET, argv[i + 2], &to.sin_addr) != 1) fail(argv[i + 2]);
    s->to[s->count++] = to;
  }
  prctl(PR_SET_TIMERSLACK, 1UL);
  const struct sched_param parameters = {.sched_priority = 1};
  sched_setscheduler(0, SCHED_FIFO,
                     &parameters);  // as the engine's; without the right to it, an ordinary one
  double seconds;
  while (scanf("%lf", &seconds) == 1) {
    run(WARM_UP_S, rate);
    sent = received = stamps = 0;
    const int64_t cpu = now(CLOCK_THREAD_CPUTIME_ID), began = now(CLOCK_MONOTONIC);
    run(seconds, rate);
    const double elapsed = (double)(now(CLOCK_MONOTONIC) - began);
    printf(
        "{\"cpu_percent\": %.4f, \"sent_per_s\": %.1f, \"received_per_s\": %.1f, \"stamps_per_s\": %.1f}\n",
        100 * (double)(now(CLOCK_THREAD_CPUTIME_ID) - cpu) / elapsed, (double)sent * 1e9 / elapsed,
        (double)received * 1e9 / elapsed, (double)stamps * 1e9 / elapsed);
    fflush(stdout);
  }
  return 0;
}
