#include "packets/size_packet.h"

#include <cstring>

#include "packets/bytes.h"

namespace fabricpulse {
namespace {

constexpr std::uint8_t kMagic[4] = {'F', 'P', 'S', 'Z'};
constexpr std::uint8_t kVersion = 1;
constexpr std::size_t kMac = 40;

}  // namespace

bool is_size_packet(const std::uint8_t* data, std::size_t size) {
  return size >= kSizePacketHeader && std::memcmp(data, kMagic, sizeof(kMagic)) == 0;
}

void encode_size_packet(const SizePacket& packet, const FleetKey& key, std::uint8_t out[kSizePacketHeader]) {
  std::memset(out, 0, kSizePacketHeader);
  std::memcpy(out, kMagic, sizeof(kMagic));
  out[4] = kVersion;
  out[5] = packet.path;
  put(out, 6, packet.size);
  put(out, 8, key.id);
  put(out, 12, packet.epoch);
  put(out, 16, packet.sender);
  put(out, 24, packet.receiver);
  put(out, 32, packet.train);
  put(out, kMac, siphash24(key.key, out, kMac));
}

Decoded decode_size_packet(const std::uint8_t* data, std::size_t size, bool v6,
                           const std::vector<FleetKey>& keys, SizePacket* packet) {
  if (!is_size_packet(data, size) || data[4] != kVersion) return Decoded::kMalformed;
  const auto id = get<std::uint32_t>(data, 8);
  const FleetKey* key = nullptr;
  for (const FleetKey& candidate : keys) {
    if (candidate.id == id) key = &candidate;
  }
  if (key == nullptr) return Decoded::kWrongFleet;
  if (siphash24(key->key, data, kMac) != get<std::uint64_t>(data, kMac)) return Decoded::kBadMac;
  SizePacket p;
  p.path = data[5];
  p.size = get<std::uint16_t>(data, 6);
  p.epoch = get<std::uint32_t>(data, 12);
  p.sender = get<std::uint64_t>(data, 16);
  p.receiver = get<std::uint64_t>(data, 24);
  p.train = get<std::uint32_t>(data, 32);
  if (p.path >= kMaxPaths || p.train == 0 || p.size != size + (v6 ? kHeaders6 : kHeaders4)) {
    return Decoded::kMalformed;
  }
  *packet = p;
  return Decoded::kOk;
}

}  // namespace fabricpulse
