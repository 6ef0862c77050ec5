#include "packets/wire.h"

#include <algorithm>
#include <limits>

#include "packets/bytes.h"

namespace fabricpulse {
namespace {

enum Offset : std::size_t {
  kMagic = 0,
  kVersion = 4,
  kPosition = 5,
  kPath = 6,
  kPaths = 7,
  kKeyId = 8,
  kEpoch = 12,
  kSender = 16,
  kReceiver = 24,
  kTrainNumber = 32,
  kSweep = 36,
  kTxFlags = 37,
  kRxFlags = 38,
  kAbilities = 39,
  kSent = 40,
  kMtu = 46,
  kSentStamps = 48,
  kCorrection = 64,
  kCorrectionBound = 72,
  kRxTrain = 76,
  kRxEpoch = 80,
  kRxPath = 84,
  kSlope = 86,
  kRxStamps = 88,
  kRxAgo = 104,
  kReceived = 108,
  kMac = 112,
};
constexpr std::uint8_t kHardware = 1;
constexpr std::int64_t kErrorUnitNs = 64;
constexpr std::int64_t kPpb = 1'000'000'000;
constexpr std::int64_t kMostSlopeNs = 10'000'000'000, kMostSlope = 32'767;
constexpr std::uint8_t kAllValid = (1 << kTrain) - 1;

std::uint8_t flags_of(const TrainStamps& stamps) {
  if (stamps.error_ns == 0) return 0;
  const std::int64_t units = (stamps.error_ns + kErrorUnitNs - 1) / kErrorUnitNs;
  return static_cast<std::uint8_t>(units << 1 | kHardware);
}

// After the stamps' valid bits.
void take_flags(std::uint8_t flags, TrainStamps* stamps) {
  stamps->error_ns = static_cast<std::uint16_t>((flags >> 1) * kErrorUnitNs);
  if (flags == kHardware) stamps->valid = 0;
}

int first_valid(std::uint8_t valid) {
  for (int i = 0; i < kTrain; ++i) {
    if (valid >> i & 1) return i;
  }
  return -1;
}

// Base and two deltas. A train whose stamps lie too far apart for a delta (a clock step between them) loses
// those.
void put_stamps(std::uint8_t* out, std::size_t offset, std::size_t valid_offset, const TrainStamps& stamps) {
  std::uint8_t valid = stamps.valid;
  const int base = first_valid(valid);
  if (base >= 0) {
    put(out, offset, stamps.ns[base]);
    for (int i = 1; i < kTrain; ++i) {
      if (!(valid >> i & 1)) continue;
      const std::int64_t delta = stamps.ns[i] - stamps.ns[base];
      if (delta < std::numeric_limits<std::int32_t>::min() ||
          delta > std::numeric_limits<std::int32_t>::max()) {
        valid = static_cast<std::uint8_t>(valid & ~(1 << i));
      } else {
        put(out, offset + 4 + 4 * static_cast<std::size_t>(i), static_cast<std::int32_t>(delta));
      }
    }
  }
  out[valid_offset] = valid;
}

void get_stamps(const std::uint8_t* data, std::size_t offset, TrainStamps* stamps) {
  const int base = first_valid(stamps->valid);
  if (base < 0) return;
  const auto base_ns = get<std::int64_t>(data, offset);
  for (int i = base; i < kTrain; ++i) {
    if (!(stamps->valid >> i & 1)) continue;
    const std::int64_t delta =
        i == base ? 0 : get<std::int32_t>(data, offset + 4 + 4 * static_cast<std::size_t>(i));
    // Wraps instead of overflowing: a member with a broken clock is no reason for undefined behaviour.
    stamps->ns[i] =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(base_ns) + static_cast<std::uint64_t>(delta));
  }
}

}  // namespace

FleetKey make_fleet_key(const SipKey& key) {
  static const std::uint8_t label[] = "fabricpulse probe key id";
  return {static_cast<std::uint32_t>(siphash24(key, label, sizeof(label) - 1)), key};
}

void encode_packet(const Packet& packet, const FleetKey& key, std::uint8_t out[kPacketSize]) {
  std::memset(out, 0, kPacketSize);
  put(out, kMagic, kWireMagic);
  out[kVersion] = kWireVersion;
  out[kPosition] = packet.position;
  out[kPath] = packet.path;
  out[kPaths] = packet.paths;
  put(out, kKeyId, key.id);
  put(out, kEpoch, packet.epoch);
  put(out, kSender, packet.sender);
  put(out, kReceiver, packet.receiver);
  put(out, kTrainNumber, packet.train);
  out[kSweep] = packet.sweep;
  out[kTxFlags] = flags_of(packet.sent);
  out[kRxFlags] = flags_of(packet.rx);
  out[kAbilities] = packet.abilities;
  put(out, kSent, packet.sent.train);
  out[kSent + 4] = packet.sent.path;
  put_stamps(out, kSentStamps, kSent + 5, packet.sent);
  put(out, kMtu, packet.mtu);
  put(out, kCorrection, packet.correction_ns);
  put(out, kCorrectionBound, packet.correction_bound_ns);
  put(out, kRxTrain, packet.rx.train);
  put(out, kRxEpoch, packet.rx_epoch);
  out[kRxPath] = packet.rx.path;
  put_stamps(out, kRxStamps, kRxPath + 1, packet.rx);
  put(out, kSlope, packet.correction_slope);
  put(out, kRxAgo, packet.rx_ago_us);
  put(out, kReceived, packet.received);
  put(out, kMac, siphash24(key.key, out, kMac));
}

