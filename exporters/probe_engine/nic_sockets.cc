#include "nic_sockets.h"

#include <net/if.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "evidence/size_probes.h"

namespace fabricpulse {
namespace {

constexpr std::int64_t kCheckNs = 250'000'000;
constexpr int kStampPatienceTicks = 50;  // after that a TX stamp is lost
constexpr unsigned kChecksOfStamping = 40;
constexpr int kLateTicks = 3;  // by which that of the NIC has come

}  // namespace

bool is_link_error(int error) {
  return error == ENETDOWN || error == ENETUNREACH || error == EHOSTUNREACH || error == ENODEV ||
         error == ENXIO || error == EADDRNOTAVAIL || error == EINVAL;
}

InterfaceQuery::InterfaceQuery() : fd_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "probe engine");
}

InterfaceQuery::~InterfaceQuery() {
  if (fd_ >= 0) close(fd_);
}

InterfaceQuery::State InterfaceQuery::read(const std::string& device) const {
  State state;
  ifreq request;
  std::memset(&request, 0, sizeof(request));
  std::memcpy(request.ifr_name, device.data(), std::min(device.size(), sizeof(request.ifr_name) - 1));
  if (ioctl(fd_, SIOCGIFFLAGS, &request) != 0) return state;
  constexpr int kUsable = IFF_UP | IFF_RUNNING;
  state.running = (request.ifr_flags & kUsable) == kUsable;
  if (ioctl(fd_, SIOCGIFINDEX, &request) == 0) state.index = request.ifr_ifindex;
  if (ioctl(fd_, SIOCGIFMTU, &request) == 0 && request.ifr_mtu > 0) {
    state.mtu = static_cast<std::uint16_t>(std::min<int>(request.ifr_mtu, kMostMtu));
  }
  return state;
}

bool NicSockets::open(const NicSpec& nic) {
  const unsigned index = settings_->bind_device ? if_nametoindex(nic.device.c_str()) : 0;
  interface_index_ = index;
  stamping_ = set_up_stamping(nic.device, settings_->timestamps);
  stamping_checks_ = {};
  stamping_devices_ = {};
  std::vector<Port> ports(settings_->paths);
  for (std::uint8_t i = 0; i < settings_->paths; ++i) {
    SocketOptions options;
    if (settings_->bind_device) options.device = nic.device;
    options.dscp = settings_->dscp;
    options.receive = i == 0;
    options.hardware = stamping_.phc >= 0;
    if (i != 0) options.receive_buffer = 256 << 10;
    const SocketAddress local =
        make_address(nic.address, static_cast<std::uint16_t>(settings_->port + i), index);
    open_error_ = ports[i].socket.open(local, options);
    if (open_error_ != 0) return false;
    ports[i].pending.resize(kPendingStamps);
  }
  ports_ = std::move(ports);
  open_ = true;
  return true;
}

void NicSockets::close() {
  if (open_) overflows_closed_ += ports_[0].socket.overflows();
  ports_.clear();
  open_ = false;
}

bool NicSockets::check(const NicSpec& nic, const InterfaceQuery& interfaces, std::int64_t now_ns,
                       bool force) {
  if (!force && now_ns < next_check_) return false;
  next_check_ = now_ns + kCheckNs;
  if (open_ && stamping_changed(nic)) close();
  if (settings_->bind_device) {
    const InterfaceQuery::State state = interfaces.read(nic.device);
    link_ = state.running;
    mtu_ = settings_->size_probes ? state.mtu : 0;
    if (open_ && state.index != static_cast<int>(interface_index_)) {
      // The device is gone, or another one has its name: sockets bound to the old index would stay mute for
      // ever.
      close();
      open_error_ = ENODEV;
    }
  }
  return !open_ && open(nic);
}

bool NicSockets::stamping_changed(const NicSpec& nic) {
  const unsigned asked = stamping_devices_.asked();
  if (++checks_ % kChecksOfStamping != 0 && asked == 0) return false;
  const NicStamping found = set_up_stamping(nic.device, settings_->timestamps);
  if (stamping_checks_.reopen(found, &stamping_)) return true;
  if (asked != 0 && found.phc == stamping_.phc) {
    char name[IF_NAMESIZE];
    const bool ours = if_indextoname(asked, name) != nullptr;
    stamping_devices_.answer(stamping_.phc, ours ? set_up_stamping(name, Timestamps::kAuto).phc : -1);
  }
  return false;
}

void NicSockets::expect_stamp(std::uint8_t path, std::uint32_t id, const StampOwner& owner) {
  Port& port = ports_[path];
  PendingStamp& pending = port.pending[id % kPendingStamps];
  if (pending.waiting) {
    --port.waiting;
    ++stamps_lost_;
  }
  pending = {id, owner, true, true, stamping_.phc >= 0};
  if (stamping_.phc >= 0) port.late_ticks = kLateTicks;
  ++port.waiting;
}

void NicSockets::give_up_stamps() {
  for (Port& port : ports_) {
    bool restart = false;
    if (port.socket.numbering_uncertain()) {
      // What is sent meanwhile has no number. A queue that never gets empty leaves this source port without TX stamps.
      if (port.emptied > 0 || !port.socket.unsent()) restart = ++port.emptied > kLateTicks;
    }
    if (restart || (port.waiting > 0 && ++port.idle > kStampPatienceTicks)) {
      stamps_lost_ += static_cast<std::uint64_t>(port.waiting);
      for (PendingStamp& p : port.pending) p.forget();
      port.waiting = 0;
    }
    if (port.late_ticks > 0) --port.late_ticks;
    if (port.waiting == 0) port.idle = 0;
    if (restart) {
      port.socket.restart_numbering();
      port.emptied = 0;
    }
  }
}

}  // namespace fabricpulse
