// The engine: what it judges of NICs and edges after each tick, and the events that follow.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine.h"

namespace fabricpulse {
namespace {

constexpr std::size_t kEventsKept = 4'096;

}  // namespace

void Engine::rotate_windows(std::int64_t now) {
  if (next_rotation_ == 0) next_rotation_ = now + settings_.window_ns;
  if (now < next_rotation_) return;
  next_rotation_ = now + settings_.window_ns;
  for (const std::uint32_t slot : order_) {
    Edge& edge = *edges_[slot];
    if (edge.window.current_count() > 0) edge.latency.window(edge.window.current_quantile(0.5));
    edge.window.rotate();
  }
}

NicEvidence Engine::evidence_of(const Nic& nic) const {
  const std::int64_t now = attended_.now();
  const std::int64_t interval = settings_.interval_ns;
  NicEvidence e;
  e.edges = static_cast<int>(nic.edges.size());
  e.link_down = nic.link_down();
  e.cannot_probe = !nic.open;
  for (const auto& [id, slot] : nic.edges) {
    const Presence& presence = edges_[slot]->presence;
    e.heard = std::max(e.heard, presence.heard_at);
    e.both = std::max(e.both, presence.both(interval));
    e.heard_by = std::max(e.heard_by, presence.heard_by_at);
  }
  for (const Nic& other : nics_) {
    if (&other != &nic && other.verdict.state() == State::kUp) e.others_connected = true;
  }
  if (e.edges == 0 || recent(e.both, now, interval / 2)) return e;
  std::vector<Witness> own, others;
  for (const std::uint32_t slot : order_) {
    const Edge& edge = *edges_[slot];
    (&nics_[edge.nic] == &nic ? own : others)
        .push_back({edge.peer_host, edge.presence.heard_at, edge.presence.both(interval)});
  }
  e.sole_witness_gone =
      sole_witness_gone(own.data(), own.size(), others.data(), others.size(), now, interval);
  return e;
}

// Counts a lost NIC and tells of it. seen : it was connected before.
void Engine::disconnected(Nic& nic, bool seen, std::int64_t now) {
  const std::int64_t lost_at = nic.verdict.lost_at();
  const std::int64_t silent = lost_at == kNeverHeard ? 0 : attended_.now() - lost_at;
  nic.down_since = now - silent;
  nic.down_counted = seen;
  if (seen) ++nic.record.disconnects;
  emit_nic(nic, EventKind::kNicDisconnected, silent);
}

void Engine::connected(Nic& nic, std::int64_t now) {
  const std::int64_t outage = now - nic.down_since;
  if (nic.down_counted) {
    ++nic.record.reconnects;
    nic.record.outages.add(kOutageBuckets, outage);
  }
  nic.down_since = 0;
  emit_nic(nic, EventKind::kNicConnected, outage);
}

void Engine::emit_nic(const Nic& nic, EventKind kind, std::int64_t duration) {
  Event event{};
  event.kind = kind;
  event.device = nic.spec.device;
  event.network = nic.spec.network;
  event.cause = static_cast<std::uint8_t>(nic.verdict.cause());
  event.duration_ns = duration;
  emit(std::move(event));
}

void Engine::judge(std::int64_t now) {
  const std::int64_t attended = attended_.now();
  const std::int64_t host_ns = fp_virtual_clock_apply(virtual_clock_, tick_real_);
  for (Nic& nic : nics_) {
    NicEvidence e = evidence_of(nic);
    if (e.edges > 0 && !recent(e.both, attended, settings_.interval_ns / 2)) {
      check_link(nic, now, nic.open);
      e.link_down = nic.link_down();
      e.cannot_probe = !nic.open;
    }
    const State before = nic.verdict.state();
    const bool seen = nic.verdict.seen();
    const NicEvent what = nic.verdict.step(e, attended);
    if (nic.verdict.state() != before) nic.record.changed_host_ns = host_ns;
    // Down, then unknown: when it came back is not known, so the outage has no length.
    if (nic.verdict.state() == State::kUnknown) nic.down_since = 0;
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
        nic.record.changed_host_ns = host_ns;
        disconnected(nic, seen, now);
        connected(nic, now);
        break;
    }
  }
  // After the NICs, and a little later than they: an edge that falls silent with its NIC is the NIC's fault.
  for (const std::uint32_t slot : order_) {
    Edge& edge = *edges_[slot];
    const State before = edge.verdict.states().edge;
    const EdgeStates& states = edge.verdict.step(edge.presence, attended, edge_interval_);
    if (states.edge != before && before != State::kUnknown) {
      Event event{};
      event.kind = states.edge == State::kUp ? EventKind::kEdgeUp : EventKind::kEdgeDown;
      event.inbound = static_cast<std::uint8_t>(states.inbound);
      event.outbound = static_cast<std::uint8_t>(states.outbound);
      event.device = edge.device;
      event.network = nics_[edge.nic].spec.network;
      event.peer = edge.spec.peer;
      event.peer_device = edge.spec.peer_device;
      emit(event);
    }
  }
}

void Engine::emit(Event event) {
  if (event.host_ns == 0) event.host_ns = fp_virtual_clock_apply(virtual_clock_, tick_real_);
  if (events_.size() >= kEventsKept) {
    events_.pop_front();
    ++header_.events_dropped;
  }
  events_.push_back(std::move(event));
  const std::uint64_t one = 1;
  if (write(event_fd_, &one, sizeof(one)) < 0) return;  // EAGAIN: the counter is full, Python knows already
}

}  // namespace fabricpulse
