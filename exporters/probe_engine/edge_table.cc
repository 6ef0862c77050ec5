#include "edge_table.h"

#include <algorithm>
#include <climits>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "clocks/clock_ns.h"

namespace fabricpulse {

EdgeTable::EdgeTable(const Settings& settings) : settings_(settings), edges_(settings.edge_capacity) {}

bool EdgeTable::exchanges(const Nic& nic, std::int64_t unstalled_ns) const {
  return std::any_of(nic.edges.begin(), nic.edges.end(), [&](const auto& id_and_slot) {
    const Presence& presence = edges_[id_and_slot.second]->presence;
    return recent(presence.both(settings_.interval_ns), unstalled_ns, settings_.interval_ns);
  });
}

void EdgeTable::replace_nics(const std::vector<NicSpec>& nics, std::int64_t unstalled_ns) {
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
      if (!same) next[i].sockets.close();
    } else {
      next[i].id = nic_identity(settings_.host, nics[i].device);
      next[i].sockets = NicSockets(&settings_);
      next[i].health = NicHealth(settings_.interval_ns, settings_.grace_ns, unstalled_ns);
    }
    next[i].spec = nics[i];
  }
  nics_ = std::move(next);
}

// The slot that each edge has already, UINT32_MAX if it is new.
std::vector<std::uint32_t> EdgeTable::kept_slots(const std::vector<NicSpec>& nics,
                                                 const std::vector<EdgeSpec>& edges) const {
  std::unordered_map<std::string, std::uint32_t> by_name;
  auto name = [](const std::string& device, const EdgeSpec& spec) {
    return device + '\0' + spec.peer + '\0' + spec.peer_device;
  };
  for (const std::uint32_t slot : order_) {
    by_name.emplace(name(edges_[slot]->device, edges_[slot]->spec), slot);
  }
  std::vector<std::uint32_t> slots;
  for (const EdgeSpec& spec : edges) {
    const auto found = by_name.find(name(nics[spec.nic].device, spec));
    slots.push_back(found == by_name.end() ? UINT32_MAX : found->second);
    if (found != by_name.end()) by_name.erase(found);
  }
  return slots;
}

std::vector<std::uint32_t> EdgeTable::configure(const std::vector<NicSpec>& nics,
                                                const std::vector<EdgeSpec>& edges, std::int64_t unstalled_ns,
                                                const Hooks& hooks) {
  // Everything that can fail comes first.
  std::vector<SocketAddress> addresses;
  for (const NicSpec& nic : nics) make_address(nic.address, settings_.port);
  for (const EdgeSpec& edge : edges) {
    if (edge.nic >= nics.size()) throw std::invalid_argument("an edge names a NIC that is not there");
    addresses.push_back(make_address(edge.address, settings_.port));
  }
  if (edges.size() > edges_.size()) {
    throw std::invalid_argument("more than " + std::to_string(edges_.size()) + " edges");
  }

  ++generation_;
  replace_nics(nics, unstalled_ns);
  std::vector<bool> exchanged(nics_.size());
  for (std::size_t i = 0; i < nics_.size(); ++i) {
    exchanged[i] = exchanges(nics_[i], unstalled_ns);
    nics_[i].edges.clear();
  }

  std::vector<std::uint32_t> slots = kept_slots(nics, edges);
  std::vector<bool> kept(edges_.size(), false);
  for (const std::uint32_t slot : slots) {
    if (slot != UINT32_MAX) kept[slot] = true;
  }
  for (const std::uint32_t slot : order_) {
    if (kept[slot]) continue;
    edges_[slot].reset();
    hooks.retired(slot);
  }
  const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
  std::uint32_t free_slot = 0;
  order_.clear();
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const bool added = slots[i] == UINT32_MAX;
    if (added) {
      while (edges_[free_slot]) ++free_slot;
      slots[i] = free_slot;
      edges_[free_slot] = std::make_unique<Edge>();
    }
    Edge& edge = *edges_[slots[i]];
    edge.nic = edges[i].nic;
    edge.device = nics[edges[i].nic].device;
    edge.spec = edges[i];
    edge.to = addresses[i];
    edge.peer_id = nic_identity(edges[i].peer, edges[i].peer_device);
    edge.peer_host = nic_identity(edges[i].peer, "");
    if (added) {
      edge.limit.start(settings_.receive_rate, now);
      edge.delays = EdgeDelays(
          LatencyHealth(settings_.latency_ceiling_ns, settings_.latency_factor, settings_.latency_slack_ns));
      hooks.added(slots[i], edge);
    }
    nics_[edge.nic].edges.set(edge.peer_id, slots[i]);
    order_.push_back(slots[i]);
  }
  for (std::size_t i = 0; i < nics_.size(); ++i) {
    // Silence of peers that have only just been chosen is none: they read the membership at their own pace.
    if (exchanged[i] && !exchanges(nics_[i], unstalled_ns)) nics_[i].health.restart(unstalled_ns);
  }
  return slots;
}

}  // namespace fabricpulse
