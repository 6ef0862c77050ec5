#include "send_path.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "clocks/clock_ns.h"
#include "evidence/size_probes.h"
#include "packets/size_packet.h"

namespace fabricpulse {
namespace {

constexpr std::int64_t kLeastSpan = 1'000'000;
constexpr std::uint32_t kNumbers = 256;      // edges begin to count trains so far apart, at most: as a sweep
constexpr std::size_t kTrainsPerBatch = 10;  // keeps the packets of one train close together

}  // namespace

SendPath::SendPath(const Settings& settings, EdgeTable& table, const FleetClockReader& fleet_clock,
                   TickClock& clock, std::int64_t period_ticks, std::uint32_t epoch)
    : settings_(settings),
      table_(table),
      fleet_clock_(fleet_clock),
      clock_(clock),
      period_ticks_(period_ticks),
      epoch_(epoch),
      random_(std::random_device{}()) {}

void SendPath::schedule(Edge& edge, std::uint64_t tick) {
  edge.period_start = tick + 1 + random_() % static_cast<std::uint64_t>(period_ticks_);
  edge.next_due = edge.period_start;
  // Edges leave the main path by the number of a train: all at once would show nothing of clocks for an interval. And a
  // peer that did not notice that an edge was gone for a while takes what it has seen before for a replay.
  const std::uint64_t sent = tick / static_cast<std::uint64_t>(period_ticks_) + 1;
  const auto last = static_cast<std::uint32_t>(sent + edge.peer_id % kNumbers);
  edge.trains.number_from(last);
  edge.session.begin(last);
}

std::int64_t SendPath::next_tick_in() {
  const auto jitter =
      static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(settings_.tick_ns / 2));
  return settings_.tick_ns * 3 / 4 + jitter;
}

void SendPath::send_due(std::uint64_t tick, const FleetKey& key) {
  const auto period = static_cast<std::uint64_t>(period_ticks_);
  for (const std::uint32_t slot : table_.slots()) {
    Edge& edge = table_.edge(slot);
    if (tick < edge.next_due) continue;
    edge.period_start += period;
    edge.next_due = edge.period_start + random_() % (period / 4 + 1);
    if (!table_.nics()[edge.nic].sockets.is_open()) continue;
    due_.push_back(slot);
  }
  if (due_.empty()) return;
  // By NIC, so that the packets of one socket go out in one system call. Within a NIC by lot: the first
  // packet of a system call meets a cold kernel and is some 240 ns slower on its way through a veth than
  // those behind it. In a fixed order that would fall on one peer, of every host the same, and look like a
  // wrong clock there.
  std::shuffle(due_.begin(), due_.end(), random_);
  std::sort(due_.begin(), due_.end(),
            [this](std::uint32_t a, std::uint32_t b) { return table_.edge(a).nic < table_.edge(b).nic; });
  for (std::size_t from = 0; from < due_.size(); from += kTrainsPerBatch) {
    send_trains(&due_[from], std::min(due_.size() - from, kTrainsPerBatch), key);
  }
  due_.clear();
}