std::int64_t correction_at(const Packet& packet, std::int64_t stamp_ns) {
  const int base = first_valid(packet.sent.valid);
  std::int64_t since = 0;
  // Of stamps that are further apart than what a train waits for its report one is broken.
  if (base < 0 || __builtin_sub_overflow(stamp_ns, packet.sent.ns[base], &since) || since > kMostSlopeNs ||
      since < -kMostSlopeNs) {
    return packet.correction_ns;
  }
  return static_cast<std::int64_t>(
      static_cast<std::uint64_t>(packet.correction_ns) +
      static_cast<std::uint64_t>(since * (packet.correction_slope * kSlopePpb) / kPpb));
}

std::int16_t correction_slope(std::int64_t change_ns, std::int64_t span_ns) {
  if (span_ns == 0) return 0;
  // A correction that jumps by more than a slope can tell has been set anew: the delays between show it.
  change_ns = std::clamp(change_ns, -kMostSlopeNs / 100, kMostSlopeNs / 100);
  const std::int64_t slope = change_ns * (kPpb / kSlopePpb) / span_ns;
  return static_cast<std::int16_t>(std::clamp<std::int64_t>(slope, -kMostSlope, kMostSlope));
}

bool claims_of_packet(const std::uint8_t* data, std::size_t size, std::uint64_t* sender,
                      std::uint32_t* train) {
  if (size != kPacketSize) return false;
  *sender = get<std::uint64_t>(data, kSender);
  *train = get<std::uint32_t>(data, kTrainNumber);
  return true;
}

Decoded decode_packet(const std::uint8_t* data, std::size_t size, const std::vector<FleetKey>& keys,
                      Packet* packet) {
  if (size != kPacketSize || get<std::uint32_t>(data, kMagic) != kWireMagic ||
      data[kVersion] != kWireVersion) {
    return Decoded::kMalformed;
  }
  const auto id = get<std::uint32_t>(data, kKeyId);
  const FleetKey* key = nullptr;
  for (const FleetKey& candidate : keys) {
    if (candidate.id == id) key = &candidate;
  }
  if (key == nullptr) return Decoded::kWrongFleet;
  if (siphash24(key->key, data, kMac) != get<std::uint64_t>(data, kMac)) return Decoded::kBadMac;

  Packet p;
  p.epoch = get<std::uint32_t>(data, kEpoch);
  p.sender = get<std::uint64_t>(data, kSender);
  p.receiver = get<std::uint64_t>(data, kReceiver);
  p.train = get<std::uint32_t>(data, kTrainNumber);
  p.position = data[kPosition];
  p.path = data[kPath];
  p.paths = data[kPaths];
  p.sweep = data[kSweep];
  p.abilities = data[kAbilities];
  p.sent.train = get<std::uint32_t>(data, kSent);
  p.sent.path = data[kSent + 4];
  p.sent.valid = data[kSent + 5];
  p.mtu = get<std::uint16_t>(data, kMtu);
  take_flags(data[kTxFlags], &p.sent);
  p.correction_ns = get<std::int64_t>(data, kCorrection);
  p.correction_bound_ns = get<std::uint32_t>(data, kCorrectionBound);
  p.rx.train = get<std::uint32_t>(data, kRxTrain);
  p.rx_epoch = get<std::uint32_t>(data, kRxEpoch);
  p.rx.path = data[kRxPath];
  p.rx.valid = data[kRxPath + 1];
  take_flags(data[kRxFlags], &p.rx);
  p.correction_slope = get<std::int16_t>(data, kSlope);
  p.rx_ago_us = get<std::uint32_t>(data, kRxAgo);
  p.received = get<std::uint32_t>(data, kReceived);
  // A member of the fleet may run a broken build: its packets are authentic and still must fit our tables.
  if (p.position >= kTrain || p.train == 0 || p.paths == 0 || p.paths > kMaxPaths || p.path >= p.paths ||
      p.sent.path >= kMaxPaths || p.rx.path >= kMaxPaths || p.sent.valid > kAllValid ||
      p.rx.valid > kAllValid || p.path != path_of_train(p.train, p.paths, p.sweep) || p.mtu > kMostMtu) {
    return Decoded::kMalformed;
  }
  get_stamps(data, kSentStamps, &p.sent);
  get_stamps(data, kRxStamps, &p.rx);
  *packet = p;
  return Decoded::kOk;
}

}  // namespace fabricpulse
