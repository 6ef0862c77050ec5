#include "process/handshakes.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "process/plugin_engine.h"
#include "transport/tcp/tcp_lane.h"

namespace fabricpulse {
namespace {

constexpr uint64_t kHandshakeNs =
    1'000'000'000;                     // a lane that is not made by then is given up, and tried again
constexpr uint32_t kRefusalsDead = 3;  // in a row, without any lane: nobody listens there any more
constexpr uint64_t kProbeAfterNs = 300'000'000, kProbeEveryNs = 200'000'000;
constexpr uint64_t kAnnounceEveryNs = 1'000'000'000;
constexpr size_t kMaxIncoming = 1024;

}  // namespace

struct Handshakes::Dial {
  std::shared_ptr<Connection> connection;
  bool probe = false;
  uint32_t lane = 0, epoch = 0;
  int fd = -1;
  uint64_t deadline_ns = 0;
  bool connected = false;
  Hello hello;
  HelloReply reply;
  size_t received = 0;
};

struct Handshakes::Incoming {
  int fd = -1;
  uint32_t nic = 0;
  uint64_t deadline_ns = 0;
  Hello hello;
  size_t received = 0;
};

Handshakes::Handshakes(PluginEngine* engine) : engine_(engine) {}

Handshakes::~Handshakes() {
  for (auto& entry : dials_)
    if (entry.second->fd >= 0) ::close(entry.second->fd);
  for (auto& entry : incoming_) ::close(entry.second->fd);
}

bool Handshakes::dialling() const { return !dials_.empty(); }

void Handshakes::accept_peers(uint32_t nic, uint64_t now) {
  for (int n = 0; n < 64; ++n) {
    int fd = accept4(engine_->nic(nic).listen_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    if (incoming_.size() >= kMaxIncoming) {
      ::close(fd);
      continue;
    }
    (void)!setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, engine_->nic(nic).name.c_str(),
                      static_cast<socklen_t>(engine_->nic(nic).name.size() + 1));
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    uint64_t id = next_id_++;
    auto incoming = std::make_unique<Incoming>();
    incoming->fd = fd;
    incoming->nic = nic;
    incoming->deadline_ns = now + kHandshakeNs;
    incoming_[id] = std::move(incoming);
    engine_->watch(fd, PollSource::kIncoming, id, EPOLLIN);
  }
}

void Handshakes::serve_incoming(uint64_t id, uint64_t now) {
  auto found = incoming_.find(id);
  if (found == incoming_.end()) return;
  Incoming* incoming = found->second.get();
  auto* into = reinterpret_cast<uint8_t*>(&incoming->hello);
  ssize_t got =
      recv(incoming->fd, into + incoming->received, sizeof(Hello) - incoming->received, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got > 0) {
    incoming->received += static_cast<size_t>(got);
    if (incoming->received < sizeof(Hello)) return;
    engine_->unwatch(incoming->fd);
    if (hello_plausible(&incoming->hello)) {
      answer(incoming, now);
      incoming_.erase(found);
      return;
    }
  }
  ::close(incoming->fd);
  incoming_.erase(found);
}

// Decides about a hello; takes over or closes its socket.
void Handshakes::answer(Incoming* incoming, uint64_t now) {
  const Hello& hello = incoming->hello;
  HelloReply reply;
  reply.status = HelloStatus::kUnknown;
  reply.epoch = hello.epoch;
  reply.nic_count = 1;  // nameless
  std::shared_ptr<RecvConnection> receiver;
  if (hello.version != kWireVersion) {
    reply.status = HelloStatus::kVersion;
    reply.process = engine_->identity();  // for its error
    memset(reply.process.id, 0, sizeof(reply.process.id));
  } else if (hello.kind == HelloKind::kProbe) {
    bool ours = memcmp(hello.token, engine_->identity().id, sizeof(hello.token)) == 0;
    if (ours && engine_->has_send_connection(hello.connection)) {
      reply.status = HelloStatus::kOk;
      engine_->learn_nics(hello);
    }
  } else {
    receiver = engine_->receiver_for(hello);
  }
  // Who does not know a token of ours learns nothing of this host, least of all the token of this process.
  if (receiver || reply.status == HelloStatus::kOk) {
    reply.process = engine_->identity();
    reply.device = incoming->nic;
    engine_->fill_nics(reply.nics, &reply.nic_count);
  }
  if (!receiver) {
    (void)!send(incoming->fd, &reply, sizeof(reply), MSG_DONTWAIT | MSG_NOSIGNAL);
    ::close(incoming->fd);
    return;
  }
  ConnectionLock locked(receiver.get());
  if (hello.nic_count > receiver->peer_nics().size())
    receiver->set_peer(hello.process, hello.nics, hello.nic_count);
  reply.status = receiver->hello(hello, incoming->nic, &reply.held, now);
  bool sent = send(incoming->fd, &reply, sizeof(reply), MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(reply);
  if (reply.status != HelloStatus::kOk || !sent) {
    ::close(incoming->fd);
    return;
  }
  receiver->announced_nics = std::max(receiver->announced_nics, reply.nic_count);
  receiver->attach(hello.lane, hello.epoch, make_tcp_lane(incoming->fd), now);
}

int Handshakes::dial_socket(uint32_t nic, const uint8_t address[16], uint16_t port, uint16_t source_port,
                            int* error) {
  sockaddr_storage to, from;
  socklen_t to_size = to_sockaddr(address, port, &to);
  socklen_t from_size = to_sockaddr(engine_->nic_address(nic).data(), source_port, &from);
  int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    *error = errno;
    return -1;
  }
  const std::string& name = engine_->nic(nic).name;
  (void)!setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name.c_str(), static_cast<socklen_t>(name.size() + 1));
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // Without a wish the port is chosen at connect(), so that a busy host does not run out of them.
  int late = source_port == 0;
  (void)!setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &late, sizeof(late));
  if (bind(fd, reinterpret_cast<sockaddr*>(&from), from_size) != 0 ||
      (::connect(fd, reinterpret_cast<sockaddr*>(&to), to_size) != 0 && errno != EINPROGRESS)) {
    *error = errno;
    ::close(fd);
    return -1;
  }
  return fd;
}

