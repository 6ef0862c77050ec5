#include "receive_path.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "packets/size_packet.h"
#include "path_tracer.h"

namespace fabricpulse {
namespace {

constexpr int kPacketsPerTick = 8'192;  // of one NIC; what is above waits in the kernel, then is dropped

fp_probe_sample sample_of(std::uint32_t slot, std::uint32_t epoch, std::uint8_t direction,
                          const TrainStamps& sent, const TrainStamps& received) {
  fp_probe_sample sample{};
  sample.edge = slot;
  sample.train = sent.train;
  sample.epoch = epoch;
  sample.path = sent.path;
  sample.direction = direction;
  sample.tx_error_ns = sent.error_ns;
  sample.rx_error_ns = received.error_ns;
  sample.flags = static_cast<std::uint8_t>((sent.error_ns != 0 ? FP_PROBE_TX_HARDWARE : 0) |
                                           (received.error_ns != 0 ? FP_PROBE_RX_HARDWARE : 0) |
                                           (sent.path == 0 ? FP_PROBE_MAIN_PATH : 0));
  sample.tx_valid = sent.valid;
  sample.rx_valid = received.valid;
  std::memcpy(sample.tx_ns, sent.ns, sizeof(sample.tx_ns));
  std::memcpy(sample.rx_ns, received.ns, sizeof(sample.rx_ns));
  return sample;
}

}  // namespace

void ReceivePath::drain(Nic& nic, const std::vector<FleetKey>& keys) {
  nic.sockets.receive(
      kPacketsPerTick, [&] { clock_.check(); },
      [&](const Received& received) { take_packet(nic, received, keys); });
}

void ReceivePath::take_packet(Nic& nic, const Received& received, const std::vector<FleetKey>& keys) {
  if (is_trace(received.data, received.size)) return;
  if (is_size_packet(received.data, received.size)) {
    take_size(nic, received, keys);
    return;
  }
  // The MAC takes as long as a cache miss, so what the packet claims is looked up before it is believed.
  fetch_claimed(nic, received);
  Packet packet;
  switch (decode_packet(received.data, received.size, keys, &packet)) {
    case Decoded::kOk:
      break;
    case Decoded::kMalformed:
      ++nic.record.drops[kDropMalformed];
      return;
    case Decoded::kWrongFleet:
      ++nic.record.drops[kDropWrongFleet];
      return;
    case Decoded::kBadMac:
      ++nic.record.drops[kDropBadMac];
      return;
  }
  std::uint32_t slot = 0;
  Edge* edge = admit(nic, received, packet, &slot);
  if (edge == nullptr) return;
  if (edge->session.take_restarted()) {
    edge->session_received = 0;
    edge->trains.restart();
  }
  ++edge->received;
  ++edge->session_received;
  edge->peer_abilities = packet.abilities;
  take_presence(nic, *edge, received, packet);
  const bool by_phc = received.nic_ns != 0 && nic.sockets.stamped_by_phc(received.nic_index);
  const Stamp stamp =
      clock_.stamp(received.kernel_ns, nic.sockets.stamping().phc, by_phc ? received.nic_ns : 0);
  if (stamp.error_ns != 0) nic.nic_stamp_mono = clock_.time().mono;
  edge->trains.receive(packet, stamp.ns, stamp.error_ns, clock_.time().mono);
  take_sent_report(nic, slot, *edge, packet);
  if (packet.rx_epoch != epoch_) return;
  edge->trains.confirm(packet.rx, packet.received);
  take_reception_report(slot, *edge, packet);
}

void ReceivePath::fetch_claimed(const Nic& nic, const Received& received) const {
  std::uint64_t sender = 0;
  std::uint32_t train = 0;
  if (!claims_of_packet(received.data, received.size, &sender, &train)) return;
  const std::uint32_t* found = nic.edges.find(sender);
  if (found != nullptr) table_.edge(*found).fetch(train);
}

// A size probe counts for nothing but its size: only those of the start of the peer that is talked to, of trains that
// are near the last one received.
void ReceivePath::take_size(Nic& nic, const Received& received, const std::vector<FleetKey>& keys) {
  SizePacket packet;
  const bool v6 = received.from.any.sa_family == AF_INET6;
  const Decoded decoded = decode_size_packet(received.data, received.size, v6, keys, &packet);
  if (decoded != Decoded::kOk) {
    ++nic.record.drops[decoded == Decoded::kMalformed    ? kDropMalformed
                       : decoded == Decoded::kWrongFleet ? kDropWrongFleet
                                                         : kDropBadMac];
    return;
  }
  const std::uint32_t* found = nic.edges.find(packet.sender);
  if (packet.receiver != nic.id || found == nullptr || !received.from.same_host(table_.edge(*found).to)) {
    ++nic.record.drops[kDropNotAMember];
    return;
  }
  Edge& edge = table_.edge(*found);
  if (!edge.session.live() || packet.epoch != edge.session.epoch()) {
    ++nic.record.drops[kDropUnconfirmed];
    return;
  }
  if (!edge.limit.admit(settings_.receive_rate, clock_.time().mono)) {
    ++nic.record.drops[kDropRate];
    return;
  }
  edge.trains.receive_size(packet.path, packet.train, packet.size);
}

// The edge that an authentic packet belongs to, if it is one of this NIC, fresh and not too many.
Edge* ReceivePath::admit(Nic& nic, const Received& received, const Packet& packet, std::uint32_t* slot) {
  const std::uint32_t* found = nic.edges.find(packet.sender);
  if (packet.receiver != nic.id || found == nullptr || !received.from.same_host(table_.edge(*found).to)) {
    ++nic.record.drops[kDropNotAMember];
    return nullptr;
  }
  *slot = *found;
  Edge& edge = table_.edge(*slot);
  switch (edge.session.admit(packet, epoch_, edge.trains.last_sent())) {
    case Admitted::kReplay:
      ++nic.record.drops[kDropReplay];
      return nullptr;
    case Admitted::kUnconfirmed:
      ++nic.record.drops[kDropUnconfirmed];
      return nullptr;
    case Admitted::kFresh:
      break;
  }
  // After the session: a flood of recorded packets must not use up what the peer itself may send.
  if (!edge.limit.admit(settings_.receive_rate, clock_.time().mono)) {
    ++nic.record.drops[kDropRate];
    return nullptr;
  }
  return &edge;
}

void ReceivePath::take_presence(Nic& nic, Edge& edge, const Received& received, const Packet& packet) {
  // When it arrived, in unstalled time: by its stamp, but not before the last drain, whatever the wall clock
  // did.
  const TickTime& time = clock_.time();
  std::int64_t age = 0;
  if (received.kernel_ns != 0) {
    age = std::clamp<std::int64_t>(time.real - received.kernel_ns, 0, time.unstalled - time.unstalled_before);
  }
  const std::int64_t at = time.unstalled - age;
  edge.presence.received(at);
  edge.received_mono = time.mono - age;
  if (packet.rx_epoch != epoch_ || packet.rx_ago_us == kNever) return;
  const std::int64_t ago = static_cast<std::int64_t>(packet.rx_ago_us) * 1'000;
  edge.presence.received_by_peer(std::max<std::int64_t>(at - ago, 0));
  edge.received_by_peer_mono = std::max(edge.received_by_peer_mono, edge.received_mono - ago);
  nic.health.exchanged(edge.presence.both(settings_.interval_ns));
}

void ReceivePath::take_sent_report(Nic& nic, std::uint32_t slot, Edge& edge, const Packet& packet) {
  const TrainStamps& sent = packet.sent;
  if (sent.train == packet.train) {
    check_at_once(edge, packet);
    return;
  }
  const ReceivedTrain* found = edge.trains.match_sent(sent);
  if (found == nullptr) return;
  const ReceivedTrain& received = *found;
  fp_probe_sample sample = sample_of(slot, packet.epoch, FP_PROBE_INBOUND, sent, received);
  const bool usual = edge.delays.usual_stamps(sent.error_ns != 0, received.error_ns != 0);
  std::int64_t back = 0;
  if (usual && sent.path == 0 && smallest_difference(sent, received, &back) &&
      edge.delays.round_trip().back(back, received.ns[__builtin_ctz(received.valid)])) {
    edge.delays.add_round_trip();
  }

  if (fleet_clock_.ok() && packet.correction_bound_ns != kNever && usual) {
    const Delay delay = inbound(packet, received);
    if (delay.plausible()) {
      sample.flags |= FP_PROBE_FLEET_VALID;
      sample.owd_ns = delay.owd_ns;
      sample.owd_bound_ns = delay.bound_ns;
      // The sum of a histogram may not fall: there a delay below zero, an error of the clocks, counts as 0.
      nic.record.owd.add(kOwdBuckets, std::max<std::int64_t>(delay.owd_ns, 0));
      edge.delays.add(sent.path, delay.owd_ns, delay.bound_ns);
      if (!received.checked) check(edge, Direction::kInbound, sent.path == 0, delay);
    }
  }
  if (ring_ != nullptr) ring_->write(sample);
}

// A train that brings the stamp of one of its packets: clocks are compared an interval sooner than by its report. For all
// else the report counts, which has both packets of the pair.
void ReceivePath::check_at_once(Edge& edge, const Packet& packet) {
  if (!fleet_clock_.ok() || packet.correction_bound_ns == kNever || packet.sent.error_ns != 0 ||
      !edge.delays.by_kernels()) {
    return;
  }
  const ReceivedTrain* received = edge.trains.match_sent_at_once(packet.sent);
  if (received == nullptr) return;
  const Delay delay = inbound(packet, *received);
  if (delay.plausible()) check(edge, Direction::kInbound, packet.sent.path == 0, delay);
}

// Of the faster one of the coded pair: the warm-up packet pays for cold caches on the way.
ReceivePath::Delay ReceivePath::inbound(const Packet& packet, const ReceivedTrain& received) const {
  const TrainStamps& sent = packet.sent;
  Delay delay;
  const auto both = static_cast<std::uint8_t>(sent.valid & received.valid);
  for (int i = 1; i < kTrain; ++i) {
    if (!(both >> i & 1)) continue;
    const fp_fleet_time rx = fleet_clock_.convert(received.ns[i]);
    const auto tx = static_cast<std::int64_t>(static_cast<std::uint64_t>(sent.ns[i]) +
                                              static_cast<std::uint64_t>(packet.correction_ns));
    std::int64_t owd;
    if (__builtin_sub_overflow(rx.fleet_ns, tx, &owd) || owd >= delay.owd_ns) continue;
    delay = {owd, rx.bound_ns + packet.correction_bound_ns, received.ns[i]};
  }
  delay.bound_ns += sent.error_ns + received.error_ns;
  return delay;
}

void ReceivePath::take_reception_report(std::uint32_t slot, Edge& edge, const Packet& packet) {
  const SentTrain* sent = edge.trains.match_reception(packet.rx);
  if (sent == nullptr) return;
  std::int64_t out = 0;
  if (sent->path == 0 && smallest_difference(*sent, packet.rx, &out))
    edge.delays.round_trip().out(out, sent->ns[__builtin_ctz(sent->valid)]);
  check_outbound(edge, packet, *sent);
  if (ring_ != nullptr) ring_->write(sample_of(slot, epoch_, FP_PROBE_OUTBOUND, *sent, packet.rx));
}

// The train that the peer received, by its receive stamps and its correction at each of them.
void ReceivePath::check_outbound(Edge& edge, const Packet& packet, const SentTrain& sent) {
  const TrainStamps& received = packet.rx;
  if (!fleet_clock_.ok() || packet.correction_bound_ns == kNever) return;
  Delay delay;
  const auto both = static_cast<std::uint8_t>(sent.valid & received.valid);
  for (int i = 1; i < kTrain; ++i) {
    if (!(both >> i & 1)) continue;
    const fp_fleet_time tx = fleet_clock_.convert(sent.ns[i]);
    const auto rx =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(received.ns[i]) +
                                  static_cast<std::uint64_t>(correction_at(packet, received.ns[i])));
    std::int64_t owd;
    if (__builtin_sub_overflow(rx, tx.fleet_ns, &owd) || owd >= delay.owd_ns) continue;
    delay = {owd, tx.bound_ns + packet.correction_bound_ns, sent.ns[i]};
  }
  delay.bound_ns += sent.error_ns + received.error_ns;
  if (delay.plausible()) check(edge, Direction::kOutbound, sent.path == 0, delay);
}

