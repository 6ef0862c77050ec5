// The engine: the way of a packet out, from the schedule to its TX stamp.
#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include "clock_ns.h"
#include "engine.h"

namespace fabricpulse {
namespace {

constexpr int kStampPatienceTicks = 50;      // after that a TX stamp is lost
constexpr std::size_t kTrainsPerBatch = 10;  // keeps the packets of one train close together

}  // namespace

void Engine::send_due() {
  const auto period = static_cast<std::uint64_t>(period_ticks_);
  const std::uint64_t tick = header_.ticks;
  for (const std::uint32_t slot : order_) {
    Edge& edge = *edges_[slot];
    if (tick < edge.next_due) continue;
    edge.period_start += period;
    edge.next_due = edge.period_start + random_() % (period / 4 + 1);
    if (!nics_[edge.nic].open) continue;
    due_.push_back(slot);
  }
  if (due_.empty()) return;
  // By NIC, so that the packets of one socket go out in one system call. Within a NIC by lot: the first
  // packet of a system call meets a cold kernel and is some 240 ns slower on its way through a veth than
  // those behind it. In a fixed order that would fall on one peer, of every host the same, and look like a
  // wrong clock there.
  std::shuffle(due_.begin(), due_.end(), random_);
  std::sort(due_.begin(), due_.end(),
            [this](std::uint32_t a, std::uint32_t b) { return edges_[a]->nic < edges_[b]->nic; });
  for (std::size_t from = 0; from < due_.size(); from += kTrainsPerBatch) {
    send_trains(&due_[from], std::min(due_.size() - from, kTrainsPerBatch));
  }
  due_.clear();
}

// Sends one train on each of `count` edges, all first packets, then all second, then all third.
void Engine::send_trains(const std::uint32_t* slots, std::size_t count) {
  std::uint8_t data[kTrainsPerBatch][kTrain][kPacketSize];
  bool sent_any[kTrainsPerBatch] = {};
  // The socket of each train, and the trains in the order of their sockets.
  Port* ports[kTrainsPerBatch];
  std::size_t order[kTrainsPerBatch];
  for (std::size_t k = 0; k < count; ++k) {
    Edge& edge = *edges_[slots[k]];
    Nic& nic = nics_[edge.nic];
    Packet packet;
    packet.epoch = epoch_;
    packet.sender = nic.id;
    packet.receiver = edge.peer_id;
    packet.train = edge.trains.begin(settings_.paths, settings_.sweep, clock_ns(CLOCK_REALTIME));
    packet.path = path_of_train(packet.train, settings_.paths, settings_.sweep);
    packet.paths = settings_.paths;
    packet.sweep = settings_.sweep;
    for (int position = 0; position < kTrain; ++position) {
      fill_packet(edge, &packet, position, tick_mono_);
      encode_packet(packet, keys_[0], data[k][position]);
    }
    ports[k] = &nic.ports[packet.path];
    order[k] = k;
  }
  std::sort(order, order + count,
            [&](std::size_t a, std::size_t b) { return std::pair(ports[a], a) < std::pair(ports[b], b); });

  std::int64_t last_start = 0;
  for (int position = 0; position < kTrain; ++position) {
    std::int64_t start = clock_ns(CLOCK_MONOTONIC);
    while (position > 0 && start - last_start < settings_.spacing_ns) start = clock_ns(CLOCK_MONOTONIC);
    last_start = start;
    for (std::size_t from = 0; from < count;) {
      Port& port = *ports[order[from]];
      outgoing_.clear();
      std::size_t to = from;
      for (; to < count && ports[order[to]] == &port; ++to) {
        const std::size_t k = order[to];
        outgoing_.push_back({data[k][position], kPacketSize, &edges_[slots[k]]->to, position != 0, 0, 0});
      }
      port.socket.send(outgoing_);
      for (std::size_t i = 0; i < outgoing_.size(); ++i) {
        const std::size_t k = order[from + i];
        Edge& edge = *edges_[slots[k]];
        Nic& nic = nics_[edge.nic];
        if (outgoing_[i].error != 0) {
          ++edge.send_errors;
          if (is_link_error(outgoing_[i].error)) nic.next_check = 0;
          continue;
        }
        ++edge.sent;
        sent_any[k] = true;
        if (!outgoing_[i].stamp) continue;
        PendingStamp& pending = port.pending[outgoing_[i].id % kPendingStamps];
        if (pending.waiting) {
          --port.waiting;
          ++nic.record.stamps_lost;
        }
        pending = {outgoing_[i].id, slots[k], edge.trains.last_sent(), static_cast<std::uint8_t>(position),
                   true};
        ++port.waiting;
      }
      from = to;
    }
  }
  for (std::size_t k = 0; k < count; ++k) {
    if (!sent_any[k]) edges_[slots[k]]->trains.abandon();
  }
}

void Engine::fill_packet(Edge& edge, Packet* packet, int position, std::int64_t now_mono) {
  packet->position = static_cast<std::uint8_t>(position);
  packet->sent = edge.trains.sent_report(position);
  packet->correction_bound_ns = kNever;
  packet->correction_ns = 0;
  if (clock_ok_ && packet->sent.valid != 0 && !packet->sent.hardware) {
    const std::int64_t base = packet->sent.ns[__builtin_ctz(packet->sent.valid)];
    const fp_fleet_time t = fp_clock_convert(&clock_, base);
    if (t.bound_ns >= 0 && t.bound_ns < kNever) {
      packet->correction_ns = t.fleet_ns - base;
      packet->correction_bound_ns = static_cast<std::uint32_t>(t.bound_ns);
    }
  }
  packet->heard = TrainStamps{};
  packet->heard_epoch = 0;
  packet->heard_ago_us = kNever;
  packet->received = edge.session_received;
  std::uint32_t candidate_epoch = 0, candidate_train = 0;
  const bool candidate = edge.session.candidate(edge.trains.last_sent(), &candidate_epoch, &candidate_train);
  if (candidate && (!edge.session.live() || position == 1)) {
    packet->heard_epoch = candidate_epoch;
    packet->heard.train = candidate_train;
    return;
  }
  if (!edge.session.live()) return;
  packet->heard_epoch = edge.session.epoch();
  const std::int64_t ago = std::max<std::int64_t>(now_mono - edge.heard_mono, 0) / 1'000;
  packet->heard_ago_us = ago < kNever ? static_cast<std::uint32_t>(ago) : kNever - 1;
  packet->heard = edge.trains.heard_report(position, now_mono);
}

void Engine::drain_stamps(Nic& nic) {
  for (Port& port : nic.ports) {
    if (port.waiting == 0) continue;
    const int before = port.waiting;
    port.socket.tx_stamps([&](const TxStamp& stamp) {
      PendingStamp& p = port.pending[stamp.id % kPendingStamps];
      if (p.id != stamp.id || !(p.waiting || p.hardware)) return;
      if (p.waiting) --port.waiting;
      p.waiting = false;
      p.hardware = stamp.hardware;
      Edge* edge = edges_[p.edge].get();
      if (edge == nullptr) return;
      const std::int64_t host_ns =
          stamp.hardware ? stamp.kernel_ns : fp_virtual_clock_apply(virtual_clock_, stamp.kernel_ns);
      edge->trains.stamp_sent(p.train, p.position, stamp.kernel_ns, host_ns, stamp.hardware);
    });
    if (port.waiting < before) port.idle = 0;
  }
}

// Once a tick: gives up the stamps that will not come any more.
void Engine::give_up_stamps(Nic& nic) {
  for (Port& port : nic.ports) {
    if (port.waiting > 0 && (++port.idle > kStampPatienceTicks || port.socket.numbering_uncertain())) {
      nic.record.stamps_lost += static_cast<std::uint64_t>(port.waiting);
      for (PendingStamp& p : port.pending) p.waiting = p.hardware = false;
      port.waiting = 0;
    }
    if (port.waiting == 0) port.idle = 0;
    if (port.socket.numbering_uncertain()) port.socket.restart_numbering();
  }
}

}  // namespace fabricpulse