void Handshakes::start_dials(const std::shared_ptr<Connection>& connection, uint64_t now) {
  if (connection->direction() != Direction::kSend) return;
  auto* sender = static_cast<SendConnection*>(connection.get());
  PeerRoute route;
  if (!engine_->find_route(*connection, &route)) return;
  engine_->extend_lanes(sender, route, now);
  for (uint32_t n = 0; n < kMaxLanes; ++n) {
    DialPlan plan;
    uint32_t nic = 0, remote = 0, lanes = 0;
    {
      ConnectionLock locked(sender);
      if (!sender->want_dial(now, &plan)) return;
      nic = sender->lanes()[plan.lane].nic;
      remote = sender->lanes()[plan.lane].remote_nic;
      lanes = static_cast<uint32_t>(sender->lanes().size());
    }
    int error = 0;
    int fd = dial_socket(nic, route.nics[remote].address, route.port, plan.source_port, &error);
    uint64_t id = next_id_++;
    auto dial = std::make_unique<Dial>();
    dial->connection = connection;
    dial->lane = plan.lane;
    dial->epoch = plan.epoch;
    dial->fd = fd;
    dial->deadline_ns = now + kHandshakeNs;
    Hello& hello = dial->hello;
    hello.flags = plan.flags;
    hello.listen_port = engine_->port();
    memcpy(hello.token, route.token, sizeof(hello.token));
    hello.connection = connection->id();
    hello.lane = plan.lane;
    hello.lanes = lanes;
    hello.epoch = plan.epoch;
    hello.primary_device = connection->device();
    hello.process = engine_->identity();
    hello.device = nic;
    engine_->fill_nics(hello.nics, &hello.nic_count);
    dials_[id] = std::move(dial);
    if (fd < 0) {
      end_dial(id, error, now);
    } else {
      engine_->watch(fd, PollSource::kDial, id, EPOLLOUT);
    }
  }
}

void Handshakes::start_probe(const std::shared_ptr<RecvConnection>& receiver, uint64_t now) {
  PeerRoute route;
  if (!engine_->find_route(*receiver, &route) || route.nics.empty()) return;
  // Another pair of NICs each time.
  uint64_t id = next_id_++;
  uint32_t nic = static_cast<uint32_t>(id % engine_->nic_count());
  uint32_t remote = static_cast<uint32_t>((id / engine_->nic_count()) % route.nics.size());
  auto dial = std::make_unique<Dial>();
  dial->connection = receiver;
  dial->probe = true;
  dial->deadline_ns = now + kHandshakeNs;
  dial->hello.kind = HelloKind::kProbe;
  {
    ConnectionLock locked(receiver.get());
    memcpy(dial->hello.token, receiver->peer().id, sizeof(dial->hello.token));
    receiver->probing = true;
  }
  dial->hello.connection = receiver->id();
  dial->hello.process = engine_->identity();
  engine_->fill_nics(dial->hello.nics, &dial->hello.nic_count);
  int error = 0;
  int fd = dial->fd = dial_socket(nic, route.nics[remote].address, route.port, 0, &error);
  dials_[id] = std::move(dial);
  if (fd < 0) {
    end_dial(id, error, now);
  } else {
    engine_->watch(fd, PollSource::kDial, id, EPOLLOUT);
  }
}

