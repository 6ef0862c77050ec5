// The engine: what it tells Python.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <iterator>

#include "clock_ns.h"
#include "engine.h"

namespace fabricpulse {

std::string Engine::snapshot() {
  std::lock_guard<std::mutex> api(api_mutex_);
  std::string out;
  out.resize(sizeof(SnapshotHeader) + nics_.size() * sizeof(NicRecord) + order_.size() * sizeof(EdgeRecord));
  char* to = out.data();
  std::int64_t cpu = 0;
  clockid_t cpu_clock;
  if (running_ && pthread_getcpuclockid(thread_, &cpu_clock) == 0) cpu = clock_ns(cpu_clock);
  const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
  {
    std::lock_guard<PriorityMutex> lock(mutex_);
    SnapshotHeader header = header_;
    header.generation = generation_;
    header.nics = static_cast<std::uint32_t>(nics_.size());
    header.edges = static_cast<std::uint32_t>(order_.size());
    header.cpu_ns = cpu;
    header.samples = ring_ ? ring_->written() : 0;
    std::memcpy(to, &header, sizeof(header));
    to += sizeof(header);
    for (const Nic& nic : nics_) {
      NicRecord record = nic.record;
      record.state = static_cast<std::uint8_t>(nic.verdict.state());
      record.cause = static_cast<std::uint8_t>(nic.verdict.cause());
      record.open = nic.open;
      record.link = nic.link;
      record.open_errno = nic.open ? 0 : static_cast<std::uint32_t>(nic.open_errno);
      record.down_ns = nic.down_since != 0 ? now - nic.down_since : 0;
      std::memcpy(to, &record, sizeof(record));
      to += sizeof(record);
    }
  }
  // A few edges at a time, so that the engine never waits for more than some microseconds.
  constexpr std::size_t kAtOnce = 8;
  for (std::size_t from = 0; from < order_.size(); from += kAtOnce) {
    std::lock_guard<PriorityMutex> lock(mutex_);
    for (std::size_t i = from; i < std::min(order_.size(), from + kAtOnce); ++i) {
      const Edge& edge = *edges_[order_[i]];
      EdgeRecord record{};
      record.slot = order_[i];
      record.nic = edge.nic;
      record.state = static_cast<std::uint8_t>(edge.verdict.states().edge);
      record.inbound = static_cast<std::uint8_t>(edge.verdict.states().inbound);
      record.outbound = static_cast<std::uint8_t>(edge.verdict.states().outbound);
      record.latency = static_cast<std::uint8_t>(edge.latency.state());
      record.paths = edge.trains.peer_paths();
      record.sent = edge.sent;
      record.send_errors = edge.send_errors;
      record.received = edge.received;
      record.lost = edge.trains.lost();
      record.heard_age_ns = edge.heard_mono == 0 ? -1 : std::max<std::int64_t>(now - edge.heard_mono, 0);
      record.heard_by_age_ns =
          edge.heard_by_mono == 0 ? -1 : std::max<std::int64_t>(now - edge.heard_by_mono, 0);
      record.owd_count = edge.owd_count;
      record.owd_sum_ns = edge.owd_sum;
      record.window_count = edge.window.count();
      record.peer_epoch = edge.session.epoch();
      if (record.window_count > 0) {
        record.owd_p50_ns = edge.window.quantile(0.5);
        record.owd_p99_ns = edge.window.quantile(0.99);
        record.owd_max_ns = edge.window.max();
        record.owd_min_ns = edge.window.min();
      }
      record.owd_bound_ns = edge.owd_bound;
      record.baseline_ns = edge.latency.baseline();
      record.limit_ns = edge.latency.limit();
      for (int p = 0; p < kMaxPaths; ++p) {
        const PathTally& path = edge.trains.path(p);
        const PathDelays& delays = edge.delays[p];
        PathRecord& r = record.path[p];
        r.expected = path.expected;
        r.lost = path.lost;
        r.state = static_cast<std::uint64_t>(path.verdict.state());
        r.owd_ns = INT64_MIN;
        if (delays.count > 0) {
          std::int64_t sorted[8];
          std::copy(delays.recent, delays.recent + delays.count, sorted);
          std::nth_element(sorted, sorted + delays.count / 2, sorted + delays.count);
          r.owd_ns = sorted[delays.count / 2];
        }
      }
      std::memcpy(to, &record, sizeof(record));
      to += sizeof(record);
    }
  }
  return out;
}

std::vector<Event> Engine::take_events() {
  std::uint64_t count;
  if (read(event_fd_, &count, sizeof(count)) < 0) count = 0;
  std::lock_guard<PriorityMutex> lock(mutex_);
  std::vector<Event> out(std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
  events_.clear();
  return out;
}

}  // namespace fabricpulse
