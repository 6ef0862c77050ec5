// The NICs of this host and their edges: what is known of each, and how a new membership replaces them.
#ifndef FABRICPULSE_EXPORTERS_EDGE_TABLE_H_
#define FABRICPULSE_EXPORTERS_EDGE_TABLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "evidence/causality.h"
#include "evidence/clock_shift.h"
#include "evidence/edge_delays.h"
#include "evidence/edge_trains.h"
#include "health/health.h"
#include "health/nic_health.h"
#include "nic_sockets.h"
#include "packets/rate_limit.h"
#include "packets/session.h"
#include "settings.h"
#include "snapshot.h"

namespace fabricpulse {

// One edge: a NIC of ours and one of a peer.
struct Edge {
  std::uint32_t nic = 0;
  std::string device;
  EdgeSpec spec;
  std::uint64_t peer_id = 0;
  std::uint64_t peer_host = 0;  // identity of its host
  SocketAddress to{};           // port set
  Session session;
  Presence presence;
  EdgeHealth health;
  std::int64_t received_mono = 0, received_by_peer_mono = 0;  // for people; health uses `presence`
  std::uint64_t next_due = 0, period_start = 0;               // number of a tick
  EdgeTrains trains;
  std::uint64_t sent = 0, send_errors = 0, received = 0;
  std::uint32_t session_received = 0;
  std::uint8_t peer_abilities = 0;  // Packet::abilities of its last packet
  RateLimit limit;
  EdgeDelays delays;
  EdgeCausality causality;
  EdgeShift shift;
  std::int64_t changed_host_ns = 0;   // last change between up and down, host clock; 0 = none
  std::int64_t degraded_host_ns = 0;  // since when a source port is down, lossy or slow; 0 = none is

  // Brings what most packets touch into the caches while something else is worked on. train : of the peer.
  void fetch(std::uint32_t train) const {
    const auto* at = reinterpret_cast<const std::uint8_t*>(&to);
    const auto* end = reinterpret_cast<const std::uint8_t*>(&trains);
    for (; at < end; at += 64) __builtin_prefetch(at, 1);
    trains.fetch(train);
    __builtin_prefetch(&sent, 1);
    __builtin_prefetch(&limit, 1);
  }

  // Whether source port `path` of the peer is down, loses packets, all of them above some size, or is
  // slower than it used to be.
  bool degraded(int path) const {
    const PathTally& tally = trains.path(path);
    return tally.health.state() == HealthState::kDown || tally.window.lossy() ||
           delays.path_latency(path) == HealthState::kDown || trains.black_hole(path) != 0;
  }
};

// Slots of edges by the NIC at their other end, sorted: asked for each packet, cold at each tick, and so in few cache
// lines.
class PeerSlots {
 public:
  using Entry = std::pair<std::uint64_t, std::uint32_t>;

  void clear() { entries_.clear(); }
  void set(std::uint64_t peer, std::uint32_t slot) {
    const auto at = std::lower_bound(entries_.begin(), entries_.end(), Entry{peer, 0});
    if (at != entries_.end() && at->first == peer) {
      at->second = slot;
    } else {
      entries_.insert(at, {peer, slot});
    }
  }
  // nullptr when there is none.
  const std::uint32_t* find(std::uint64_t peer) const {
    const auto at = std::lower_bound(entries_.begin(), entries_.end(), Entry{peer, 0});
    return at != entries_.end() && at->first == peer ? &at->second : nullptr;
  }
  std::size_t size() const { return entries_.size(); }
  std::vector<Entry>::const_iterator begin() const { return entries_.begin(); }
  std::vector<Entry>::const_iterator end() const { return entries_.end(); }

 private:
  std::vector<Entry> entries_;
};

struct Nic {
  NicSpec spec;
  std::uint64_t id = 0;
  NicSockets sockets;
  PeerSlots edges;
  NicHealth health;
  NicRecord record{};               // counters; the rest is filled in by the snapshot
  std::int64_t nic_stamp_mono = 0;  // when a stamp of the NIC was last used, 0 = never
  std::int64_t down_since = 0;      // monotonic; 0 = is not down
  bool down_counted = false;        // the outage is in disconnects
};

// Not thread-safe: the engine's mutex guards it.
class EdgeTable {
 public:
  explicit EdgeTable(const Settings& settings);

  // What `configure` reports of edges that come and go, and asks of a new one.
  struct Hooks {
    std::function<void(std::uint32_t slot, Edge& edge)> added;
    std::function<void(std::uint32_t slot)> retired;
  };
  // Replaces NICs and edges; those that stay keep their state and their slot. Returns the slot of each edge.
  // unstalled_ns : now. Throws std::invalid_argument for a bad address or too many edges, and has then
  // changed nothing.
  std::vector<std::uint32_t> configure(const std::vector<NicSpec>& nics, const std::vector<EdgeSpec>& edges,
                                       std::int64_t unstalled_ns, const Hooks& hooks);

  std::vector<Nic>& nics() { return nics_; }
  const std::vector<Nic>& nics() const { return nics_; }
  // Slots in the order of the configuration.
  const std::vector<std::uint32_t>& slots() const { return order_; }
  Edge& edge(std::uint32_t slot) { return *edges_[slot]; }
  const Edge& edge(std::uint32_t slot) const { return *edges_[slot]; }
  Edge* find(std::uint32_t slot) { return edges_[slot].get(); }
  // Counts calls of `configure`.
  std::uint32_t generation() const { return generation_; }

 private:
  bool exchanges(const Nic& nic, std::int64_t unstalled_ns) const;
  void replace_nics(const std::vector<NicSpec>& nics, std::int64_t unstalled_ns);
  std::vector<std::uint32_t> kept_slots(const std::vector<NicSpec>& nics,
                                        const std::vector<EdgeSpec>& edges) const;

  const Settings& settings_;
  std::uint32_t generation_ = 0;
  std::vector<Nic> nics_;
  std::vector<std::unique_ptr<Edge>> edges_;  // by slot
  std::vector<std::uint32_t> order_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_EDGE_TABLE_H_
