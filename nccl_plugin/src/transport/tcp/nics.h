// The NICs of this host that the plugin uses.
#ifndef FABRICPULSE_TRANSPORT_TCP_NICS_H_
#define FABRICPULSE_TRANSPORT_TCP_NICS_H_

#include <netinet/in.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/nic.h"

namespace fabricpulse {

// NICs that pass the configuration's patterns, sorted by name so that the n-th of one host faces the n-th of
// another: up (unless FABRICPULSE_NICS names it), no loopback, no container bridge, with an address. At most
// kMaxNics. Those in `known` are left out.
std::vector<NicInfo> scan_nics(const Config& config, const std::vector<std::string>& known = {});

// Whether a NIC of that name passes the configuration's patterns.
bool nic_wanted(const Config& config, const std::string& name);

// What there is now of a NIC of that name: its index and one address, of the family of `nic` if it has one.
// False if there is no such NIC or it has no address yet. No value, here and below: the kernel cannot be asked, for
// want of a descriptor or of memory.
std::optional<bool> look_up_nic(NicInfo* nic);

// IFF_UP and IFF_RUNNING. False too when the NIC no longer exists.
std::optional<bool> nic_link_up(const std::string& name);

// "rail*,eth[01]" against a name.
bool matches_any(const std::string& patterns, const std::string& name);

// A socket address from the 16-byte form.
socklen_t to_sockaddr(const uint8_t* address, uint16_t port, sockaddr_storage* out);
void from_sockaddr(const sockaddr* address, uint8_t* out);

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_TCP_NICS_H_
