// The engine's NICs: a listening socket on each, and what their links do.
#include <errno.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "process/plugin_engine.h"

namespace fabricpulse {
namespace {

uint64_t nic_guid(const NicInfo& nic) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);  // FNV-1a; must differ between the NICs of a host
  auto add = [&hash](const void* data, size_t size) {
    for (size_t i = 0; i < size; ++i)
      hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * UINT64_C(0x100000001b3);
  };
  add(nic.address, sizeof(nic.address));
  add(nic.name.data(), nic.name.size());
  return hash;
}

}  // namespace

// At start, or by the service thread under nics_lock_. Its listener is made by open_listeners() or
// check_nic().
void PluginEngine::add_nic(const NicInfo& info) {
  uint32_t index = nic_count();
  auto nic = std::make_unique<Nic>();
  static_cast<NicInfo&>(*nic) = info;
  nic->link_up = nic_link_up(info.name);
  nic->guid = nic_guid(info);
  {
    fp_plugin_device* record = telemetry_.device(index);
    RecordChange<fp_plugin_device> change(record);
    record->state = nic->link_up ? 1 : 2;
    snprintf(record->name, sizeof(record->name), "%s", nic->name.c_str());
    record->speed_mbps = nic->speed_mbps;
  }
  nics_[index] = std::move(nic);
  nic_count_.store(index + 1, std::memory_order_release);
}

std::array<uint8_t, 16> PluginEngine::nic_address(uint32_t index) const {
  std::lock_guard<std::mutex> lock(addresses_lock_);
  std::array<uint8_t, 16> address;
  memcpy(address.data(), nics_[index]->address, address.size());
  return address;
}

bool PluginEngine::open_nic_listener(uint32_t index, uint16_t port) {
  Nic& nic = *nics_[index];
  sockaddr_storage address;
  socklen_t size = to_sockaddr(nic_address(index).data(), port, &address);
  int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Answers leave by the NIC they are for, whatever the routing table prefers. Without the right to it, by
  // the table.
  (void)!setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, nic.name.c_str(),
                    static_cast<socklen_t>(nic.name.size() + 1));
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, 512) != 0) {
    int error = errno;
    ::close(fd);
    errno = error;
    return false;
  }
  nic.listen_fd = fd;
  return true;
}

// One port on all NICs, so that a handle needs to say it once. Only when NCCL wants the net plugin: the
// profiler beside NCCL's own transport listens nowhere.
bool PluginEngine::open_listeners(std::string* error) {
  std::lock_guard<std::mutex> lock(nics_lock_);
  if (port_ != 0) return true;
  uint32_t nics = nic_count();
  if (nics == 0) {
    *error = config_.nics.empty()
                 ? "no NIC of this host is up and has an address; name some by FABRICPULSE_NICS"
                 : "no NIC of this host matches FABRICPULSE_NICS=" + config_.nics;
    return false;
  }
  for (int tries = 0; tries < 20; ++tries) {
    uint16_t port = 0;
    bool all = true;
    for (uint32_t i = 0; i < nics; ++i) {
      if (!open_nic_listener(i, port)) {
        *error = "cannot listen on " + nics_[i]->name + ": " + strerror(errno);
        all = false;
        break;
      }
      if (port == 0) {
        sockaddr_storage bound;
        socklen_t size = sizeof(bound);
        getsockname(nics_[i]->listen_fd, reinterpret_cast<sockaddr*>(&bound), &size);
        port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                 : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
      }
    }
    if (all) {
      device_count_.store(nics, std::memory_order_release);
      port_ = port;
      for (uint32_t i = 0; i < nics; ++i) watch(nics_[i]->listen_fd, PollSource::kListener, i, EPOLLIN);
      return true;
    }
    for (uint32_t i = 0; i < nics; ++i)
      if (nics_[i]->listen_fd >= 0) ::close(nics_[i]->listen_fd.exchange(-1));
  }
  return false;
}

