// LD_PRELOAD for a probe engine: every NIC has a clock, /dev/ptp7, and stamps packets by it, at the moment at which the
// kernel does. The clock is CLOCK_MONOTONIC_RAW, 40 ppm faster, plus a constant.
// NIC_CLOCK_NAMESPACE: as in a time namespace the kernel tells another raw clock than the process has, 5 s ahead. NIC_CLOCK_RATE: how fast it
// runs; 2.5 as that of QEMU's e1000e. NIC_CLOCK_STEP: a file; while it is there the clock is a second ahead.
// NIC_CLOCK_OTHER: a file; while it is there packets are stamped by another device, as after a failover below a bond, whose
// clock is 3 ms late; the kernel says which device it was.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/net_tstamp.h>
#include <linux/ptp_clock.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
// After time.h: it needs struct timespec and does not say so.
#include <linux/errqueue.h>

#define INDEX 7
#define S INT64_C(1000000000)

static int phc_fd = -1;
static struct hwtstamp_config config;

static int64_t now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * S + t.tv_nsec;
}

static int64_t phc_at(int64_t raw) {
  const char *rate = getenv("NIC_CLOCK_RATE"), *step = getenv("NIC_CLOCK_STEP");
  const long double per_raw = rate ? strtold(rate, NULL) : 1.00004L;
  return 37 * S + (int64_t)((long double)raw * per_raw) + (step && access(step, F_OK) == 0 ? S : 0);
}

static struct ptp_clock_time as_ptp(int64_t ns) {
  return (struct ptp_clock_time){.sec = ns / S, .nsec = (uint32_t)(ns % S)};
}

int open(const char* path, int flags, ...) {
  static int (*next)(const char*, int, ...);
  if (!next) next = dlsym(RTLD_NEXT, "open");
  va_list rest;
  va_start(rest, flags);
  const int mode = va_arg(rest, int);
  va_end(rest);
  if (strcmp(path, "/dev/ptp7") == 0) return phc_fd = next("/dev/null", flags);
  return next(path, flags, mode);
}

static int read_phc(unsigned long request, void* argument) {
  if (request != PTP_SYS_OFFSET_EXTENDED) return errno = EOPNOTSUPP, -1;
  struct ptp_sys_offset_extended* samples = argument;
  const clockid_t clock = samples->rsv[0];
  const int64_t ahead = clock != CLOCK_REALTIME && getenv("NIC_CLOCK_NAMESPACE") ? 5 * S : 0;
  for (unsigned i = 0; i < samples->n_samples; ++i) {
    samples->ts[i][0] = as_ptp(now(clock) + ahead);
    samples->ts[i][1] = as_ptp(phc_at(now(CLOCK_MONOTONIC_RAW)));
    samples->ts[i][2] = as_ptp(now(clock) + ahead);
  }
  return 0;
}

int ioctl(int fd, unsigned long request, ...) {
  static int (*next)(int, unsigned long, ...);
  if (!next) next = dlsym(RTLD_NEXT, "ioctl");
  va_list rest;
  va_start(rest, request);
  void* argument = va_arg(rest, void*);
  va_end(rest);
  if (fd == phc_fd) return read_phc(request, argument);
  struct ifreq* device = argument;
  if (request == SIOCETHTOOL && *(uint32_t*)(void*)device->ifr_data == ETHTOOL_GET_TS_INFO) {
    struct ethtool_ts_info* info = (void*)device->ifr_data;
    info->so_timestamping =
        SOF_TIMESTAMPING_TX_HARDWARE | SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE;
    info->phc_index = INDEX;
    return 0;
  }
  if (request == SIOCGHWTSTAMP) return memcpy(device->ifr_data, &config, sizeof config), 0;
  if (request == SIOCSHWTSTAMP) return memcpy(&config, device->ifr_data, sizeof config), 0;
  return next(fd, request, argument);
}

// Appended, as the caller leaves room for it.
static void tell_device(struct msghdr* message, unsigned index) {
  struct scm_ts_pktinfo info = {.if_index = index};
  struct cmsghdr* c = (void*)((char*)message->msg_control + message->msg_controllen);
  *c = (struct cmsghdr){
      .cmsg_len = CMSG_LEN(sizeof info), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_TIMESTAMPING_PKTINFO};
  memcpy(CMSG_DATA(c), &info, sizeof info);
  message->msg_controllen += CMSG_SPACE(sizeof info);
}

int recvmmsg(int fd, struct mmsghdr* messages, unsigned count, int flags, struct timespec* timeout) {
  static int (*next)(int, struct mmsghdr*, unsigned, int, struct timespec*);
  if (!next) next = dlsym(RTLD_NEXT, "recvmmsg");
  const int got = next(fd, messages, count, flags, timeout);
  const int wanted =
      (flags & MSG_ERRQUEUE) ? config.tx_type == HWTSTAMP_TX_ON : config.rx_filter == HWTSTAMP_FILTER_ALL;
  const char* other = getenv("NIC_CLOCK_OTHER");
  const int by_other = other && access(other, F_OK) == 0;
  for (int i = 0; wanted && i < got; ++i) {
    struct msghdr* message = &messages[i].msg_hdr;
    for (struct cmsghdr* c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_TIMESTAMPING) continue;
      struct timespec stamps[3];
      memcpy(stamps, CMSG_DATA(c), sizeof stamps);
      if (stamps[0].tv_sec == 0) continue;
      const int64_t ago = now(CLOCK_REALTIME) - (stamps[0].tv_sec * S + stamps[0].tv_nsec);
      const int64_t phc = phc_at(now(CLOCK_MONOTONIC_RAW) - ago) - (by_other ? 3 * S / 1000 : 0);
      stamps[2] = (struct timespec){.tv_sec = phc / S, .tv_nsec = phc % S};
      memcpy(CMSG_DATA(c), stamps, sizeof stamps);
      if (other && !(flags & MSG_ERRQUEUE)) {
        tell_device(message, by_other ? 1001 : 1000);
        break;
      }
    }
  }
  return got;
}
