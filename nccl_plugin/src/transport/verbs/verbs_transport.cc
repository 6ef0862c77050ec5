#include "transport/verbs/verbs_transport.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "core/owned_fds.h"
#include "transport/tcp/nics.h"
#include "transport/tcp/tcp_lane.h"

namespace fabricpulse {
namespace {

// Of watched descriptors, beside those of TcpTransport.
constexpr int kKindShift = 48;
constexpr uint64_t kAsyncEvents = 9;
constexpr uint32_t kFlowLabelMask = 0x3fff;  // what of it reaches the source port unmixed

// Whether the NIC is one port of an RDMA device: its GID comes later than its address, so that one without a GID is not
// for TCP alone because of that.
bool has_rdma_device(const std::string& nic) {
  return access(("/sys/class/net/" + nic + "/device/infiniband").c_str(), F_OK) == 0;
}

// The label that makes this RoCE v2 source port (0xc000 | label), else any. Never 0: then the device takes one of
// its own.
uint32_t flow_label(uint16_t source_port) {
  uint32_t label = source_port;
  while ((label & kFlowLabelMask) == 0)
    if (getrandom(&label, sizeof(label), 0) != sizeof(label)) label = 1;
  return label & kFlowLabelMask;
}

}  // namespace

struct VerbsTransport::Prepared : LaneSetup {
  explicit Prepared(std::shared_ptr<VerbsReaper> ends) : reaper(std::move(ends)) {}
  ~Prepared() override {
    if (pair) reaper->take(std::move(pair), -1, false);
  }
  std::shared_ptr<VerbsReaper> reaper;
  std::unique_ptr<VerbsPair> pair;
  uint32_t peer_nic = 0;
};

VerbsTransport::VerbsTransport(const Config& config, Poller* poller, TransportEvents* events,
                               std::function<void(uint64_t)> ports_changed, VerbsDevices::Warn warn)
    : TcpTransport(config, poller, events),
      devices_(&library_, std::move(warn)),
      ports_changed_(std::move(ports_changed)) {
  for (auto& device : nic_devices_) device = -1;
}

VerbsTransport::~VerbsTransport() {
  forget_dials();  // their queue pairs, before the devices go
  reaper_->end_all();
  for (VerbsDevice* device : watched_) this->poller()->unwatch(device->context->async_fd);
}

bool VerbsTransport::open(std::string* error) {
  VerbsLibrary library;
  return library.open(config().ibverbs, error) && open(library, error);
}

bool VerbsTransport::open(const VerbsLibrary& library, std::string* error) {
  library_ = library;
  devices_.refresh();
  if (!devices_.all().empty()) {
    reaper_->start();
    return true;
  }
  *error =
      "libibverbs finds none of this host's RDMA devices (ibverbs-providers missing, or no right to "
      "/dev/infiniband)";
  return false;
}

std::vector<NicInfo> VerbsTransport::discover(const std::vector<std::string>& known) const {
  devices_.refresh();
  std::vector<NicInfo> usable;
  for (NicInfo& nic : TcpTransport::discover(known)) {
    VerbsPort port;
    if (!devices_.find(nic.address, &port)) continue;
    if (matches_any(config().last_resort, nic.name)) nic.spare_use = SpareUse::kAlso;
    std::lock_guard<std::mutex> held(ports_lock_);
    ports_[nic.name] = port;
    usable.push_back(nic);
  }
  if (config().last_resort.empty()) return usable;
  Config others = config();
  others.nics = others.last_resort;
  std::vector<std::string> left_out = known;
  for (const NicInfo& nic : usable) left_out.push_back(nic.name);
  for (NicInfo& nic : scan_nics(others, left_out)) {
    if (has_rdma_device(nic.name) || usable.size() == kMaxNics) continue;
    nic.spare_use = SpareUse::kOnly;
    usable.push_back(nic);
  }
  return usable;
}

bool VerbsTransport::wants(const std::string& name) const {
  return TcpTransport::wants(name) || matches_any(config().last_resort, name);
}

std::optional<bool> VerbsTransport::link_up(const std::string& name) const {
  const std::optional<bool> link = TcpTransport::link_up(name);
  std::lock_guard<std::mutex> held(ports_lock_);
  auto found = ports_.find(name);
  if (found == ports_.end() || devices_.port_active(found->second)) return link;
  // Where the RDMA device alone is gone, spare lanes may go over the NIC; queue pairs fall silent, and cannot be made.
  if (found->second.device->gone && matches_any(config().last_resort, name)) return link;
  return false;
}

uint16_t VerbsTransport::listen(uint32_t nic, const NicInfo& info, uint16_t port) {
  if (info.spare_use == SpareUse::kOnly) return TcpTransport::listen(nic, info, port);
  VerbsPort found;
  if (lost_[nic]) devices_.refresh();
  if (!devices_.find(info.address, &found)) {
    if (!lost_[nic] || addresses_[nic] != info.address) stop_listening(nic);
    errno = ENODEV;  // the GID comes a little later than the address
    return 0;
  }
  if (!devices_.use(found.device)) return 0;
  bool fresh = false;
  {
    std::lock_guard<std::mutex> held(ports_lock_);
    fresh = watched_.insert(found.device).second;
    ports_[info.name] = found;
  }
  if (fresh)
    poller()->watch(found.device->context->async_fd, (kAsyncEvents << kKindShift) | found.device->number,
                    EPOLLIN);
  addresses_[nic] = info.address;
  nic_devices_[nic] = static_cast<int>(found.device->number);
  lost_[nic] = false;
  return TcpTransport::listen(nic, info, port);
}

std::unique_ptr<VerbsPair> VerbsTransport::make_pair(const NicAddress& address, VerbsPair::End end,
                                                     uint32_t label) {
  VerbsPort port;
  if (!devices_.find(address, &port)) {
    errno = EADDRNOTAVAIL;
    return nullptr;
  }
  if (!devices_.use(port.device)) return nullptr;
  return VerbsPair::make(&devices_, port, address, end, label);
}

bool VerbsTransport::prepare(const NicAddress& from, uint16_t source_port, Hello* hello,
                             std::unique_ptr<LaneSetup>* setup) {
  if (hello->flags & kHelloSpare) return true;
  auto prepared = std::make_unique<Prepared>(reaper_);
  prepared->pair = make_pair(from, VerbsPair::End::kSender, flow_label(source_port));
  if (!prepared->pair) return false;
  memcpy(hello->setup, &prepared->pair->setup(), sizeof(VerbsSetup));
  *setup = std::move(prepared);
  return true;
}

bool VerbsTransport::answer(uint32_t nic, const Hello& hello, HelloReply* reply,
                            std::unique_ptr<LaneSetup>* setup) {
  if (hello.flags & kHelloSpare) return true;
  VerbsSetup peer;
  memcpy(&peer, hello.setup, sizeof(peer));
  if (!peer.plausible()) return false;
  auto prepared = std::make_unique<Prepared>(reaper_);
  prepared->pair = make_pair(addresses_[nic], VerbsPair::End::kReceiver, peer.flow_label);
  if (!prepared->pair || !prepared->pair->connect(peer)) return false;
  memcpy(reply->setup, &prepared->pair->setup(), sizeof(VerbsSetup));
  *setup = std::move(prepared);
  return true;
}

std::unique_ptr<LaneTransport> VerbsTransport::make_lane(int fd, std::unique_ptr<LaneSetup> setup,
                                                         const HelloReply* reply, bool payload_crc) {
  if (setup == nullptr) return make_tcp_lane(fd, payload_crc);  // spare
  auto* prepared = static_cast<Prepared*>(setup.get());
  if (reply != nullptr) {
    VerbsSetup peer;
    memcpy(&peer, reply->setup, sizeof(peer));
    prepared->peer_nic = reply->device;
    if (!peer.plausible()) errno = EPROTO;
    if (!peer.plausible() || peer.flow_label != prepared->pair->setup().flow_label ||
        !prepared->pair->connect(peer)) {
      int error = errno;
      close_owned(fd);
      errno = error;
      return nullptr;
    }
  }
  return make_verbs_lane(std::move(prepared->pair), fd, prepared->peer_nic, &nic_devices_, reaper_);
}

void VerbsTransport::serve(uint64_t id, uint64_t now) {
  if (id >> kKindShift != kAsyncEvents) {
    TcpTransport::serve(id, now);
    return;
  }
  bool changed = false;
  std::set<VerbsDevice*> watched;
  {
    std::lock_guard<std::mutex> held(ports_lock_);
    watched = watched_;
  }
  for (VerbsDevice* device : watched) {
    if (device->number != (id & ((UINT64_C(1) << kKindShift) - 1))) continue;
    if (devices_.read_events(device, &changed)) continue;
    device_gone(device);
    changed = true;
  }
  if (changed) ports_changed_(now);
}

// Its NICs have no port that is active; no key of theirs is given to peers until they have another device.
void VerbsTransport::device_gone(VerbsDevice* device) {
  poller()->unwatch(device->context->async_fd);
  {
    std::lock_guard<std::mutex> held(ports_lock_);
    watched_.erase(device);
  }
  for (uint32_t nic = 0; nic < kMaxNics; ++nic) {
    if (nic_devices_[nic] != static_cast<int>(device->number)) continue;
    nic_devices_[nic] = -1;
    lost_[nic] = true;
  }
}

RegisteredMemory* VerbsTransport::register_memory(void* data, size_t size, int kind, std::string* why) {
  if (kind == kMemoryHost) return devices_.register_memory(data, size, why);
  *why = "queue pairs take memory of the host alone";
  return nullptr;
}
void VerbsTransport::deregister_memory(RegisteredMemory* memory) {
  if (memory != nullptr) devices_.deregister_memory(static_cast<VerbsMemory*>(memory));
}

}  // namespace fabricpulse