// Sends one train on each of `count` edges, all first packets, then all second, then all third.
void SendPath::send_trains(const std::uint32_t* slots, std::size_t count, const FleetKey& key) {
  std::uint8_t data[kTrainsPerBatch][kTrain][kPacketSize];
  bool sent_any[kTrainsPerBatch] = {};
  std::uint16_t sizes[kTrainsPerBatch] = {};  // of the size probe that follows, 0 = none
  std::uint8_t paths[kTrainsPerBatch] = {};
  // NIC and source port of each train, and the trains in the order of their sockets.
  std::pair<std::uint32_t, std::uint8_t> ports[kTrainsPerBatch];
  std::size_t order[kTrainsPerBatch];
  Packet packets[kTrainsPerBatch];
  const auto fill = [&](std::size_t k, int position) {
    fill_packet(table_.edge(slots[k]), &packets[k], position);
    encode_packet(packets[k], key, data[k][position]);
  };
  const std::int64_t before_kernel_ns = clock_ns(CLOCK_REALTIME);
  const std::int64_t before_ns = fp_raw_clock_now() + clock_.stamp_epoch_ns();
  for (std::size_t k = 0; k < count; ++k) {
    Edge& edge = table_.edge(slots[k]);
    if (k + 1 < count) table_.edge(slots[k + 1]).trains.fetch_next_sent();
    Packet& packet = packets[k];
    packet = Packet();
    packet.epoch = epoch_;
    packet.sender = table_.nics()[edge.nic].id;
    packet.receiver = edge.peer_id;
    packet.paths = settings_.paths;
    packet.sweep = edge.trains.sweep(settings_.sweep);
    packet.train = edge.trains.begin(packet.paths, packet.sweep, before_kernel_ns, before_ns);
    packet.path = path_of_train(packet.train, packet.paths, packet.sweep);
    packet.mtu = table_.nics()[edge.nic].sockets.mtu();
    paths[k] = packet.path;
    sizes[k] = size_after_train(packet.train, packet.paths, packet.sweep, packet.mtu);
    for (int position = 0; position < kTrain - 1; ++position) fill(k, position);
    ports[k] = {edge.nic, packet.path};
    order[k] = k;
  }
  std::sort(order, order + count,
            [&](std::size_t a, std::size_t b) { return std::pair(ports[a], a) < std::pair(ports[b], b); });

  std::int64_t last_start = 0;
  for (int position = 0; position < kTrain; ++position) {
    if (position == kTrain - 1) {
      // Within the pause between two packets, as far as it goes: of the ports of these trains alone, as a driver that
      // stamps late would have all others read for nothing. Stamps of a NIC wait until its clock has been read.
      for (std::size_t k = 0; k < count; ++k) {
        const auto [nic_index, path] = ports[order[k]];
        Nic& nic = table_.nics()[nic_index];
        const bool next = k == 0 || ports[order[k]] != ports[order[k - 1]];
        if (next && nic.sockets.stamping().phc < 0) drain_stamps(nic, path);
      }
      clock_.check();
      for (std::size_t k = 0; k < count; ++k) fill(k, position);
    }
    std::int64_t start = clock_ns(CLOCK_MONOTONIC);
    while (position > 0 && start - last_start < settings_.spacing_ns) start = clock_ns(CLOCK_MONOTONIC);
    last_start = start;
    for (std::size_t from = 0; from < count;) {
      const auto [nic_index, path] = ports[order[from]];
      Nic& nic = table_.nics()[nic_index];
      outgoing_.clear();
      std::size_t to = from;
      for (; to < count && ports[order[to]] == ports[order[from]]; ++to) {
        const std::size_t k = order[to];
        outgoing_.push_back({data[k][position], kPacketSize, &table_.edge(slots[k]).to, position != 0, 0, 0});
      }
      nic.sockets.send(path, outgoing_);
      for (std::size_t i = 0; i < outgoing_.size(); ++i) {
        const std::size_t k = order[from + i];
        Edge& edge = table_.edge(slots[k]);
        if (outgoing_[i].error != 0) {
          ++edge.send_errors;
          if (is_link_error(outgoing_[i].error)) nic.sockets.check_soon();
          continue;
        }
        ++edge.sent;
        sent_any[k] = true;
        if (!outgoing_[i].stamp) continue;
        nic.sockets.expect_stamp(path, outgoing_[i].id,
                                 {slots[k], edge.trains.last_sent(), static_cast<std::uint8_t>(position)});
      }
      from = to;
    }
  }
  for (std::size_t k = 0; k < count; ++k) {
    Edge& edge = table_.edge(slots[k]);
    if (sent_any[k]) {
      edge.trains.finish(edge.sent);
      if (sizes[k] != 0) send_size(edge, sizes[k], paths[k], key);
    } else {
      edge.trains.abandon();
    }
  }
}

void SendPath::send_size(Edge& edge, std::uint16_t size, std::uint8_t path, const FleetKey& key) {
  static thread_local std::uint8_t data[kMostMtu];  // zeros behind the header
  Nic& nic = table_.nics()[edge.nic];
  const std::size_t headers = edge.to.any.sa_family == AF_INET6 ? kHeaders6 : kHeaders4;
  if (size < headers + kSizePacketHeader) return;
  encode_size_packet({epoch_, nic.id, edge.peer_id, edge.trains.last_sent(), path, size}, key, data);
  outgoing_.clear();
  outgoing_.push_back({data, size - headers, &edge.to, false, 0, 0});
  // One that the device refuses: its MTU has just been lowered, and is read again in a moment.
  nic.sockets.send(path, outgoing_);
}

