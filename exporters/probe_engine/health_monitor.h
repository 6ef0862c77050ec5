// Once a tick: the health of every NIC and edge, and the events that follow from it.
#ifndef FABRICPULSE_EXPORTERS_HEALTH_MONITOR_H_
#define FABRICPULSE_EXPORTERS_HEALTH_MONITOR_H_

#include <cstdint>
#include <vector>

#include "clocks/tick_clock.h"
#include "edge_table.h"
#include "event_queue.h"

namespace fabricpulse {

class HealthMonitor {
 public:
  HealthMonitor(const Settings& settings, EdgeTable& table, EventQueue& events);

  // Checks the link of a NIC, at most each 250 ms, and opens its sockets.
  void check_link(Nic& nic, std::int64_t now_ns, bool force);
  // After the packets of the tick were taken in.
  void update(const TickTime& now);

 private:
  NicEvidence evidence_of(const Nic& nic, std::int64_t unstalled_ns) const;
  void update_nic(Nic& nic, const TickTime& now);
  void update_edge(Edge& edge, const TickTime& now);
  void rotate_windows(const TickTime& now);
  void share_size_loss();
  void disconnected(Nic& nic, bool seen, const TickTime& now);
  void connected(Nic& nic, const TickTime& now);
  void emit_nic(const Nic& nic, EventKind kind, std::int64_t duration, const TickTime& now);

  const Settings& settings_;
  EdgeTable& table_;
  EventQueue& events_;
  InterfaceQuery interfaces_;
  std::int64_t edge_interval_;
  std::int64_t next_rotation_ = 0, next_second_ = 0, next_bucket_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_HEALTH_MONITOR_H_
