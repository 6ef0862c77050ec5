#include "process/handshakes.h"

#include <errno.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>

namespace fabricpulse {
namespace {

// A connection that is not there by then is given up, a hello that is not answered by then too; both are tried again.
constexpr uint64_t kHandshakeNs = 1'000'000'000;
// A peer on a busy host takes longer to answer, and would never get to it if each try made it begin anew: each
// patient dial waits twice as long as the last, up to 4 s.
constexpr uint32_t kMostPatience = 2;
// The kernel sends a lost SYN again after a second: a new dial is sooner there. Now and then one that waits,
// for paths on which an answer takes longer.
constexpr uint64_t kConnectNs = 150'000'000;
constexpr uint64_t kExhaustedForNs = 1'000'000'000, kExhaustedEveryNs = 60'000'000'000;
constexpr uint64_t kExhaustedOverNs = 3'000'000'000;  // lanes that are refused are dialled more often
constexpr uint64_t kProbeAfterNs = 300'000'000, kProbeEveryNs = 200'000'000;
constexpr uint64_t kWatchReviewNs = 1'000'000'000, kWatchAgainNs = 2'000'000'000;
constexpr uint64_t kAnnounceEveryNs = 1'000'000'000;

NicAddress address_of(const WireNic& nic) {
  NicAddress address;
  memcpy(address.data(), nic.address, address.size());
  return address;
}

}  // namespace

Hello Handshakes::make_hello(const Connection& connection) const {
  Hello hello;
  hello.connection = connection.id();
  hello.process = identity_;
  nics_->fill(hello.nics, &hello.nic_count);
  return hello;
}

std::shared_ptr<RecvConnection> Handshakes::receiver_for(const Hello& hello) {
  return connections_->receiver_for(hello, [&](const Listener& listener) {
    auto receiver =
        std::make_shared<RecvConnection>(runtime_, hello.connection, listener.device, listener.communicator,
                                         std::max<uint32_t>(hello.lanes, 1));
    ConnectionLock locked(receiver.get());
    receiver->set_peer(hello.process, hello.nics, hello.nic_count);
    return receiver;
  });
}

// A probe of its receiver has reported to the sender of a connection which NICs the peer has.
void Handshakes::learn_nics(const Hello& hello) {
  auto connection = connections_->find(hello.connection, Direction::kSend);
  if (!connection) return;
  connections_->refresh_route(*connection, hello.nics, hello.nic_count);
  ConnectionLock locked(connection.get());
  if (connection->peer_known() && hello.nic_count > connection->peer_nics().size())
    connection->set_peer(hello.process, hello.nics, hello.nic_count);
}

void Handshakes::hello_received(const Hello& hello, uint32_t nic, PendingLane* pending, uint64_t now) {
  HelloReply reply;
  reply.status = HelloStatus::kUnknown;
  reply.epoch = hello.epoch;
  reply.nic_count = 1;  // nameless
  std::shared_ptr<RecvConnection> receiver;
  if (hello.version != kWireVersion) {
    reply.status = HelloStatus::kVersion;
    reply.process = identity_;  // for its error
    memset(reply.process.id, 0, sizeof(reply.process.id));
  } else if (hello.kind == HelloKind::kProbe) {
    bool ours = memcmp(hello.token, identity_.id, sizeof(hello.token)) == 0;
    if (ours && connections_->find(hello.connection, Direction::kSend)) {
      reply.status = HelloStatus::kOk;
      learn_nics(hello);
    }
  } else if (hello.kind == HelloKind::kWatch) {
    const bool ours = memcmp(hello.token, identity_.id, sizeof(hello.token)) == 0;
    if (ours) reply.status = pending->scarce() ? HelloStatus::kBusy : HelloStatus::kOk;
  } else {
    receiver = receiver_for(hello);
    if (!receiver && connections_->find_closed(hello, &reply.held, now)) reply.status = HelloStatus::kClosed;
  }
  // Who does not know a token of ours learns nothing of this host, least of all the token of this process.
  if (receiver || reply.status == HelloStatus::kOk || reply.status == HelloStatus::kClosed) {
    reply.process = identity_;
    reply.device = nic;
    nics_->fill(reply.nics, &reply.nic_count);
  }
  if (!receiver) {
    (void)pending->reply(reply);
    return;
  }
  ConnectionLock locked(receiver.get());
  if (hello.nic_count > receiver->peer_nics().size())
    receiver->set_peer(hello.process, hello.nics, hello.nic_count);
  if (receiver->lanes_up() > 0 && pending->scarce()) {
    reply.status = HelloStatus::kBusy;
    (void)pending->reply(reply);
    return;
  }
  reply.status = receiver->hello(hello, nic, &reply.held, now);
  std::unique_ptr<LaneTransport> lane = pending->reply(reply);
  if (!lane) return;
  receiver->announced_nics = std::max(receiver->announced_nics, reply.nic_count);
  receiver->attach(hello.lane, hello.epoch, std::move(lane), now);
}

// Gives the sender lanes over NICs that have come since the last call.
void Handshakes::extend_lanes(SendConnection* sender, const PeerRoute& route, uint64_t now) {
  uint32_t local = nics_->count(), remote = static_cast<uint32_t>(route.nics.size());
  ConnectionLock locked(sender);
  const bool changed = sender->nics_changed(local, remote);
  // What the peer's NICs are for is known from its first answer on.
  if (!runtime_->config().last_resort.empty() && sender->peer_known() &&
      (changed || !sender->spares_planned()))
    sender->add_spares(nics_->spares(route.nics), now);
  if (!changed) return;
  const Config& config = runtime_->config();
  LanePlan plan{local,       remote, sender->device(), sender->lanes()[0].remote_nic, config.max_lanes,
                config.paths};
  auto reaches = [&](NicPair pair) { return nics_->reaches(pair, route.nics); };
  sender->add_lanes(lanes_to_add(sender->pairs(), plan, reaches), now);
}

void Handshakes::start_dials(const std::shared_ptr<Connection>& connection, uint64_t now) {
  if (connection->direction() != Direction::kSend) return;
  auto* sender = static_cast<SendConnection*>(connection.get());
  PeerRoute route;
  if (!connections_->find_route(*connection, &route)) return;
  extend_lanes(sender, route, now);
  for (uint32_t n = 0; n < kMaxLanes; ++n) {
    DialPlan plan;
    DialRequest request;
    uint32_t remote = 0;
    {
      ConnectionLock locked(sender);
      if (!sender->want_dial(now, &plan)) return;
      request.nic = sender->lanes()[plan.lane].nic;
      remote = sender->lanes()[plan.lane].remote_nic;
      request.hello = make_hello(*connection);
      request.hello.lanes = static_cast<uint32_t>(sender->lanes().size());
    }
    request.id = next_id_++;
    request.address = address_of(route.nics[remote]);
    request.port = route.port;
    request.source_port = plan.source_port;
    request.connect_deadline_ns = now + (plan.patience > 0 ? kHandshakeNs : kConnectNs);
    request.answer_ns = kHandshakeNs << std::min(plan.patience, kMostPatience);
    request.optional = plan.optional;
    Hello& hello = request.hello;
    hello.flags = plan.flags;
    hello.listen_port = *port_;
    memcpy(hello.token, route.token, sizeof(hello.token));
    hello.lane = plan.lane;
    hello.epoch = plan.epoch;
    hello.primary_device = connection->device();
    hello.device = request.nic;
    dials_[request.id] = {connection, false,       false,  plan.lane,
                          plan.epoch, request.nic, remote, hello.nic_count};
    transport_->dial(nics_->info(request.nic), request, now);
  }
}

void Handshakes::start_probe(const std::shared_ptr<RecvConnection>& receiver, uint64_t now) {
  PeerRoute route;
  if (!connections_->find_route(*receiver, &route) || route.nics.empty()) return;
  DialRequest request;
  request.id = next_id_++;
  // Another pair of NICs each time: of those over which a lane was up, if there are any.
  uint32_t local = nics_->count(), remotes = static_cast<uint32_t>(route.nics.size()), remote = 0;
  {
    ConnectionLock locked(receiver.get());
    for (uint32_t n = 0; n < local * remotes; ++n) {
      uint32_t pair = (receiver->probes + n) % (local * remotes);
      request.nic = pair % local;
      remote = pair / local;
      if (receiver->was_up(request.nic, remote)) {
        receiver->probes = pair;
        break;
      }
    }
    ++receiver->probes;
  }
  request.address = address_of(route.nics[remote]);
  request.port = route.port;
  request.connect_deadline_ns = now + kHandshakeNs;
  request.answer_ns = kHandshakeNs;
  request.hello = make_hello(*receiver);
  request.hello.kind = HelloKind::kProbe;
  {
    ConnectionLock locked(receiver.get());
    memcpy(request.hello.token, receiver->peer().id, sizeof(request.hello.token));
    receiver->probing = true;
  }
  dials_[request.id] = {receiver, true, false, 0, 0, request.nic, remote, request.hello.nic_count};
  transport_->dial(nics_->info(request.nic), request, now);
}

void Handshakes::probe_ended(const Dial& dial, int error, bool ended, uint64_t now) {
  Connection* connection = dial.connection.get();
  connection->probing = false;
  if (error == 0 && !ended) connection->announced_nics = std::max(connection->announced_nics, dial.announced);
  if (ended && connection->lanes_up() == 0)
    connection->peer_lost("the peer process has closed this connection", now);
}

void Handshakes::dial_connected(uint64_t id) {
  auto found = dials_.find(id);
  if (found == dials_.end()) return;
  Connection* connection = found->second.connection.get();
  ConnectionLock locked(connection);
  connection->liveness.listens();
}

void Handshakes::dial_ended(uint64_t id, int error, const HelloReply* reply,
                            std::unique_ptr<LaneTransport> lane, uint64_t now) {
  auto found = dials_.find(id);
  if (found == dials_.end()) return;
  Dial dial = std::move(found->second);
  dials_.erase(found);
  Connection* connection = dial.connection.get();
  ConnectionLock locked(connection);
  if (dial.watch) {
    auto watch = watches_.find({connection->peer().id[0], connection->peer().id[1]});
    if (watch != watches_.end()) watch->second.dialling = false;
    return;
  }
  bool ended = error == 0 && reply->status == HelloStatus::kUnknown;
  if (error == ECONNREFUSED)
    connection->liveness.refused(connection->was_up(dial.nic, dial.remote_nic), !dial.probe && dial.lane == 0,
                                 now);
  bool other_version = error == 0 && reply->status == HelloStatus::kVersion;
  if (other_version) {
    connection->liveness.other_version();
  } else if (error == 0 && !ended) {
    connection->liveness.answered();
  }
  if (dial.probe) {
    probe_ended(dial, error, ended, now);
    return;
  }
  auto* sender = static_cast<SendConnection*>(connection);
  const bool scarce =
      error == EMFILE || error == ENFILE || (error == 0 && reply->status == HelloStatus::kBusy);
  if (ended) {
    reply = nullptr;
    if (sender->lanes_up() == 0)
      sender->peer_lost("the peer process has closed this connection or its listener", now);
  } else if (reply != nullptr) {
    if (!other_version) {
      if (!sender->peer_known() || reply->nic_count > sender->peer_nics().size())
        sender->set_peer(reply->process, reply->nics, reply->nic_count);
      connections_->refresh_route(*sender, reply->nics, reply->nic_count);
    }
    if (sender->liveness.runs_other_version())
      sender->peer_lost("the peer runs another version of the plugin", now);
    if (reply->status == HelloStatus::kClosed) sender->peer_closed(reply->held, now);
    if (reply->status == HelloStatus::kBusy || other_version) reply = nullptr;  // nothing about chunks
  }
  if (scarce) sender->dial_put_off(dial.lane);
  sender->dialled(dial.lane, dial.epoch, std::move(lane), reply, now);
}

void Handshakes::process_ended(const uint64_t (&process)[2]) {
  if (PeerEnded ended = runtime_->peer_ended(process)) *ended = true;
  runtime_->wake();
}

void Handshakes::watch_process(const std::shared_ptr<Connection>& connection, uint64_t now) {
  if (connection->direction() != Direction::kSend) return;
  DialRequest request;
  uint32_t remote = 0;
  {
    ConnectionLock locked(connection.get());
    if (now < connection->next_watch_ns || !connection->peer_known() || connection->lost() ||
        connection->closed() || connection->closed_by_peer())
      return;
    const std::vector<Lane>& lanes = connection->lanes();
    auto lane = std::find_if(lanes.begin(), lanes.end(), [](const Lane& l) { return l.up && !l.spare; });
    if (lane == lanes.end()) return;
    connection->next_watch_ns = now + kWatchReviewNs;
    request.nic = lane->nic;
    remote = lane->remote_nic;
    request.hello = make_hello(*connection);
    memcpy(request.hello.token, connection->peer().id, sizeof(request.hello.token));
  }
  const auto& process = request.hello.token;
  if (memcmp(process, identity_.id, sizeof(process)) == 0) return;
  Watch& watch = watches_[{process[0], process[1]}];
  watch.wanted_ns = now;
  PeerRoute route;
  if (watch.dialling || now < watch.next_ns || transport_->watches(process) ||
      !connections_->find_route(*connection, &route) || remote >= route.nics.size())
    return;
  watch.dialling = true;
  watch.next_ns = now + kWatchAgainNs;
  request.id = next_id_++;
  request.address = address_of(route.nics[remote]);
  request.port = route.port;
  request.connect_deadline_ns = now + kHandshakeNs;
  request.answer_ns = kHandshakeNs;
  request.optional = true;
  request.hello.kind = HelloKind::kWatch;
  dials_[request.id] = {connection, false, true, 0, 0, request.nic, remote, request.hello.nic_count};
  transport_->dial(nics_->info(request.nic), request, now);
}

void Handshakes::tick(uint64_t now) {
  report_exhaustion(now);
  if (elapsed(now, watches_reviewed_ns_) < kWatchReviewNs) return;
  watches_reviewed_ns_ = now;
  for (auto at = watches_.begin(); at != watches_.end();) {
    if (at->second.dialling || elapsed(now, at->second.wanted_ns) < 3 * kWatchReviewNs) {
      ++at;
      continue;
    }
    transport_->stop_watching({at->first.first, at->first.second});
    at = watches_.erase(at);
  }
}

void Handshakes::descriptors_exhausted(uint64_t now) {
  if (exhausted_ns_ == 0) exhausted_ns_ = now;
  last_exhausted_ns_ = now;
}

// How many lanes are down that a descriptor would bring up: none that is out of service for another reason, and none
// that is spare. A receiver learns with a lane's first hello which one it is; `spares`: some of those may be spare.
uint32_t Handshakes::lanes_missing(Connection* connection, bool spares) const {
  const bool none = connection->lanes_up() == 0;
  uint32_t missing = 0;
  for (const Lane& lane : connection->lanes()) {
    if (lane.up || lane.spare) continue;
    if (lane.named ? nics_->usable(lane.nic) && connection->wanted(lane) : none || !spares) ++missing;
  }
  return missing;
}

// A little later: by then it is known which connections lack lanes. Once all have one, at once.
void Handshakes::report_exhaustion(uint64_t now) {
  if (exhausted_ns_ == 0 || elapsed(now, exhausted_ns_) < kExhaustedForNs) return;
  if (elapsed(now, last_exhausted_ns_) >= kExhaustedOverNs) {  // what is down now is so for another reason
    exhausted_ns_ = 0;
    return;
  }
  const bool paused = exhausted_said_ns_ != 0 && elapsed(now, exhausted_said_ns_) < kExhaustedEveryNs;
  if (paused && !said_without_) return;
  exhausted_ns_ = 0;
  const bool spares = !runtime_->config().last_resort.empty();
  uint32_t all = 0, without = 0, missing = 0;
  for (auto& connection : connections_->all()) {
    ConnectionLock locked(connection.get());
    if (connection->lost() || connection->closed()) continue;
    const uint32_t lacks = lanes_missing(connection.get(), spares);
    ++all;
    without += lacks > 0 && connection->lanes_up() == 0;
    missing += lacks;
  }
  if (missing == 0 || (paused && without > 0)) return;
  exhausted_said_ns_ = now;
  said_without_ = without > 0;
  rlimit limit{};
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  runtime_->warn("of its " + std::to_string(limit.rlim_cur) +
                 " file descriptors this process has too few left for lanes: " + std::to_string(without) +
                 " of " + std::to_string(all) + " connections have none" +
                 (without > 0 ? " and carry nothing" : "") + "; all lanes take " + std::to_string(missing) +
                 " descriptors more. Raise the limit (ulimit -n, LimitNOFILE=)");
}

// The sender plans the lanes: report a NIC that has come here.
void Handshakes::announce_nics(const std::shared_ptr<Connection>& connection, uint64_t now) {
  if (connection->direction() != Direction::kReceive) return;
  {
    ConnectionLock locked(connection.get());
    if (connection->lost() || connection->closed() || connection->closed_by_peer() ||
        connection->lanes_up() == 0 || connection->announced_nics >= nics_->count() || connection->probing ||
        now < connection->next_probe_ns)
      return;
    connection->next_probe_ns = now + kAnnounceEveryNs;
  }
  start_probe(std::static_pointer_cast<RecvConnection>(connection), now);
}

void Handshakes::check_peer(const std::shared_ptr<Connection>& connection, uint64_t now) {
  bool probe = false;
  {
    ConnectionLock locked(connection.get());
    if (connection->lost() || connection->closed() || connection->closed_by_peer() ||
        connection->lanes_up() > 0)
      return;
    uint64_t since = connection->no_lane_since();
    if (since == 0) return;
    if (connection->liveness.has_ended()) {
      connection->peer_lost(
          connection->liveness.ended_in_order()
              ? "the peer process has ended (its kernel closed its connections, no socket listens on its "
                "port)"
              : "the peer process has ended (its host has refused connections for ten seconds)",
          now);
      return;
    }
    if (elapsed(now, since) >= runtime_->config().peer_timeout_ns) {
      connection->peer_lost("no lane to the peer for " + std::to_string(elapsed(now, since) / 1'000'000'000) +
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
