// The way of a packet in: from the socket through authentication, session and rate limit to the trains,
// delays and samples of its edge.
#ifndef FABRICPULSE_EXPORTERS_RECEIVE_PATH_H_
#define FABRICPULSE_EXPORTERS_RECEIVE_PATH_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "clocks/fleet_clock_reader.h"
#include "clocks/tick_clock.h"
#include "edge_table.h"
#include "evidence/causality.h"
#include "packets/wire.h"
#include "ring_writer.h"

namespace fabricpulse {

class ReceivePath {
 public:
  // ring : where samples go, nullptr = nowhere. epoch : start identity of this engine.
  ReceivePath(const Settings& settings, EdgeTable& table, const FleetClockReader& fleet_clock,
              TickClock& clock, RingWriter* ring, std::uint32_t epoch)
      : settings_(settings),
        table_(table),
        fleet_clock_(fleet_clock),
        clock_(clock),
        ring_(ring),
        epoch_(epoch) {}

  // Whether delays say that this host's own clock is wrong by more than its bound. True once, then all is
  // forgotten.
  bool contradicted();
  // Whether it may be moving away from the others', which is not proven.
  bool shifted() { return shift_.own_clock(clock_.time().mono); }
  // How large a jump of this host's clock can hide from the delays of the last seconds, ns. stamp_ns : now, stamp clock.
  std::int64_t hidden_jump_ns(std::int64_t stamp_ns);
  // Trains that arrived before they can have been sent, by fleet time, since the start.
  std::uint64_t early() const { return early_; }

  // Takes in what has arrived at one NIC. keys : all are accepted.
  void drain(Nic& nic, const std::vector<FleetKey>& keys);

 private:
  void take_size(Nic& nic, const Received& received, const std::vector<FleetKey>& keys);
  void take_packet(Nic& nic, const Received& received, const std::vector<FleetKey>& keys);
  Edge* admit(Nic& nic, const Received& received, const Packet& packet, std::uint32_t* slot);
  void fetch_claimed(const Nic& nic, const Received& received) const;
  void take_presence(Nic& nic, Edge& edge, const Received& received, const Packet& packet);
  void take_sent_report(Nic& nic, std::uint32_t slot, Edge& edge, const Packet& packet);
  void take_reception_report(std::uint32_t slot, Edge& edge, const Packet& packet);
  void check_outbound(Edge& edge, const Packet& packet, const SentTrain& sent);
  // The fastest packet of a train; at_ns : as in EdgeCausality::add.
  struct Delay {
    static constexpr std::int64_t kPlausible = 10'000'000'000;  // beyond it a clock is wrong, not a path slow
    std::int64_t owd_ns = std::numeric_limits<std::int64_t>::max(), bound_ns = 0, at_ns = 0;
    bool plausible() const { return owd_ns > -kPlausible && owd_ns < kPlausible; }
  };
  void check_at_once(Edge& edge, const Packet& packet);
  Delay inbound(const Packet& packet, const ReceivedTrain& received) const;
  void check(Edge& edge, Direction direction, bool main_path, const Delay& delay);

  const Settings& settings_;
  EdgeTable& table_;
  const FleetClockReader& fleet_clock_;
  TickClock& clock_;
  RingWriter* ring_;
  std::uint32_t epoch_;
  HostCausality causality_;
  HostShift shift_;
  HiddenJump hidden_;
  std::uint64_t early_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_RECEIVE_PATH_H_