void SendPath::fill_packet(Edge& edge, Packet* packet, int position) const {
  const std::int64_t now_mono = clock_.time().mono;
  packet->position = static_cast<std::uint8_t>(position);
  packet->sent = edge.trains.sent_report(position);
  if (position == kTrain - 1 && !clock_.in_doubt() && (edge.peer_abilities & kTakesStampsAtOnce) != 0) {
    const TrainStamps now = edge.trains.sent_report_at_once();
    if (now.valid != 0) packet->sent = now;
  }
  packet->correction_bound_ns = kNever;
  packet->correction_ns = packet->correction_slope = 0;
  if (fleet_clock_.ok() && packet->sent.valid != 0) {
    const std::int64_t base = packet->sent.ns[__builtin_ctz(packet->sent.valid)];
    const fp_fleet_time t = fleet_clock_.convert(base);
    if (t.bound_ns >= 0 && t.bound_ns < kNever) {
      packet->correction_ns = t.fleet_ns - base;
      packet->correction_bound_ns = static_cast<std::uint32_t>(t.bound_ns);
    }
  }
  packet->rx = TrainStamps{};
  packet->rx_epoch = 0;
  packet->rx_ago_us = kNever;
  packet->received = edge.session_received;
  std::uint32_t candidate_epoch = 0, candidate_train = 0;
  const bool candidate = edge.session.candidate(edge.trains.last_sent(), &candidate_epoch, &candidate_train);
  if (candidate && (!edge.session.live() || position == 1)) {
    packet->rx_epoch = candidate_epoch;
    packet->rx.train = candidate_train;
    return;
  }
  if (!edge.session.live()) return;
  packet->rx_epoch = edge.session.epoch();
  const std::int64_t ago = std::max<std::int64_t>(now_mono - edge.received_mono, 0) / 1'000;
  packet->rx_ago_us = ago < kNever ? static_cast<std::uint32_t>(ago) : kNever - 1;
  packet->rx = edge.trains.reception_report(position, now_mono);
  packet->correction_slope = slope(*packet);
}

// Over less than kLeastSpan whole nanoseconds would look like a slope.
std::int16_t SendPath::slope(const Packet& packet) const {
  if (packet.correction_bound_ns == kNever || packet.rx.valid == 0) return 0;
  const std::int64_t base = packet.sent.ns[__builtin_ctz(packet.sent.valid)];
  std::int64_t span = packet.rx.ns[__builtin_ctz(packet.rx.valid)] - base;
  if (span > -kLeastSpan && span < kLeastSpan) span = kLeastSpan;
  const std::int64_t then = fleet_clock_.convert(base + span).fleet_ns - (base + span);
  return correction_slope(then - packet.correction_ns, span);
}

void SendPath::drain_stamps(Nic& nic) {
  const int phc = nic.sockets.sent_by_phc();
  nic.sockets.drain_stamps([this, phc, &nic](const NicSockets::StampOwner& owner, const TxStamp& stamp) {
    take_stamp(nic, phc, owner, stamp);
  });
}

void SendPath::drain_stamps(Nic& nic, std::uint8_t path) {
  const int phc = nic.sockets.sent_by_phc();
  const auto take = [this, phc, &nic](const NicSockets::StampOwner& owner, const TxStamp& stamp) {
    take_stamp(nic, phc, owner, stamp);
  };
  nic.sockets.drain_stamps(path, take);
}

void SendPath::take_stamp(Nic& nic, int phc, const NicSockets::StampOwner& owner, const TxStamp& stamp) {
  Edge* edge = table_.find(owner.edge);
  if (edge == nullptr) return;
  const Stamp best = clock_.stamp(stamp.kernel_ns, phc, stamp.nic_ns);
  if (best.ns == 0) return;
  const bool taken =
      edge->trains.stamp_sent(owner.train, owner.position, stamp.kernel_ns, best.ns, best.error_ns);
  if (taken && best.error_ns != 0) nic.nic_stamp_mono = clock_.time().mono;
}

void SendPath::forget_stamps() {
  for (const std::uint32_t slot : table_.slots()) {
    table_.edge(slot).trains.forget_stamps();
    table_.edge(slot).delays.round_trip().forget();
  }
}

}  // namespace fabricpulse
