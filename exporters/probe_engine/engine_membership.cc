// The engine: keys, NICs and edges as the fleet's membership says.
#include <algorithm>
#include <climits>
#include <cstring>
#include <stdexcept>

#include "clock_ns.h"
#include "engine.h"

namespace fabricpulse {

void Engine::set_keys(const std::vector<SipKey>& keys) {
  if (keys.empty()) throw std::invalid_argument("at least one key is needed");
  std::vector<FleetKey> made;
  for (const SipKey& key : keys) made.push_back(make_fleet_key(key));
  std::lock_guard<PriorityMutex> lock(mutex_);
  keys_ = std::move(made);
}

std::vector<std::uint32_t> Engine::configure(const std::vector<NicSpec>& nics,
                                             const std::vector<EdgeSpec>& edges) {
  std::lock_guard<std::mutex> api(api_mutex_);
  // Everything that can fail comes first, on the side.
  std::vector<SocketAddress> addresses;
  for (const NicSpec& nic : nics) make_address(nic.address, settings_.port);
  for (const EdgeSpec& edge : edges) {
    if (edge.nic >= nics.size()) throw std::invalid_argument("an edge names a NIC that is not there");
    addresses.push_back(make_address(edge.address, settings_.port));
  }
  if (edges.size() > settings_.edge_capacity) {
    throw std::invalid_argument("more than " + std::to_string(settings_.edge_capacity) + " edges");
  }

  std::lock_guard<PriorityMutex> lock(mutex_);
  ++generation_;
  auto heard_now = [this](const Nic& nic) {
    return std::any_of(nic.edges.begin(), nic.edges.end(), [this](const auto& id_and_slot) {
      const Presence& presence = edges_[id_and_slot.second]->presence;
      return recent(presence.both(settings_.interval_ns), attended_.now(), settings_.interval_ns);
    });
  };
  std::vector<bool> was_heard(nics.size(), false);
  std::vector<Nic> next(nics.size());
  for (std::size_t i = 0; i < nics.size(); ++i) {
    Nic* old = nullptr;
    for (Nic& candidate : nics_) {
      if (candidate.spec.device == nics[i].device) old = &candidate;
    }
    if (old != nullptr) {
      const bool same = old->spec.address == nics[i].address;
      next[i] = std::move(*old);
      old->spec.device.clear();
      if (!same) close_nic(next[i]);
    } else {
      next[i].id = nic_identity(settings_.host, nics[i].device);
      next[i].verdict = NicVerdict(settings_.interval_ns, settings_.grace_ns, attended_.now());
    }
    next[i].spec = nics[i];
    was_heard[i] = heard_now(next[i]);
    next[i].edges.clear();
  }
  nics_ = std::move(next);

  auto same_edge = [](const EdgeSpec& a, const std::string& device_a, const EdgeSpec& b,
                      const std::string& device_b) {
    return device_a == device_b && a.peer == b.peer && a.peer_device == b.peer_device;
  };
  std::vector<std::uint32_t> slots(edges.size(), UINT32_MAX);
  std::vector<bool> kept(edges_.size(), false);
  for (std::size_t i = 0; i < edges.size(); ++i) {
    for (const std::uint32_t slot : order_) {
      Edge& edge = *edges_[slot];
      if (!kept[slot] && same_edge(edge.spec, edge.device, edges[i], nics[edges[i].nic].device)) {
        slots[i] = slot;
        kept[slot] = true;
        break;
      }
    }
  }
  for (const std::uint32_t slot : order_) {
    if (kept[slot]) continue;
    edges_[slot].reset();
    if (ring_) ring_->retire_edge(slot);
  }
  const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
  std::uint32_t free_slot = 0;
  order_.clear();
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (slots[i] == UINT32_MAX) {
      while (edges_[free_slot]) ++free_slot;
      slots[i] = free_slot;
      edges_[free_slot] = std::make_unique<Edge>();
      Edge& edge = *edges_[free_slot];
      edge.period_start = header_.ticks + 1 + random_() % static_cast<std::uint64_t>(period_ticks_);
      edge.next_due = edge.period_start;
      edge.tokens = settings_.receive_rate;
      edge.tokens_at = now;
      edge.latency =
          LatencyVerdict(settings_.latency_ceiling_ns, settings_.latency_factor, settings_.latency_slack_ns);
      if (ring_) {
        fp_probe_edge entry{};
        auto copy = [](char* to, std::size_t size, const std::string& from) {
          std::memcpy(to, from.data(), std::min(size - 1, from.size()));
        };
        copy(entry.device, sizeof(entry.device), nics[edges[i].nic].device);
        copy(entry.network, sizeof(entry.network), nics[edges[i].nic].network);
        copy(entry.peer, sizeof(entry.peer), edges[i].peer);
        copy(entry.peer_device, sizeof(entry.peer_device), edges[i].peer_device);
        copy(entry.peer_network, sizeof(entry.peer_network), edges[i].peer_network);
        ring_->set_edge(slots[i], entry);
      }
    }
    Edge& edge = *edges_[slots[i]];
    edge.nic = edges[i].nic;
    edge.device = nics[edges[i].nic].device;
    edge.spec = edges[i];
    edge.to = addresses[i];
    edge.peer_id = nic_identity(edges[i].peer, edges[i].peer_device);
    edge.peer_host = nic_identity(edges[i].peer, "");
    nics_[edge.nic].edges[edge.peer_id] = slots[i];
    order_.push_back(slots[i]);
  }
  for (std::size_t i = 0; i < nics_.size(); ++i) {
    // Silence of peers that have only just been chosen is none: they read the membership at their own pace.
    if (was_heard[i] && !heard_now(nics_[i])) nics_[i].verdict.restart(attended_.now());
  }
  return slots;
}

}  // namespace fabricpulse
