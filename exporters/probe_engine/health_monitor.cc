#include "health_monitor.h"

#include <algorithm>
#include <utility>

namespace fabricpulse {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

}  // namespace

// The edges of a NIC are received from for the last time within one period, and checked within one tick.
HealthMonitor::HealthMonitor(const Settings& settings, EdgeTable& table, EventQueue& events)
    : settings_(settings),
      table_(table),
      events_(events),
      edge_interval_(settings.interval_ns + 2 * settings.tick_ns + settings.period_ns()) {}

void HealthMonitor::check_link(Nic& nic, std::int64_t now_ns, bool force) {
  if (!nic.sockets.check(nic.spec, interfaces_, now_ns, force)) return;
  for (const auto& [id, slot] : nic.edges) {
    SocketAddress& to = table_.edge(slot).to;
    if (to.any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&to.v6.sin6_addr))
      to.v6.sin6_scope_id = nic.sockets.interface_index();
  }
}

void HealthMonitor::update(const TickTime& now) {
  rotate_windows(now);
  for (Nic& nic : table_.nics()) update_nic(nic, now);
  // After the NICs, and a little later than they: an edge that falls silent with its NIC is the NIC's fault.
  for (const std::uint32_t slot : table_.slots()) update_edge(table_.edge(slot), now);
}

void HealthMonitor::rotate_windows(const TickTime& now) {
  auto due = [now_ns = now.mono](std::int64_t* next, std::int64_t period) {
    const bool first = *next == 0;
    if (!first && now_ns < *next) return false;
    *next = now_ns + period;
    return !first;
  };
  const bool window = due(&next_rotation_, settings_.window_ns);
  const bool second = due(&next_second_, kSecond);
  const bool bucket = due(&next_bucket_, LossWindow::kBucketNs);
  if (!window && !second && !bucket) return;
  for (const std::uint32_t slot : table_.slots()) {
    Edge& edge = table_.edge(slot);
    if (second) {
      edge.delays.second();
      bool degraded = false;
      for (int p = 0; p < edge.trains.peer_paths() && !degraded; ++p) degraded = edge.degraded(p);
      if (!degraded) edge.degraded_host_ns = 0;
      if (degraded && edge.degraded_host_ns == 0) edge.degraded_host_ns = now.host;
    }
    if (window) edge.delays.rotate();
    if (bucket) edge.trains.rotate_loss();
  }
  if (bucket) share_size_loss();
}

// Congestion at a NIC or on a link hits many of its source ports: each learns from the others what is lost there.
void HealthMonitor::share_size_loss() {
  for (const Nic& nic : table_.nics()) {
    SizeLoss sum;
    for (const auto& [id, slot] : nic.edges) table_.edge(slot).trains.add_size_loss(&sum);
    for (const auto& [id, slot] : nic.edges) table_.edge(slot).trains.set_size_loss(sum);
  }
}

NicEvidence HealthMonitor::evidence_of(const Nic& nic, std::int64_t unstalled_ns) const {
  const std::int64_t interval = settings_.interval_ns;
  NicEvidence e;
  e.edges = static_cast<int>(nic.edges.size());
  e.link_down = nic.sockets.link_down();
  e.cannot_probe = !nic.sockets.is_open();
  for (const auto& [id, slot] : nic.edges) {
    const Presence& presence = table_.edge(slot).presence;
    e.received = std::max(e.received, presence.received_at);
    e.both = std::max(e.both, presence.both(interval));
    e.received_by_peer = std::max(e.received_by_peer, presence.received_by_peer_at);
  }
  for (const Nic& other : table_.nics()) {
    if (&other != &nic && other.health.state() == HealthState::kUp) e.others_connected = true;
  }
  if (e.edges == 0 || recent(e.both, unstalled_ns, interval / 2)) return e;
  std::vector<PeerSighting> own, others;
  for (const std::uint32_t slot : table_.slots()) {
    const Edge& edge = table_.edge(slot);
    (&table_.nics()[edge.nic] == &nic ? own : others)
        .push_back({edge.peer_host, edge.presence.received_at, edge.presence.both(interval)});
  }
  e.peers = peer_loss(own.data(), own.size(), others.data(), others.size(), unstalled_ns, interval);
  return e;
}

