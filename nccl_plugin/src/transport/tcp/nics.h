// The NICs of this host that the plugin uses.
#ifndef FABRICPULSE_TRANSPORT_TCP_NICS_H_
#define FABRICPULSE_TRANSPORT_TCP_NICS_H_

#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/config.h"

namespace fabricpulse {

struct NicInfo {
  std::string name;
  unsigned ifindex = 0;
  uint8_t address[16] = {};  // IPv6, or IPv4 mapped
  uint32_t speed_mbps = 10'000;
  bool up = false;
  std::string pci_path;  // empty: none (virtual)
};

// NICs that pass the configuration's patterns, sorted by name so that the n-th of one host faces the n-th of
// another: up (unless FABRICPULSE_NICS names it), no loopback, no container bridge, with an address. At most
// kMaxNics. Those in `known` are left out.
std::vector<NicInfo> scan_nics(const Config& config, const std::vector<std::string>& known = {});

// What there is now of a NIC of that name: its index and one address, of the family of `nic` if it has one.
// False if there is no such NIC or it has no address yet.
bool look_up_nic(NicInfo* nic);

// IFF_UP and IFF_RUNNING. False too when the NIC is gone.
bool nic_link_up(const std::string& name);

// "rail*,eth[01]" against a name.
bool matches_any(const std::string& patterns, const std::string& name);

// A socket address from the 16-byte form.
socklen_t to_sockaddr(const uint8_t address[16], uint16_t port, sockaddr_storage* out);
void from_sockaddr(const sockaddr* address, uint8_t out[16]);
bool is_mapped_v4(const uint8_t address[16]);

// rtnetlink socket that tells of links and addresses; -1 if the kernel refuses.
int open_link_events();
// Reads what is there. True if something about a link or an address may have changed.
bool drain_link_events(int fd);

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_TCP_NICS_H_
