// What a connection needs from the process around it. The engine implements it; tests implement it without
// sockets.
#ifndef FABRICPULSE_CORE_RUNTIME_H_
#define FABRICPULSE_CORE_RUNTIME_H_

#include <cstdint>
#include <string>

#include "core/config.h"
#include "core/nic.h"
#include "core/path_table.h"
#include "core/peer_liveness.h"
#include "core/telemetry.h"

namespace fabricpulse {

// Time between two stamps of Runtime::now(). Threads take theirs on their own, so `since` may be a little
// ahead of `now`.
inline uint64_t elapsed(uint64_t now, uint64_t since) { return now > since ? now - since : 0; }

class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual const Config& config() const = 0;
  virtual Telemetry* telemetry() = 0;
  // CLOCK_MONOTONIC, ns.
  virtual uint64_t now() const = 0;
  // The host's clock, ns.
  virtual int64_t host_clock() const = 0;
  // Fleet time, ns. False while the clock is not synchronised.
  virtual bool fleet_clock(int64_t* fleet_ns) const = 0;
  // What happens now, on all clocks. now : of now().
  virtual EventTime event_time(uint64_t now) const { return {host_clock(), now, 0, 0}; }
  // Local NIC: can it carry lanes (link and address), is it avoided by command.
  virtual bool nic_up(uint32_t nic) const = 0;
  virtual bool nic_avoided(uint32_t nic) const = 0;
  virtual const char* nic_name(uint32_t nic) const = 0;
  virtual uint64_t nic_bytes_per_second(uint32_t nic) const = 0;
  // Whether spare lanes may go over it.
  virtual SpareUse nic_spare_use(uint32_t /*nic*/) const { return SpareUse::kNone; }
  // What its transport makes lanes of, or spare lanes.
  virtual fp_lane_transport lane_kind(bool /*spare*/) const { return FP_LANE_TCP; }
  // Service thread: the shared state of a path, of all connections. nullptr: none is kept.
  virtual PathTable::Path* path(uint32_t /*nic*/, const uint8_t* /*address*/, uint64_t /*now*/) {
    return nullptr;
  }
  // Service thread: what all connections to that process share (core/peer_liveness.h). nullptr: nothing.
  virtual PeerEnded peer_ended(const uint64_t (&/*process*/)[2]) { return nullptr; }
  // Asks for a tick() soon, from any thread.
  virtual void wake() = 0;
  // A line for NCCL's log.
  virtual void warn(const std::string& text) = 0;
  virtual void info(const std::string& text) = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_RUNTIME_H_
