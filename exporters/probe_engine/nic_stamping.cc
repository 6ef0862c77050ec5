#include "nic_stamping.h"

#include <linux/ethtool.h>
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace fabricpulse {
namespace {

// An ioctl on a network device. Returns 0 or an errno.
int ask(int fd, unsigned long request, const std::string& device, void* data) {
  ifreq argument;
  std::memset(&argument, 0, sizeof(argument));
  std::memcpy(argument.ifr_name, device.data(), std::min(device.size(), sizeof(argument.ifr_name) - 1));
  argument.ifr_data = static_cast<char*>(data);
  return ioctl(fd, request, &argument) == 0 ? 0 : errno;
}

int set_up(int fd, const std::string& device, int filter) {
  hwtstamp_config wanted{};
  wanted.tx_type = HWTSTAMP_TX_ON;
  wanted.rx_filter = filter;
  return ask(fd, SIOCSHWTSTAMP, device, &wanted);
}

NicStamping by_driver(int fd, const std::string& device, Timestamps timestamps) {
  ethtool_ts_info info{};
  info.cmd = ETHTOOL_GET_TS_INFO;
  constexpr unsigned kEither = SOF_TIMESTAMPING_TX_HARDWARE | SOF_TIMESTAMPING_RX_HARDWARE;
  if (ask(fd, SIOCETHTOOL, device, &info) != 0 || info.phc_index < 0 ||
      (info.so_timestamping & SOF_TIMESTAMPING_RAW_HARDWARE) == 0 || (info.so_timestamping & kEither) == 0) {
    return {};
  }
  hwtstamp_config now{};
  // A driver that does not tell may have been set up by somebody: it is left alone.
  if (const int error = ask(fd, SIOCGHWTSTAMP, device, &now)) return {-1, error};
  if (now.tx_type == HWTSTAMP_TX_OFF && now.rx_filter == HWTSTAMP_FILTER_NONE) {
    if (timestamps == Timestamps::kAuto) return {};
    int error = set_up(fd, device, HWTSTAMP_FILTER_ALL);
    if (error == ERANGE) error = set_up(fd, device, HWTSTAMP_FILTER_NONE);
    if (error != 0) return {-1, error};
  }
  return {info.phc_index, 0};
}

}  // namespace

NicStamping set_up_stamping(const std::string& device, Timestamps timestamps) {
  if (timestamps == Timestamps::kSoftware) return {};
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {-1, errno};
  const NicStamping stamping = by_driver(fd, device, timestamps);
  close(fd);
  return stamping;
}

}  // namespace fabricpulse
