// Bursty UDP load: `burst_traffic ADDRESS PORT MBIT SEED`, until killed.
//
// Bursts of 1400-byte packets leave back to back; their sizes follow a bounded Pareto distribution (1.4 to 90
// kB, alpha 1.3), the pauses between them are exponential, the mean rate is MBIT.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PACKET = 1400, LARGEST = 64 };

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  struct sockaddr_in to;
  memset(&to, 0, sizeof(to));
  to.sin_family = AF_INET;
  to.sin_port = htons((uint16_t)atoi(argv[2]));
  if (inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) return 3;
  double bytes_per_ns = atof(argv[3]) * 1e6 / 8 / 1e9;
  srand48(atol(argv[4]));
  int sock = socket(AF_INET, SOCK_DGRAM, 0);
  if (sock < 0 || connect(sock, (struct sockaddr*)&to, sizeof(to)) != 0) return 4;
  static char payload[PACKET];
  struct iovec vector = {payload, PACKET};
  struct mmsghdr messages[LARGEST];
  memset(messages, 0, sizeof(messages));
  for (int i = 0; i < LARGEST; ++i) {
    messages[i].msg_hdr.msg_iov = &vector;
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  // Mean of the bounded Pareto in packets, taken from the same draw: measured once.
  double total = 0;
  for (int i = 0; i < 100000; ++i)
    total += ceil(pow(1 - drand48() * (1 - pow(1.0 / LARGEST, 1.3)), -1 / 1.3));
  double mean_gap = total / 100000 * PACKET / bytes_per_ns;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  double next = (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
  for (;;) {
    next += -log(1 - drand48()) * mean_gap;
    struct timespec at = {(time_t)(next / 1e9), (long)fmod(next, 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    int count = (int)ceil(pow(1 - drand48() * (1 - pow(1.0 / LARGEST, 1.3)), -1 / 1.3));
    if (count > LARGEST) count = LARGEST;
    if (sendmmsg(sock, messages, (unsigned)count, 0) < 0) usleep(1000);
  }
}
