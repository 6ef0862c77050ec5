// The engine's NICs: a listening socket on each, and what their links do.
#include <errno.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "engine.h"

namespace fabricpulse {

bool Engine::open_nic_listener(Nic* nic, uint16_t port) {
  sockaddr_storage address;
  socklen_t size = to_sockaddr(nic->address, port, &address);
  int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Answers leave by the NIC they are for, whatever the routing table prefers. Without the right to it, by
  // the table.
  (void)!setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, nic->name.c_str(),
                    static_cast<socklen_t>(nic->name.size() + 1));
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, 512) != 0) {
    ::close(fd);
    return false;
  }
  nic->listen_fd = fd;
  return true;
}

// One port on all NICs, so that a handle needs to say it once.
bool Engine::open_listeners(std::string* error) {
  for (int tries = 0; tries < 20; ++tries) {
    uint16_t port = 0;
    bool all = true;
    for (auto& nic : nics_) {
      if (!open_nic_listener(nic.get(), port)) {
        *error = "cannot listen on " + nic->name + ": " + strerror(errno);
        all = false;
        break;
      }
      if (port == 0) {
        sockaddr_storage bound;
        socklen_t size = sizeof(bound);
        getsockname(nic->listen_fd, reinterpret_cast<sockaddr*>(&bound), &size);
        port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                 : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
      }
    }
    if (all) {
      port_ = port;
      for (uint32_t i = 0; i < nics_.size(); ++i) watch(nics_[i]->listen_fd, Watched::kListener, i, EPOLLIN);
      return true;
    }
    for (auto& nic : nics_) {
      if (nic->listen_fd >= 0) ::close(nic->listen_fd);
      nic->listen_fd = -1;
    }
  }
  return false;
}

void Engine::look_at_links(uint64_t now) {
  links_looked_ns_ = now;
  for (uint32_t i = 0; i < nics_.size(); ++i) {
    Nic& nic = *nics_[i];
    bool up = nic_link_up(nic.name);
    if (nic.link_up.exchange(up) == up) continue;
    if (!up) ++nic.link_downs;
    EventFields fields{up ? FP_EVENT_LINK_UP : FP_EVENT_LINK_DOWN};
    fields.device = i;
    telemetry_.event(fields, host_clock(), now);
    {
      fp_plugin_device* record = telemetry_.device(i);
      RecordChange<fp_plugin_device> change(record);
      record->state = up ? 1 : 2;
      record->link_downs = nic.link_downs;
    }
    for (auto& connection : connections()) {
      Entered entered(connection.get());
      if (!up) connection->fail_nic(i, FP_REASON_LINK_DOWN, now);
      if (up && connection->direction() == Direction::kSend)
        static_cast<Sender*>(connection.get())->dial_soon(i, now);
    }
  }
}

void Engine::fill_nics(WireNic* nics, uint32_t* count) const {
  *count = nic_count();
  for (uint32_t i = 0; i < *count; ++i) {
    snprintf(nics[i].device, sizeof(nics[i].device), "%s", nics_[i]->name.c_str());
    memcpy(nics[i].address, nics_[i]->address, 16);
  }
}

Engine::Nic* Engine::find_nic(const std::string& name, uint32_t* index) {
  for (uint32_t i = 0; i < nics_.size(); ++i) {
    if (nics_[i]->name != name) continue;
    *index = i;
    return nics_[i].get();
  }
  return nullptr;
}

void Engine::set_avoided(uint32_t nic, bool avoided) {
  nics_[nic]->avoided = avoided;
  fp_plugin_device* record = telemetry_.device(nic);
  RecordChange<fp_plugin_device> change(record);
  record->avoided = avoided;
}

}  // namespace fabricpulse
