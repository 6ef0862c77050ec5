#include "snapshot.h"

#include <algorithm>
#include <climits>

#include "clocks/hardware_clocks.h"
#include "edge_table.h"

namespace fabricpulse {

constexpr std::int64_t kStampsUsedNs = 2'000'000'000;

NicRecord nic_record(const Nic& nic, const HardwareClocks& clocks, std::int64_t now_ns) {
  NicRecord record = nic.record;
  record.state = static_cast<std::uint8_t>(nic.health.state());
  record.cause = static_cast<std::uint8_t>(nic.health.cause());
  record.open = nic.sockets.is_open();
  record.link = nic.sockets.link();
  record.open_errno = nic.sockets.is_open() ? 0 : static_cast<std::uint32_t>(nic.sockets.open_error());
  record.down_ns = nic.down_since != 0 ? now_ns - nic.down_since : 0;
  record.overflows = nic.sockets.overflows();
  record.stamps_lost = nic.sockets.stamps_lost();
  const NicStamping& stamping = nic.sockets.stamping();
  const HardwareClocks::State clock = clocks.state(stamping.phc);
  record.phc = stamping.phc;
  record.phc_errno = static_cast<std::uint32_t>(stamping.error != 0 ? stamping.error : clock.error);
  record.phc_good = nic.nic_stamp_mono != 0 && now_ns - nic.nic_stamp_mono < kStampsUsedNs;
  record.phc_error_ns = clock.error_ns;
  record.phc_lost = clock.lost;
  return record;
}

EdgeRecord edge_record(std::uint32_t slot, const Edge& edge, std::int64_t now_ns) {
  auto age = [now_ns](std::int64_t at) { return at == 0 ? -1 : std::max<std::int64_t>(now_ns - at, 0); };
  const EdgeStates& states = edge.health.states();
  const OwdWindow& window = edge.delays.window();
  EdgeRecord record{};
  record.slot = slot;
  record.nic = edge.nic;
  record.state = static_cast<std::uint8_t>(states.edge);
  record.inbound = static_cast<std::uint8_t>(states.inbound);
  record.outbound = static_cast<std::uint8_t>(states.outbound);
  // Of what does not arrive no delay is known, however long ago it was last elevated.
  const bool silent = states.inbound == HealthState::kDown;
  const HealthState latency = silent ? HealthState::kUnknown : edge.delays.latency().state();
  record.latency = static_cast<std::uint8_t>(latency);
  record.paths = edge.trains.peer_paths();
  record.sent = edge.sent;
  record.send_errors = edge.send_errors;
  record.received = edge.received;
  record.lost = edge.trains.lost();
  record.received_age_ns = age(edge.received_mono);
  record.received_by_peer_age_ns = age(edge.received_by_peer_mono);
  record.owd_count = edge.delays.count();
  record.owd_sum_ns = edge.delays.sum_ns();
  record.window_count = window.count();
  record.peer_epoch = edge.session.epoch();
  if (record.window_count > 0) {
    record.owd_p50_ns = window.quantile(0.5);
    record.owd_p99_ns = window.quantile(0.99);
    record.owd_max_ns = window.max();
    record.owd_min_ns = window.min();
  }
  record.owd_bound_ns = edge.delays.bound_ns();
  record.baseline_ns = edge.delays.latency().baseline();
  record.limit_ns = edge.delays.latency().limit();
  record.outbound_lost = edge.trains.outbound_lost();
  const RoundTrip& round_trip = edge.delays.round_trip();
  record.rtt_ns = round_trip.count() > 0 ? round_trip.median() : INT64_MIN;
  record.changed_host_ns = edge.changed_host_ns;
  record.degraded_host_ns = edge.degraded_host_ns;
  for (int p = 0; p < kMaxPaths; ++p) {
    const PathTally& path = edge.trains.path(p);
    PathRecord& r = record.path[p];
    r.expected = path.expected;
    r.lost = path.lost;
    r.state = static_cast<std::uint8_t>(path.health.state());
    const bool dead = silent || path.health.state() == HealthState::kDown;
    r.latency = static_cast<std::uint8_t>(dead ? HealthState::kUnknown : edge.delays.path_latency(p));
    r.lossy = path.window.lossy();
    r.loss_ppm = path.window.ratio_ppm();
    const std::uint32_t hole = edge.trains.black_hole(p);
    const bool maybe = hole == 0 && edge.trains.maybe_black_hole(p);
    r.cut = hole != 0 ? kCut : maybe ? kMaybeCut : 0;
    if (maybe) record.maybe_cut = 1;
    if (hole != 0 && (record.black_hole_bytes == 0 || hole < record.black_hole_bytes)) {
      record.black_hole_bytes = hole;
    }
    if (!edge.delays.recent_median(p, &r.owd_ns)) r.owd_ns = INT64_MIN;
  }
  return record;
}

}  // namespace fabricpulse
