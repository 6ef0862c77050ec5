#include "transport/tcp/tcp_transport.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/crc32c.h"
#include "core/frame_check.h"
#include "core/owned_fds.h"
#include "transport/tcp/lane_sockets.h"
#include "transport/tcp/nics.h"
#include "transport/tcp/tcp_lane.h"

namespace fabricpulse {
namespace {

// A peer that connects has sent its hello by then. On a busy host that makes queue pairs it takes longer than it
// should.
constexpr uint64_t kHelloNs = 3'000'000'000;
constexpr size_t kMaxIncoming = 1024;
constexpr uint64_t kPauseNs = 100'000'000;  // of a listener for which there is no descriptor
// Share of one processor that checksums of payloads may take at the full speed of a NIC.
constexpr double kCrcShare = 0.02;
constexpr size_t kCrcTrialBytes = 64 * 1024;
constexpr size_t kHelloVersionEnd = offsetof(Hello, version) + sizeof(Hello::version);
// What a watched descriptor is, within its id.
constexpr int kKindShift = 48;
constexpr uint64_t kListener = 1, kIncoming = 2, kDial = 3, kWatched = 4;

// How fast this processor computes checksums, the best of a few tries: some microseconds each.
double measure_crc() {
  std::vector<uint8_t> data(kCrcTrialBytes, 1);
  double best = 0;
  uint32_t crc = 0;
  for (int n = 0; n < 8; ++n) {
    timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    crc = crc32c(crc, data.data(), data.size());
    clock_gettime(CLOCK_MONOTONIC, &after);
    double took = static_cast<double>(after.tv_sec - before.tv_sec) +
                  static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
    best = std::max(best, static_cast<double>(data.size()) / std::max(took, 1e-9));
    data[0] = static_cast<uint8_t>(crc);  // so that none of the tries is superfluous
  }
  return best;
}

}  // namespace

class TcpTransport::Answer final : public PendingLane {
 public:
  Answer(TcpTransport* transport, int fd, uint32_t nic, const Hello& hello)
      : transport_(transport), fd_(fd), nic_(nic), hello_(hello) {}
  ~Answer() {
    if (fd_ >= 0) close_owned(fd_);
  }
  bool scarce() const override { return descriptors_scarce(fd_); }
  std::unique_ptr<LaneTransport> reply(const HelloReply& given) override {
    HelloReply reply = given;
    std::unique_ptr<LaneSetup> setup;
    bool lane = reply.status == HelloStatus::kOk && hello_.kind == HelloKind::kLane;
    bool watch = reply.status == HelloStatus::kOk && hello_.kind == HelloKind::kWatch;
    if (watch && !transport_->watches_.room()) reply.status = HelloStatus::kBusy;
    if (lane && !transport_->answer(nic_, hello_, &reply, &setup)) reply.status = HelloStatus::kBusy;
    reply.crc = reply_crc(reply);
    bool sent = send(fd_, &reply, sizeof(reply), MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(reply);
    if (!sent || !(lane || watch) || reply.status != HelloStatus::kOk) return nullptr;
    int fd = fd_;
    fd_ = -1;
    if (watch) transport_->watches_.add(fd, {hello_.process.id[0], hello_.process.id[1]}, false);
    if (watch) return nullptr;
    return transport_->make_lane(fd, std::move(setup), nullptr, false);
  }

 private:
  TcpTransport* const transport_;
  int fd_;
  const uint32_t nic_;
  const Hello& hello_;
};

TcpTransport::TcpTransport(const Config& config, Poller* poller, TransportEvents* events)
    : config_(config), poller_(poller), events_(events), watches_(poller, kWatched << kKindShift) {
  for (auto& listener : listeners_) listener = -1;
  if (config_.payload_crc < 0) crc_bytes_per_second_ = measure_crc();
}

bool TcpTransport::payload_crc(const NicInfo& nic) const {
  if (config_.payload_crc >= 0) return config_.payload_crc == 1;
  return nic.speed_mbps * 125e3 <= kCrcShare * crc_bytes_per_second_;
}

void TcpTransport::forget_dials() {
  for (auto& entry : dials_) reset_owned(entry.second->fd);
  dials_.clear();
}

TcpTransport::~TcpTransport() {
  forget_dials();
  for (auto& entry : incoming_) close_owned(entry.second->fd);
  for (uint32_t nic = 0; nic < kMaxNics; ++nic) TcpTransport::stop_listening(nic);
}

std::vector<NicInfo> TcpTransport::discover(const std::vector<std::string>& known) const {
  return scan_nics(config_, known);
}
bool TcpTransport::wants(const std::string& name) const { return nic_wanted(config_, name); }
std::optional<bool> TcpTransport::look_up(NicInfo* nic) const { return look_up_nic(nic); }
std::optional<bool> TcpTransport::link_up(const std::string& name) const { return nic_link_up(name); }

uint16_t TcpTransport::listen(uint32_t nic, const NicInfo& info, uint16_t port) {
  stop_listening(nic);
  sockaddr_storage address;
  socklen_t size = to_sockaddr(info.address.data(), port, &address);
  int fd = own_fd(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd < 0) return 0;
  int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  bind_to_device(fd, info.name);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, 512) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    int error = errno;
    close_owned(fd);
    errno = error;
    return 0;
  }
  names_[nic] = info.name;
  listeners_[nic] = fd;
  poller_->watch(fd, (kListener << kKindShift) | nic, EPOLLIN);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

void TcpTransport::stop_listening(uint32_t nic) {
  int fd = listeners_[nic].exchange(-1);
  if (fd >= 0) close_owned(fd);  // leaves the epoll set by itself
}

void TcpTransport::serve(uint64_t id, uint64_t now) {
  uint64_t number = id & ((UINT64_C(1) << kKindShift) - 1);
  switch (id >> kKindShift) {
    case kListener:
      accept_peers(static_cast<uint32_t>(number), now);
      break;
    case kIncoming:
      serve_incoming(number, now);
      break;
    case kDial:
      serve_dial(number, now);
      break;
    case kWatched: {
      ProcessWatches::Process process;
      if (watches_.serve(number, &process) == ProcessWatches::End::kInOrder)
        events_->process_ended({process[0], process[1]});
      break;
    }
  }
}

void TcpTransport::accept_peers(uint32_t nic, uint64_t now) {
  for (int n = 0; n < 64; ++n) {
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    int fd = own_fd(
        accept4(listeners_[nic], reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd < 0 && out_of_descriptors(errno)) {
      // The listener stays readable: it is not polled for a while, or this thread would spin.
      (void)descriptors_scarce(INT32_MAX);
      poller_->watch(listeners_[nic], (kListener << kKindShift) | nic, 0);
      paused_ |= UINT32_C(1) << nic;
      paused_until_ns_ = now + kPauseNs;
      events_->descriptors_exhausted(now);
    }
    if (fd < 0) return;
    if (incoming_.size() >= kMaxIncoming) drop_of_crowd();
    bind_to_device(fd, names_[nic]);
    no_delay(fd);
    uint64_t id = next_incoming_++;
    auto incoming = std::make_unique<Incoming>();
    incoming->fd = fd;
    incoming->nic = nic;
    from_sockaddr(reinterpret_cast<sockaddr*>(&peer), incoming->from.data());
    incoming->deadline_ns = now + kHelloNs;
    incoming_[id] = std::move(incoming);
    poller_->watch(fd, (kIncoming << kKindShift) | id, EPOLLIN);
  }
}

// Clients that connect and send nothing keep no other out: of the address with most connections without a hello the
// oldest is dropped.
void TcpTransport::drop_of_crowd() {
  std::map<NicAddress, uint32_t> counts;
  for (const auto& entry : incoming_) ++counts[entry.second->from];
  const auto crowd = std::max_element(counts.begin(), counts.end(),
                                      [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto oldest = std::find_if(incoming_.begin(), incoming_.end(),
                                   [&](const auto& entry) { return entry.second->from == crowd->first; });
  poller_->unwatch(oldest->second->fd);
  reset_owned(oldest->second->fd);
  incoming_.erase(oldest);
}

void TcpTransport::serve_incoming(uint64_t id, uint64_t now) {
  auto found = incoming_.find(id);
  if (found == incoming_.end()) return;
  Incoming* incoming = found->second.get();
  Hello& hello = incoming->hello;
  static uint8_t padding[16 * 1024];  // one thread; never read
  bool more = true, other_version = false, plausible = false;
  while (more) {
    size_t have = incoming->received;
    bool in_hello = have < sizeof(Hello);
    uint8_t* into = in_hello ? reinterpret_cast<uint8_t*>(&hello) + have : padding;
    size_t left = in_hello ? sizeof(Hello) - have : sizeof(Hello) + hello.padding - have;
    ssize_t got = recv(incoming->fd, into, in_hello ? left : std::min(left, sizeof(padding)), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) break;
    incoming->received += static_cast<size_t>(got);
    other_version =
        incoming->received >= kHelloVersionEnd && hello.magic == kHelloMagic && hello.version != kWireVersion;
    if (other_version) break;  // how long its hello is, only that version knows
    if (incoming->received < sizeof(Hello)) continue;
    // A damaged hello is not answered: it comes again.
    plausible = plausible || (hello_intact(hello) && hello_plausible(&hello));
    more = plausible && incoming->received < sizeof(Hello) + hello.padding;
  }
  plausible = plausible && !more;
  poller_->unwatch(incoming->fd);
  std::unique_ptr<Incoming> whole = std::move(found->second);
  incoming_.erase(found);
  Answer answer(this, whole->fd, whole->nic, whole->hello);  // closes the socket unless it has become a lane
  if (plausible || other_version) events_->hello_received(whole->hello, whole->nic, &answer, now);
}

std::unique_ptr<LaneTransport> TcpTransport::make_lane(int fd, std::unique_ptr<LaneSetup>, const HelloReply*,
                                                       bool payload_crc) {
  return make_tcp_lane(fd, payload_crc);
}

void TcpTransport::dial(const NicInfo& from, const DialRequest& request, uint64_t now) {
  int fd = dial_socket(from, request, binds_source_port() ? request.source_port : 0);
  if (fd < 0) {
    int error = errno;
    if (out_of_descriptors(error)) events_->descriptors_exhausted(now);
    events_->dial_ended(request.id, error, nullptr, nullptr, now);
    return;
  }
  auto dial = std::make_unique<Dial>();
  dial->fd = fd;
  dial->from = from.address;
  dial->source_port = request.source_port;
  dial->deadline_ns = request.connect_deadline_ns;
  dial->answer_ns = request.answer_ns;
  dial->hello = request.hello;
  dial->payload_crc = payload_crc(from);
  dials_[request.id] = std::move(dial);
  poller_->watch(fd, (kDial << kKindShift) | request.id, EPOLLOUT);
}

// The peer's host has taken the connection. What a lane of this type needs is made only now: most dials of a path
// that is refused or dead would make it for nothing. False: see errno: no lane can be made.
bool TcpTransport::connected(Dial* dial, uint64_t id, uint64_t now) {
  dial->connected = true;
  dial->deadline_ns = now + dial->answer_ns;
  events_->dial_connected(id);
  if (dial->hello.kind == HelloKind::kLane) {
    if (!prepare(dial->from, dial->source_port, &dial->hello, &dial->setup)) return false;
    dial->hello.padding = full_packets(dial->fd);
  }
  dial->hello.crc = hello_crc(dial->hello);
  return true;
}

// Sends what the socket takes of the hello and its padding. False: see errno.
bool TcpTransport::say_hello(Dial* dial) const {
  static const uint8_t kZeros[16 * 1024] = {};
  const size_t whole = sizeof(Hello) + dial->hello.padding;
  while (dial->sent < whole) {
    bool in_hello = dial->sent < sizeof(Hello);
    const uint8_t* from = in_hello ? reinterpret_cast<const uint8_t*>(&dial->hello) + dial->sent : kZeros;
    size_t size = in_hello ? sizeof(Hello) - dial->sent : std::min(whole - dial->sent, sizeof(kZeros));
    ssize_t sent = send(dial->fd, from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    dial->sent += static_cast<size_t>(sent);
  }
  dial->hello_sent = true;
  return true;
}

void TcpTransport::serve_dial(uint64_t id, uint64_t now) {
  auto found = dials_.find(id);
  if (found == dials_.end()) return;
  Dial* dial = found->second.get();
  if (!dial->hello_sent) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(dial->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0 && !dial->connected && !connected(dial, id, now)) error = errno != 0 ? errno : EIO;
    if (error == 0 && !say_hello(dial)) error = errno;
    if (error != 0) {
      end_dial(id, error, now);
    } else if (dial->hello_sent) {
      poller_->watch(dial->fd, (kDial << kKindShift) | id, EPOLLIN);
    }
    return;
  }
  auto* into = reinterpret_cast<uint8_t*>(&dial->reply);
  ssize_t got = recv(dial->fd, into + dial->received, sizeof(HelloReply) - dial->received, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    end_dial(id, got == 0 ? ECONNRESET : errno, now);
    return;
  }
  dial->received += static_cast<size_t>(got);
  if (dial->received < sizeof(HelloReply)) return;
  end_dial(id, reply_intact(dial->reply) && reply_plausible(&dial->reply) ? 0 : EPROTO, now);
}

void TcpTransport::end_dial(uint64_t id, int error, uint64_t now) {
  auto found = dials_.find(id);
  std::unique_ptr<Dial> dial = std::move(found->second);
  dials_.erase(found);
  poller_->unwatch(dial->fd);
  std::unique_ptr<LaneTransport> lane;
  if (error == 0 && dial->hello.kind == HelloKind::kLane && dial->reply.status == HelloStatus::kOk) {
    lane = make_lane(dial->fd, std::move(dial->setup), &dial->reply, dial->payload_crc);
    if (lane == nullptr) error = errno != 0 ? errno : EIO;
  } else if (error == 0 && dial->hello.kind == HelloKind::kWatch && dial->reply.status == HelloStatus::kOk) {
    watches_.add(dial->fd, {dial->reply.process.id[0], dial->reply.process.id[1]}, true);
  } else {
    reset_owned(dial->fd);
  }
  events_->dial_ended(id, error, error == 0 ? &dial->reply : nullptr, std::move(lane), now);
}

void TcpTransport::tick(uint64_t now) {
  if (paused_ != 0 && now >= paused_until_ns_) {
    for (uint32_t nic = 0; nic < kMaxNics; ++nic)
      if (((paused_ >> nic) & 1) != 0 && listeners_[nic] >= 0)
        poller_->watch(listeners_[nic], (kListener << kKindShift) | nic, EPOLLIN);
    paused_ = 0;
  }
  std::vector<uint64_t> late;
  for (auto& entry : dials_)
    if (now >= entry.second->deadline_ns) late.push_back(entry.first);
  for (uint64_t id : late) {
    // What came in time is not lost because this thread is late.
    auto found = dials_.find(id);
    if (found == dials_.end()) continue;
    if (is_ready(found->second->fd, found->second->hello_sent ? POLLIN : POLLOUT)) serve_dial(id, now);
    found = dials_.find(id);
    if (found != dials_.end() && now >= found->second->deadline_ns) end_dial(id, ETIMEDOUT, now);
  }
  for (auto it = incoming_.begin(); it != incoming_.end();) {
    if (now >= it->second->deadline_ns) {
      poller_->unwatch(it->second->fd);
      close_owned(it->second->fd);
      it = incoming_.erase(it);
    } else {
      ++it;
    }
  }
}

// Sockets need no registration. One for each call all the same: it is then known what was given back.
RegisteredMemory* TcpTransport::register_memory(void* data, size_t size, int kind, std::string* why) {
  if (kind == kMemoryHost) return new RegisteredMemory{data, size};
  *why = "TCP lanes take memory of the host alone";
  return nullptr;
}
void TcpTransport::deregister_memory(RegisteredMemory* memory) { delete memory; }

}  // namespace fabricpulse