// A NIC may be taken away and come back under its name as another one: a driver that was loaded anew, a
// virtual function, a reset. Sockets bound to the old one are dead, also the listening one.
void PluginEngine::check_nic(uint32_t index, uint64_t now) {
  Nic& nic = *nics_[index];
  NicInfo found;
  found.name = nic.name;
  memcpy(found.address, nic_address(index).data(), sizeof(found.address));
  NicInfo before = found;
  if (!look_up_nic(&found)) return;  // away, or without an address yet
  bool other =
      found.ifindex != nic.ifindex || memcmp(found.address, before.address, sizeof(found.address)) != 0;
  if (!other && (nic.listen_fd >= 0 || port_ == 0)) return;
  if (other) {
    for (auto& connection : connections()) {
      ConnectionLock locked(connection.get());
      connection->fail_nic(index, FP_REASON_LINK_DOWN, now);
    }
    std::lock_guard<std::mutex> lock(addresses_lock_);
    memcpy(nic.address, found.address, sizeof(nic.address));
  }
  nic.ifindex = found.ifindex;
  if (port_ == 0) return;
  if (nic.listen_fd >= 0) ::close(nic.listen_fd.exchange(-1));  // leaves the epoll set by itself
  if (!open_nic_listener(index, port_)) {
    // Asked again with the next event, or in a second.
    if (other) warn("cannot listen on " + nic.name + ", which has come back: " + strerror(errno));
    return;
  }
  watch(nic.listen_fd, PollSource::kListener, index, EPOLLIN);
  info("NIC " + nic.name + (other ? " is back as another one" : " listens now"));
  for (auto& connection : connections()) {
    if (connection->direction() != Direction::kSend) continue;
    ConnectionLock locked(connection.get());
    static_cast<SendConnection*>(connection.get())->dial_soon(index, now);
  }
}

// One that was not there at the start, or had no address or no link: hot-plugged, a virtual function, a
// second rail that comes up late. NCCL has counted its devices already and places no connection on it, but
// every connection may have lanes over it: new ones from the start, present ones by extend_lanes().
void PluginEngine::add_new_nics(uint64_t now) {
  std::vector<std::string> known;
  for (uint32_t i = 0; i < nic_count(); ++i) known.push_back(nics_[i]->name);
  for (const NicInfo& found : scan_nics(config_, known)) {
    if (nic_count() == kMaxNics) {
      if (!nics_full_)
        warn("NIC " + found.name + " has come, but " + std::to_string(kMaxNics) + " are the most");
      nics_full_ = true;
      return;
    }
    std::lock_guard<std::mutex> lock(nics_lock_);
    add_nic(found);
    EventFields fields{FP_EVENT_LINK_UP};
    fields.device = nic_count() - 1;
    telemetry_.event(fields, host_clock(), now);
    info("NIC " + found.name +
         " has come: it carries lanes; NCCL keeps the devices that it counted at the start");
  }
}

void PluginEngine::poll_links(uint64_t now) {
  links_polled_ns_ = now;
  add_new_nics(now);
  for (uint32_t i = 0; i < nic_count(); ++i) {
    Nic& nic = *nics_[i];
    check_nic(i, now);
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
      ConnectionLock locked(connection.get());
      if (!up) connection->fail_nic(i, FP_REASON_LINK_DOWN, now);
      if (up && connection->direction() == Direction::kSend)
        static_cast<SendConnection*>(connection.get())->dial_soon(i, now);
    }
  }
}

void PluginEngine::fill_nics(WireNic* nics, uint32_t* count) const {
  *count = nic_count();
  for (uint32_t i = 0; i < *count; ++i) {
    snprintf(nics[i].device, sizeof(nics[i].device), "%s", nics_[i]->name.c_str());
    memcpy(nics[i].address, nic_address(i).data(), 16);
  }
}

bool PluginEngine::same_family(NicPair pair, const std::vector<WireNic>& peer) const {
  return is_mapped_v4(nic_address(pair.first).data()) == is_mapped_v4(peer[pair.second].address);
}

void PluginEngine::extend_lanes(SendConnection* sender, const PeerRoute& route, uint64_t now) {
  uint32_t local = nic_count(), remote = static_cast<uint32_t>(route.nics.size());
  ConnectionLock locked(sender);
  if (!sender->nics_changed(local, remote)) return;
  LanePlan plan{local,        remote, sender->device(), sender->lanes()[0].remote_nic, config_.max_lanes,
                config_.paths};
  auto reaches = [&](NicPair pair) { return same_family(pair, route.nics); };
  sender->add_lanes(lanes_to_add(sender->pairs(), plan, reaches), now);
}

PluginEngine::Nic* PluginEngine::find_nic(const std::string& name, uint32_t* index) {
  for (uint32_t i = 0; i < nic_count(); ++i) {
    if (nics_[i]->name != name) continue;
    *index = i;
    return nics_[i].get();
  }
  return nullptr;
}

void PluginEngine::set_avoided(uint32_t nic, bool avoided) {
  nics_[nic]->avoided = avoided;  // the service thread shows it
  wake();
}

}  // namespace fabricpulse