void HealthMonitor::update_nic(Nic& nic, const TickTime& now) {
  NicEvidence e = evidence_of(nic, now.unstalled);
  if (e.edges > 0 && !recent(e.both, now.unstalled, settings_.interval_ns / 2)) {
    check_link(nic, now.mono, nic.sockets.is_open());
    e.link_down = nic.sockets.link_down();
    e.cannot_probe = !nic.sockets.is_open();
  }
  const HealthState before = nic.health.state();
  const bool seen = nic.health.seen();
  const NicEvent what = nic.health.update(e, now.unstalled);
  if (nic.health.state() != before) nic.record.changed_host_ns = now.host;
  // Down, then unknown: when it came back is not known, so the outage has no length.
  if (nic.health.state() == HealthState::kUnknown) nic.down_since = 0;
  switch (what) {
    case NicEvent::kNothing:
      break;
    case NicEvent::kDisconnected:
      disconnected(nic, seen, now);
      break;
    case NicEvent::kConnected:
      connected(nic, now);
      break;
    case NicEvent::kInterrupted:
      nic.record.changed_host_ns = now.host;
      disconnected(nic, seen, now);
      connected(nic, now);
      break;
  }
}

// Counts and reports a lost NIC. seen : it was connected before.
void HealthMonitor::disconnected(Nic& nic, bool seen, const TickTime& now) {
  const std::int64_t lost_at = nic.health.lost_at();
  const std::int64_t silent = lost_at == kNeverReceived ? 0 : now.unstalled - lost_at;
  nic.down_since = now.mono - silent;
  nic.down_counted = seen;
  if (seen) ++nic.record.disconnects;
  emit_nic(nic, EventKind::kNicDisconnected, silent, now);
}

void HealthMonitor::connected(Nic& nic, const TickTime& now) {
  const std::int64_t outage = now.mono - nic.down_since;
  if (nic.down_counted) {
    ++nic.record.reconnects;
    nic.record.outages.add(kOutageBuckets, outage);
  }
  nic.down_since = 0;
  emit_nic(nic, EventKind::kNicConnected, outage, now);
}

void HealthMonitor::emit_nic(const Nic& nic, EventKind kind, std::int64_t duration, const TickTime& now) {
  Event event{};
  event.kind = kind;
  event.host_ns = now.host;
  event.device = nic.spec.device;
  event.network = nic.spec.network;
  event.cause = static_cast<std::uint8_t>(nic.health.cause());
  event.duration_ns = duration;
  events_.push(std::move(event));
}

void HealthMonitor::update_edge(Edge& edge, const TickTime& now) {
  if (edge.presence.received_at != kNeverReceived)
    edge.trains.silence(now.unstalled - edge.presence.received_at);
  const HealthState before = edge.health.states().edge;
  const EdgeStates& states = edge.health.update(edge.presence, now.unstalled, edge_interval_);
  if (states.edge == before) return;
  edge.changed_host_ns = now.host;
  if (before == HealthState::kUnknown) return;
  Event event{};
  event.kind = states.edge == HealthState::kUp ? EventKind::kEdgeUp : EventKind::kEdgeDown;
  event.host_ns = now.host;
  event.inbound = static_cast<std::uint8_t>(states.inbound);
  event.outbound = static_cast<std::uint8_t>(states.outbound);
  event.device = edge.device;
  event.network = table_.nics()[edge.nic].spec.network;
  event.peer = edge.spec.peer;
  event.peer_device = edge.spec.peer_device;
  events_.push(std::move(event));
}

}  // namespace fabricpulse
