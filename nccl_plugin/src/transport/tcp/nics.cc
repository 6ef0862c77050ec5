#include "transport/tcp/nics.h"

#include <errno.h>
#include <fnmatch.h>
#include <ifaddrs.h>
#include <limits.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "core/wire.h"

namespace fabricpulse {
namespace {

constexpr const char* kNeverByDefault =
    "lo,docker*,br-*,virbr*,cni*,flannel*,cali*,vxlan*,kube*,lxc*,tun*,tap*,dummy*,wg*";

// "eth10" after "eth9".
bool natural_less(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (isdigit(static_cast<unsigned char>(a[i])) && isdigit(static_cast<unsigned char>(b[j]))) {
      size_t i_end = i, j_end = j;
      while (i_end < a.size() && isdigit(static_cast<unsigned char>(a[i_end]))) ++i_end;
      while (j_end < b.size() && isdigit(static_cast<unsigned char>(b[j_end]))) ++j_end;
      unsigned long long left = strtoull(a.substr(i, i_end - i).c_str(), nullptr, 10);
      unsigned long long right = strtoull(b.substr(j, j_end - j).c_str(), nullptr, 10);
      if (left != right) return left < right;
      i = i_end;
      j = j_end;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

bool usable(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    uint32_t ip = ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
    return (ip >> 24) != 127 && (ip >> 16) != 0xa9fe;  // no loopback, no link-local
  }
  const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return !IN6_IS_ADDR_LINKLOCAL(&ip) && !IN6_IS_ADDR_LOOPBACK(&ip) && !IN6_IS_ADDR_UNSPECIFIED(&ip);
}

uint32_t link_speed(int fd, const std::string& name) {
  ethtool_cmd command{};
  command.cmd = ETHTOOL_GSET;
  ifreq request{};
  strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&command);
  if (ioctl(fd, SIOCETHTOOL, &request) != 0) return 10'000;
  uint32_t speed = ethtool_cmd_speed(&command);
  return speed == 0 || speed == UINT32_MAX || speed == 65535 ? 10'000 : speed;
}

}  // namespace

bool matches_any(const std::string& patterns, const std::string& name) {
  size_t start = 0;
  while (start <= patterns.size()) {
    size_t comma = std::min(patterns.find(',', start), patterns.size());
    std::string pattern = patterns.substr(start, comma - start);
    if (!pattern.empty() && fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
    start = comma + 1;
  }
  return false;
}

void from_sockaddr(const sockaddr* address, uint8_t* out) {
  if (address->sa_family == AF_INET6) {
    memcpy(out, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, 16);
    return;
  }
  memset(out, 0, 10);
  out[10] = out[11] = 0xff;
  memcpy(out + 12, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, 4);
}

socklen_t to_sockaddr(const uint8_t* address, uint16_t port, sockaddr_storage* out) {
  memset(out, 0, sizeof(*out));
  if (is_mapped_v4(address)) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(out);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    memcpy(&v4->sin_addr, address + 12, 4);
    return sizeof(*v4);
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(out);
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(port);
  memcpy(&v6->sin6_addr, address, 16);
  return sizeof(*v6);
}

bool nic_wanted(const Config& config, const std::string& name) {
  if (name.size() > 30) return false;  // WireNic
  if (config.nics.empty() ? matches_any(kNeverByDefault, name) : !matches_any(config.nics, name))
    return false;
  return !matches_any(config.nics_exclude, name);
}

std::vector<NicInfo> scan_nics(const Config& config, const std::vector<std::string>& known) {
  std::map<std::string, NicInfo> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  for (ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_LOOPBACK)) continue;
    int family = entry->ifa_addr->sa_family;
    if ((family != AF_INET && family != AF_INET6) || !usable(entry->ifa_addr)) continue;
    std::string name = entry->ifa_name;
    if (!nic_wanted(config, name)) continue;
    bool up = (entry->ifa_flags & IFF_UP) && (entry->ifa_flags & IFF_RUNNING);
    if (!up && config.nics.empty()) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    auto [at, fresh] = found.try_emplace(name);
    NicInfo& nic = at->second;
    // One address a NIC; IPv4 before IPv6, the first of its kind.
    if (!fresh && !(family == AF_INET && !is_mapped_v4(nic.address.data()))) continue;
    nic.name = name;
    nic.ifindex = if_nametoindex(name.c_str());
    nic.up = up;
    from_sockaddr(entry->ifa_addr, nic.address.data());
  }
  freeifaddrs(list);
  std::vector<NicInfo> nics;
  if (found.empty()) return nics;
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  for (auto& [name, nic] : found) {
    if (fd >= 0) nic.speed_mbps = link_speed(fd, name);
    char path[PATH_MAX];
    if (realpath(("/sys/class/net/" + name + "/device").c_str(), path) != nullptr) nic.pci_path = path;
    nics.push_back(nic);
  }
  if (fd >= 0) close(fd);
  std::sort(nics.begin(), nics.end(),
            [](const NicInfo& a, const NicInfo& b) { return natural_less(a.name, b.name); });
  if (nics.size() > kMaxNics) nics.resize(kMaxNics);
  return nics;
}

std::optional<bool> look_up_nic(NicInfo* nic) {
  unsigned ifindex = if_nametoindex(nic->name.c_str());
  if (ifindex == 0 && errno == ENODEV) return false;
  ifaddrs* list = nullptr;
  if (ifindex == 0 || getifaddrs(&list) != 0) return std::nullopt;
  bool wants_v4 = is_mapped_v4(nic->address.data()), found = false;
  NicAddress best{};
  for (ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || nic->name != entry->ifa_name) continue;
    int family = entry->ifa_addr->sa_family;
    if ((family != AF_INET && family != AF_INET6) || !usable(entry->ifa_addr)) continue;
    NicAddress address;
    from_sockaddr(entry->ifa_addr, address.data());
    if (is_mapped_v4(address.data()) != wants_v4) continue;
    bool same = address == nic->address;
    if (!found || same) best = address;
    found = true;
    if (same) break;
  }
  freeifaddrs(list);
  if (!found) return false;
  nic->ifindex = ifindex;
  nic->address = best;
  return true;
}

std::optional<bool> nic_link_up(const std::string& name) {
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  ifreq request{};
  strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  bool up = ioctl(fd, SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_UP) &&
            (request.ifr_flags & IFF_RUNNING);
  close(fd);
  return up;
}

}  // namespace fabricpulse
