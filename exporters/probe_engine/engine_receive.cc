// The engine: the way of a packet in, from the socket to the train tables, delays and samples.
#include <algorithm>
#include <climits>
#include <cstring>

#include "engine.h"

namespace fabricpulse {
namespace {

constexpr int kPacketsPerTick = 8'192;  // of one NIC; what is above waits in the kernel, then is dropped
constexpr std::int64_t kPlausibleOwd = 10'000'000'000;  // ns; beyond it a clock is wrong, not a path slow

fp_probe_sample sample_of(std::uint32_t slot, std::uint32_t epoch, std::uint8_t direction,
                          const TrainStamps& sent, const TrainStamps& heard) {
  fp_probe_sample sample{};
  sample.edge = slot;
  sample.train = sent.train;
  sample.epoch = epoch;
  sample.path = sent.path;
  sample.direction = direction;
  sample.flags = static_cast<std::uint8_t>((sent.hardware ? FP_PROBE_TX_HARDWARE : 0) |
                                           (heard.hardware ? FP_PROBE_RX_HARDWARE : 0) |
                                           (sent.path == 0 ? FP_PROBE_MAIN_PATH : 0));
  sample.tx_valid = sent.valid;
  sample.rx_valid = heard.valid;
  std::memcpy(sample.tx_ns, sent.ns, sizeof(sample.tx_ns));
  std::memcpy(sample.rx_ns, heard.ns, sizeof(sample.rx_ns));
  return sample;
}

}  // namespace

void Engine::drain_packets(std::uint32_t index) {
  Nic& nic = nics_[index];
  nic.ports[0].socket.receive(kPacketsPerTick,
                              [&](const Received& received) { take_packet(index, received); });
  nic.record.overflows = nic.overflows_closed + nic.ports[0].socket.overflows();
}

void Engine::take_packet(std::uint32_t nic_index, const Received& received) {
  Nic& nic = nics_[nic_index];
  Packet packet;
  switch (decode_packet(received.data, received.size, keys_, &packet)) {
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
  const auto found = nic.edges.find(packet.sender);
  if (packet.receiver != nic.id || found == nic.edges.end() ||
      !received.from.same_host(edges_[found->second]->to)) {
    ++nic.record.drops[kDropNotAMember];
    return;
  }
  const std::uint32_t slot = found->second;
  Edge& edge = *edges_[slot];
  switch (edge.session.admit(packet, epoch_, edge.trains.last_sent())) {
    case Admitted::kReplay:
      ++nic.record.drops[kDropReplay];
      return;
    case Admitted::kUnconfirmed:
      ++nic.record.drops[kDropUnconfirmed];
      return;
    case Admitted::kFresh:
      break;
  }
  // After the session: a flood of recorded packets must not use up what the peer itself may send.
  edge.tokens =
      std::min(settings_.receive_rate, edge.tokens + static_cast<double>(tick_mono_ - edge.tokens_at) * 1e-9 *
                                                         settings_.receive_rate);
  edge.tokens_at = tick_mono_;
  if (edge.tokens < 1) {
    ++nic.record.drops[kDropRate];
    return;
  }
  edge.tokens -= 1;
  if (edge.session.take_restarted()) {
    edge.session_received = 0;
    edge.trains.restart();
  }
  ++edge.received;
  ++edge.session_received;

  // When it arrived, in attended time: by its stamp, but not before the last drain, whatever the wall clock
  // did.
  std::int64_t age = 0;
  if (received.kernel_ns != 0 && !received.hardware) {
    age = std::clamp<std::int64_t>(tick_real_ - received.kernel_ns, 0, attended_.now() - attended_before_);
  }
  const std::int64_t at = attended_.now() - age;
  edge.presence.heard(at);
  edge.heard_mono = tick_mono_ - age;
  if (packet.heard_epoch == epoch_ && packet.heard_ago_us != kNever) {
    const std::int64_t ago = static_cast<std::int64_t>(packet.heard_ago_us) * 1'000;
    edge.presence.heard_by(std::max<std::int64_t>(at - ago, 0));
    edge.heard_by_mono = std::max(edge.heard_by_mono, edge.heard_mono - ago);
    nic.verdict.exchanged(edge.presence.both(settings_.interval_ns));
  }
  std::int64_t host_ns = received.kernel_ns;
  if (host_ns != 0 && !received.hardware) host_ns = fp_virtual_clock_apply(virtual_clock_, host_ns);
  edge.trains.hear(packet, host_ns, received.hardware, tick_mono_);
  take_sent_report(slot, edge, packet);
  if (packet.heard_epoch == epoch_) take_reception_report(slot, edge, packet);
}

void Engine::take_sent_report(std::uint32_t slot, Edge& edge, const Packet& packet) {
  const TrainStamps& sent = packet.sent;
  const HeardTrain* found = edge.trains.match_sent(sent);
  if (found == nullptr) return;
  const HeardTrain& heard = *found;
  fp_probe_sample sample = sample_of(slot, packet.epoch, FP_PROBE_INBOUND, sent, heard);

  if (clock_ok_ && packet.correction_bound_ns != kNever && !sent.hardware && !heard.hardware) {
    std::int64_t best = INT64_MAX, bound = 0;
    const auto both = static_cast<std::uint8_t>(sent.valid & heard.valid);
    // The coded pair: the warm-up packet pays for cold caches on the way.
    for (int i = 1; i < kTrain; ++i) {
      if (!(both >> i & 1)) continue;
      const fp_fleet_time rx = fp_clock_convert(&clock_, heard.ns[i]);
      const auto tx = static_cast<std::int64_t>(static_cast<std::uint64_t>(sent.ns[i]) +
                                                static_cast<std::uint64_t>(packet.correction_ns));
      std::int64_t owd;
      if (__builtin_sub_overflow(rx.fleet_ns, tx, &owd)) continue;
      if (owd < best) best = owd, bound = rx.bound_ns + packet.correction_bound_ns;
    }
    if (best > -kPlausibleOwd && best < kPlausibleOwd) {
      sample.flags |= FP_PROBE_FLEET_VALID;
      sample.owd_ns = best;
      sample.owd_bound_ns = bound;
      // A delay that comes out negative is a small one seen through the clock error.
      const std::int64_t shown = std::max<std::int64_t>(best, 0);
      nics_[edge.nic].record.owd.add(kOwdBuckets, shown);
      if (sent.path == 0) {
        edge.window.add(shown);
        ++edge.owd_count;
        edge.owd_sum += shown;
        edge.owd_bound = bound;
      }
      PathDelays& delays = edge.delays[sent.path];
      delays.recent[delays.next] = shown;
      delays.next = static_cast<std::uint8_t>((delays.next + 1) % 8);
      if (delays.count < 8) ++delays.count;
    }
  }
  if (ring_) ring_->write(sample);
}

void Engine::take_reception_report(std::uint32_t slot, Edge& edge, const Packet& packet) {
  const SentTrain* sent = edge.trains.match_heard(packet.heard);
  if (sent == nullptr || !ring_) return;
  ring_->write(sample_of(slot, epoch_, FP_PROBE_OUTBOUND, *sent, packet.heard));
}

}  // namespace fabricpulse
