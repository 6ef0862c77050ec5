// Output of the engine to Python: fixed records, little endian, no padding that is not named. The mirror is
// exporters/fabricpulse/mesh/snapshot.py; sizes are checked when the module is imported.
#ifndef FABRICPULSE_EXPORTERS_SNAPSHOT_H_
#define FABRICPULSE_EXPORTERS_SNAPSHOT_H_

#include <array>
#include <cstdint>

#include "packets/wire.h"

namespace fabricpulse {

// Upper bounds in nanoseconds, +Inf not listed.
constexpr std::array<std::int64_t, 14> kOwdBuckets = {1'000,     2'000,     5'000,      10'000,     20'000,
                                                      50'000,    100'000,   200'000,    500'000,    1'000'000,
                                                      2'000'000, 5'000'000, 10'000'000, 100'000'000};
constexpr std::array<std::int64_t, 11> kLatenessBuckets = {100'000,     500'000,     1'000'000,    2'000'000,
                                                           5'000'000,   10'000'000,  20'000'000,   50'000'000,
                                                           100'000'000, 500'000'000, 1'000'000'000};
constexpr std::array<std::int64_t, 10> kOutageBuckets = {
    200'000'000,    500'000'000,    1'000'000'000,  2'000'000'000,   5'000'000'000,
    10'000'000'000, 30'000'000'000, 60'000'000'000, 300'000'000'000, 1'800'000'000'000};

template <std::size_t N>
struct Histogram {
  std::uint64_t counts[N + 1] = {};
  std::int64_t sum = 0;  // ns

  void add(const std::array<std::int64_t, N>& bounds, std::int64_t value) {
    std::size_t i = 0;
    while (i < N && value > bounds[i]) ++i;
    ++counts[i];
    sum += value;
  }
};

// Why a packet that arrived was not taken.
enum DropReason : int {
  kDropMalformed = 0,
  kDropWrongFleet,
  kDropBadMac,
  kDropReplay,
  kDropNotAMember,   // authentic, but from no peer of this NIC, or not for this NIC, or from another address
  kDropUnconfirmed,  // a restarted peer that has not yet echoed a recent packet of ours
  kDropRate,
  kDropReasons,
};

struct SnapshotHeader {
  std::uint32_t generation;  // of the configuration that the records belong to
  std::uint32_t nics;
  std::uint32_t edges;
  std::uint32_t clock_status;  // enum fp_clock_status
  std::uint64_t ticks;         // these and all that follow without a unit: counts since the start
  std::uint64_t stalls;
  std::int64_t stalled_ns;
  std::int64_t cpu_ns;
  std::uint64_t clock_steps;
  std::uint64_t events_dropped;
  std::uint64_t samples;
  std::int64_t clock_bound_ns;
  Histogram<kLatenessBuckets.size()> lateness;
};

struct NicRecord {
  std::uint8_t state;        // HealthState
  std::uint8_t cause;        // NicCause
  std::uint8_t open;         // 1 = sockets are there
  std::uint8_t link;         // 1 = up and running
  std::uint32_t open_errno;  // why they are not; 0 = they are
  std::uint64_t disconnects;
  std::uint64_t reconnects;
  std::int64_t changed_host_ns;  // host clock at the last change of state, 0 = none
  std::int64_t down_ns;          // how long it has been disconnected, 0 = is not
  Histogram<kOutageBuckets.size()> outages;
  Histogram<kOwdBuckets.size()> owd;
  std::uint64_t drops[kDropReasons];  // packets
  std::uint64_t overflows;            // packets
  std::uint64_t stamps_lost;          // packets
  std::uint64_t phc_lost;             // times that its clock was stepped, or steered too hard
  std::int64_t phc_error_ns;          // how far a reading of its clock may be off
  std::int32_t phc;                   // N of /dev/ptpN whose stamps are asked for, -1 = none
  std::uint32_t phc_errno;            // why they are not there; 0 = they are, or this NIC has none
  std::uint32_t phc_good;             // 1 = its stamps are used
  std::uint32_t zero;
};

enum : std::uint8_t { kCut = 1, kMaybeCut = 2 };  // of PathRecord

struct PathRecord {
  std::uint64_t expected;  // packets
  std::uint64_t lost;      // packets
  std::int64_t owd_ns;     // median of the last trains, INT64_MIN = unknown
  std::uint8_t state;      // HealthState
  std::uint8_t latency;    // HealthState, down = elevated
  std::uint8_t lossy;      // 1 = loses more than a healthy path
  std::uint8_t cut;        // kCut = drops what is larger than some size; kMaybeCut = may do so; 0
  std::uint32_t loss_ppm;  // of the last minute
};

struct EdgeRecord {
  std::uint32_t slot;  // index in the edge table of the ring
  std::uint32_t nic;
  std::uint8_t state;
  std::uint8_t inbound;
  std::uint8_t outbound;
  std::uint8_t latency;
  std::uint32_t paths;  // records of them
  std::uint64_t sent;   // packets, as the next three
  std::uint64_t send_errors;
  std::uint64_t received;
  std::uint64_t lost;
  std::int64_t received_age_ns;          // -1 = never
  std::int64_t received_by_peer_age_ns;  // -1 = never
  std::uint64_t owd_count;
  std::int64_t owd_sum_ns;
  std::uint32_t window_count;  // delays that the quantiles below stand on; 0: they do not hold
  std::uint32_t peer_epoch;
  std::int64_t owd_p50_ns;
  std::int64_t owd_p99_ns;
  std::int64_t owd_max_ns;
  std::int64_t owd_min_ns;
  std::int64_t owd_bound_ns;  // of the last delay
  std::int64_t baseline_ns;
  std::int64_t limit_ns;
  std::uint64_t outbound_lost;    // packets of ours that the peer has not received
  std::int64_t rtt_ns;            // median of the last round trips, INT64_MIN = unknown
  std::int64_t changed_host_ns;   // as of Edge
  std::int64_t degraded_host_ns;  // as of Edge
  std::uint32_t
      black_hole_bytes;  // smallest IP packet that a source port drops for its size; 0 = none, or not known
  std::uint32_t maybe_cut;  // 1 = of a source port cut is kMaybeCut
  PathRecord path[kMaxPaths];
};

struct Nic;
struct Edge;
class HardwareClocks;
// now_ns : monotonic.
NicRecord nic_record(const Nic& nic, const HardwareClocks& clocks, std::int64_t now_ns);
EdgeRecord edge_record(std::uint32_t slot, const Edge& edge, std::int64_t now_ns);

static_assert(sizeof(SnapshotHeader) == 184);
static_assert(sizeof(PathRecord) == 32);

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_SNAPSHOT_H_
