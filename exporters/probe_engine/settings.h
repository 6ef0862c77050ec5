// Input of the probe engine: its settings, the NICs of this host and the edges that they probe.
#ifndef FABRICPULSE_EXPORTERS_SETTINGS_H_
#define FABRICPULSE_EXPORTERS_SETTINGS_H_

#include <cstdint>
#include <string>

namespace fabricpulse {

// Whose stamps are used where a NIC takes any: the kernel's; those of a NIC that somebody has set up for them; those of
// any NIC, which is set up unless somebody has.
enum class Timestamps : std::uint8_t { kSoftware, kAuto, kHardware };

struct Settings {
  std::string host;
  std::string ring_path;   // empty: no ring
  std::string clock_path;  // empty: no fleet time
  std::uint16_t port = 9620;
  std::uint8_t dscp = 0;
  std::uint8_t paths = 8;   // source ports: port, port + 1, ...
  std::uint8_t sweep = 10;  // every sweep-th train takes a path other than the main one
  bool size_probes = true;  // packets that fill the MTU, too
  bool bind_device = true;
  Timestamps timestamps = Timestamps::kSoftware;
  double rate = 50;  // trains a second to each peer
  std::int64_t interval_ns = 1'000'000'000;
  std::int64_t grace_ns = 10'000'000'000;
  std::int64_t tick_ns = 20'000'000;  // at most, on average; the engine takes the next part of a period
  std::int64_t spacing_ns = 20'000;   // between the packets of a train, at least
  std::int64_t window_ns = 15'000'000'000;
  std::int64_t latency_ceiling_ns = 10'000'000;
  double latency_factor = 1.25;
  std::int64_t latency_slack_ns = 5'000;
  double receive_rate = 2'000;           // packets a second taken from one peer
  int priority = 1;                      // SCHED_FIFO; 0 = ordinary
  std::uint32_t ring_capacity = 16'384;  // samples
  std::uint32_t edge_capacity = 1'024;   // edges

  // Throws std::invalid_argument for settings that make no sense.
  void validate() const;
  std::int64_t period_ns() const { return static_cast<std::int64_t>(1e9 / rate); }
};

struct NicSpec {
  std::string device, network, address;
};

struct EdgeSpec {
  std::uint32_t nic = 0;  // index into the NICs of the same call
  std::string peer, peer_device, peer_network, address;
};

const char* timestamps_name(Timestamps timestamps);
// Throws std::invalid_argument for another name.
Timestamps timestamps_named(const std::string& name);

// A NIC's name on the wire.
std::uint64_t nic_identity(const std::string& host, const std::string& device);

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_SETTINGS_H_