void ReceivePath::check(Edge& edge, Direction direction, bool main_path, const Delay& delay) {
  if (edge.causality.add(direction, main_path, delay.owd_ns, delay.bound_ns, delay.at_ns)) ++early_;
  causality_.received(edge.peer_host, edge.causality, clock_.time().mono);
  // How fast the correction of a peer changes that does not tell it is not known, and 20 ppm are 0.4 us an interval: in one
  // direction alone a clock does not show. Such a peer has no say, but is there: another one is not the only one.
  const std::int64_t now = clock_.time().mono;
  if ((edge.peer_abilities & kTellsSlope) == 0) {
    shift_.received(edge.peer_host, 0, kUnlimited, now);
    return;
  }
  const bool outbound = direction == Direction::kOutbound;
  if (main_path) {
    edge.shift.add(outbound, delay.owd_ns, delay.bound_ns, delay.at_ns, now);
  } else {
    edge.shift.add_elsewhere(outbound, delay.owd_ns, delay.bound_ns, now);
  }
  shift_.received(edge.peer_host, edge.shift.shifted(), edge.shift.limit_ns(), now);
}

bool ReceivePath::contradicted() {
  if (!causality_.own_clock(clock_.time().mono)) return false;
  causality_.clear();
  for (const std::uint32_t slot : table_.slots()) table_.edge(slot).causality.clear();
  return true;
}

std::int64_t ReceivePath::hidden_jump_ns(std::int64_t stamp_ns) {
  hidden_.begin();
  for (const std::uint32_t slot : table_.slots()) {
    const Edge& edge = table_.edge(slot);
    hidden_.edge(edge.peer_host, edge.causality.hidden_ns(Direction::kInbound, stamp_ns),
                 edge.causality.hidden_ns(Direction::kOutbound, stamp_ns));
  }
  return hidden_.ns();
}

}  // namespace fabricpulse