void Handshakes::serve_dial(uint64_t id, uint64_t now) {
  auto found = dials_.find(id);
  if (found == dials_.end()) return;
  Dial* dial = found->second.get();
  if (!dial->connected) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(dial->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0 &&
        send(dial->fd, &dial->hello, sizeof(Hello), MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof(Hello))
      error = errno ? errno : EPIPE;
    if (error != 0) {
      end_dial(id, error, now);
      return;
    }
    dial->connected = true;
    engine_->watch(dial->fd, PollSource::kDial, id, EPOLLIN);
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
  end_dial(id, reply_plausible(&dial->reply) ? 0 : EPROTO, now);
}

// error 0: dial->reply holds the answer.
void Handshakes::end_dial(uint64_t id, int error, uint64_t now) {
  auto found = dials_.find(id);
  std::unique_ptr<Dial> dial = std::move(found->second);
  dials_.erase(found);
  if (dial->fd >= 0) engine_->unwatch(dial->fd);
  auto& connection = dial->connection;
  ConnectionLock locked(connection.get());
  bool gone = error == 0 && dial->reply.status == HelloStatus::kUnknown;
  if (error == ECONNREFUSED) ++connection->refusals;
  if (error == 0 && !gone) connection->refusals = 0;
  if (dial->probe) {
    connection->probing = false;
    if (error == 0 && !gone)
      connection->announced_nics = std::max(connection->announced_nics, dial->hello.nic_count);
    if (dial->fd >= 0) ::close(dial->fd);
    if (gone && connection->lanes_up() == 0)
      connection->peer_lost("the peer process has closed this connection", now);
    return;
  }
  auto* sender = static_cast<SendConnection*>(connection.get());
  std::unique_ptr<LaneTransport> transport;
  const HelloReply* reply = error == 0 ? &dial->reply : nullptr;
  if (reply != nullptr && !gone && (!sender->peer_known() || reply->nic_count > sender->peer_nics().size()))
    sender->set_peer(reply->process, reply->nics, reply->nic_count);
  if (reply != nullptr && !gone) engine_->refresh_route(*sender, reply->nics, reply->nic_count);
  if (reply != nullptr && reply->status == HelloStatus::kOk) {
    transport = make_tcp_lane(dial->fd);
  } else if (dial->fd >= 0) {
    ::close(dial->fd);
  }
  if (gone) {
    reply = nullptr;
    if (sender->lanes_up() == 0)
      sender->peer_lost("the peer process has closed this connection or its listener", now);
  }
  if (reply != nullptr && reply->status == HelloStatus::kVersion)
    sender->peer_lost("the peer runs another version of the plugin", now);
  sender->dialled(dial->lane, dial->epoch, std::move(transport), reply, now);
}

void Handshakes::drop_late(uint64_t now) {
  std::vector<uint64_t> late;
  for (auto& entry : dials_)
    if (now >= entry.second->deadline_ns) late.push_back(entry.first);
  for (uint64_t id : late) end_dial(id, ETIMEDOUT, now);
  for (auto it = incoming_.begin(); it != incoming_.end();) {
    if (now >= it->second->deadline_ns) {
      engine_->unwatch(it->second->fd);
      ::close(it->second->fd);
      it = incoming_.erase(it);
    } else {
      ++it;
    }
  }
}

// The sender plans the lanes: tell it of a NIC that has come here.
void Handshakes::announce_nics(const std::shared_ptr<Connection>& connection, uint64_t now) {
  if (connection->direction() != Direction::kReceive) return;
  {
    ConnectionLock locked(connection.get());
    if (connection->lost() || connection->closed() || connection->closed_by_peer() ||
        connection->lanes_up() == 0 || connection->announced_nics >= engine_->nic_count() ||
        connection->probing || now < connection->next_probe_ns)
      return;
    connection->next_probe_ns = now + kAnnounceEveryNs;
  }
  start_probe(std::static_pointer_cast<RecvConnection>(connection), now);
}

// Without any lane: is the peer unreachable for now, or gone?
void Handshakes::check_peer(const std::shared_ptr<Connection>& connection, uint64_t now) {
  bool probe = false;
  {
    ConnectionLock locked(connection.get());
    if (connection->lost() || connection->closed() || connection->closed_by_peer() ||
        connection->lanes_up() > 0)
      return;
    uint64_t since = connection->no_lane_since();
    if (since == 0) return;
    if (connection->refusals >= kRefusalsDead) {
      connection->peer_lost("the peer process is gone (its host answers, nobody listens on its port)", now);
      return;
    }
    if (elapsed(now, since) >= engine_->config().peer_timeout_ns) {
      connection->peer_lost("no lane to the peer for " +
                                std::to_string((elapsed(now, since)) / 1'000'000'000) +
                                " s (FABRICPULSE_PEER_TIMEOUT_S)",
                            now);
      return;
    }
    if (connection->direction() == Direction::kReceive && elapsed(now, since) >= kProbeAfterNs &&
        !connection->probing && now >= connection->next_probe_ns) {
      connection->next_probe_ns = now + kProbeEveryNs;
      probe = true;
    }
  }
  if (probe) start_probe(std::static_pointer_cast<RecvConnection>(connection), now);
}

}  // namespace fabricpulse
