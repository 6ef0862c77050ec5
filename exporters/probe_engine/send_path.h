// The way of a packet out: the schedule of each edge, the trains, their TX stamps.
#ifndef FABRICPULSE_EXPORTERS_SEND_PATH_H_
#define FABRICPULSE_EXPORTERS_SEND_PATH_H_

#include <cstdint>
#include <random>
#include <vector>

#include "clocks/fleet_clock_reader.h"
#include "clocks/tick_clock.h"
#include "edge_table.h"
#include "packets/wire.h"

namespace fabricpulse {

class SendPath {
 public:
  // period_ticks : ticks from train to train of an edge. epoch : start identity of this engine.
  SendPath(const Settings& settings, EdgeTable& table, const FleetClockReader& fleet_clock, TickClock& clock,
           std::int64_t period_ticks, std::uint32_t epoch);

  // Puts a new edge on the schedule, at a moment of its own.
  void schedule(Edge& edge, std::uint64_t tick);
  // Sends the trains that are due at tick `tick`. key : signs.
  void send_due(std::uint64_t tick, const FleetKey& key);
  // Takes in the TX stamps that have come back.
  void drain_stamps(Nic& nic);
  // The host clock was stepped.
  void forget_stamps();
  // ns to the next tick: 3/4 to 5/4 of the mean, so that the hosts of a fleet do not synchronise.
  std::int64_t next_tick_in();

 private:
  void send_trains(const std::uint32_t* slots, std::size_t count, const FleetKey& key);
  // Sends the size probe that follows the newest train of an edge.
  void send_size(Edge& edge, std::uint16_t size, std::uint8_t path, const FleetKey& key);
  // Those of one source port.
  void drain_stamps(Nic& nic, std::uint8_t path);
  void take_stamp(Nic& nic, int phc, const NicSockets::StampOwner& owner, const TxStamp& stamp);
  void fill_packet(Edge& edge, Packet* packet, int position) const;
  std::int16_t slope(const Packet& packet) const;

  const Settings& settings_;
  EdgeTable& table_;
  const FleetClockReader& fleet_clock_;
  TickClock& clock_;
  std::int64_t period_ticks_;
  std::uint32_t epoch_;
  std::mt19937_64 random_;
  std::vector<std::uint32_t> due_;  // scratch of send_due
  std::vector<Outgoing> outgoing_;  // scratch of send_trains
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_SEND_PATH_H_
