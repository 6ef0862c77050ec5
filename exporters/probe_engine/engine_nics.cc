// The engine: sockets and links of the NICs.
#include <net/if.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine.h"

namespace fabricpulse {

bool is_link_error(int error) {
  return error == ENETDOWN || error == ENETUNREACH || error == EHOSTUNREACH || error == ENODEV ||
         error == ENXIO || error == EADDRNOTAVAIL || error == EINVAL;
}

void Engine::open_nic(Nic& nic) {
  const unsigned index = settings_.bind_device ? if_nametoindex(nic.spec.device.c_str()) : 0;
  nic.ifindex = index;
  std::vector<Port> ports(settings_.paths);
  for (std::uint8_t i = 0; i < settings_.paths; ++i) {
    SocketOptions options;
    if (settings_.bind_device) options.device = nic.spec.device;
    options.dscp = settings_.dscp;
    options.receive = i == 0;
    options.hardware = settings_.hardware;
    if (i != 0) options.receive_buffer = 256 << 10;
    const SocketAddress local =
        make_address(nic.spec.address, static_cast<std::uint16_t>(settings_.port + i), index);
    nic.open_errno = ports[i].socket.open(local, options);
    if (nic.open_errno != 0) return;
    ports[i].pending.resize(kPendingStamps);
  }
  nic.ports = std::move(ports);
  nic.open = true;
  for (const auto& [id, slot] : nic.edges) {
    SocketAddress& to = edges_[slot]->to;
    if (to.any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&to.v6.sin6_addr)) to.v6.sin6_scope_id = index;
  }
}

void Engine::close_nic(Nic& nic) {
  if (!nic.ports.empty()) nic.overflows_closed += nic.ports[0].socket.overflows();
  nic.ports.clear();
  nic.open = false;
}

void Engine::check_link(Nic& nic, std::int64_t now, bool force) {
  if (!force && now < nic.next_check) return;
  nic.next_check = now + 250'000'000;
  if (settings_.bind_device) {
    ifreq request;
    std::memset(&request, 0, sizeof(request));
    std::memcpy(request.ifr_name, nic.spec.device.data(),
                std::min(nic.spec.device.size(), sizeof(request.ifr_name) - 1));
    const bool there = ioctl(control_fd_, SIOCGIFFLAGS, &request) == 0;
    constexpr int kUsable = IFF_UP | IFF_RUNNING;
    nic.link = there && (request.ifr_flags & kUsable) == kUsable;
    const bool same = there && ioctl(control_fd_, SIOCGIFINDEX, &request) == 0 &&
                      request.ifr_ifindex == static_cast<int>(nic.ifindex);
    if (nic.open && !same) {
      // The device is gone, or another one has its name: sockets bound to the old index would stay mute for
      // ever.
      close_nic(nic);
      nic.open_errno = ENODEV;
    }
  }
  if (!nic.open) open_nic(nic);
}

}  // namespace fabricpulse
