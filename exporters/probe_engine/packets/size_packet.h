// The packet of a size probe: 48 bytes of UDP payload, little endian, and zeros up to its size.
//
//   0  u32 magic "FPSZ"      4 u8 version    5 u8 path     6 u16 size of the IP packet
//   8  u32 key id           12 u32 epoch    16 u64 sender NIC     24 u64 receiver NIC
//  32  u32 train that it follows            36 u32 zero   40 u64 SipHash-2-4 over bytes 0..39
#ifndef FABRICPULSE_EXPORTERS_SIZE_PACKET_H_
#define FABRICPULSE_EXPORTERS_SIZE_PACKET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "packets/wire.h"

namespace fabricpulse {

constexpr std::size_t kSizePacketHeader = 48;
// IP and UDP headers without options.
constexpr std::size_t kHeaders4 = 28, kHeaders6 = 48;

struct SizePacket {
  std::uint32_t epoch = 0;
  std::uint64_t sender = 0;
  std::uint64_t receiver = 0;
  std::uint32_t train = 0;
  std::uint8_t path = 0;
  std::uint16_t size = 0;
};

// Whether it claims to be one.
bool is_size_packet(const std::uint8_t* data, std::size_t size);
void encode_size_packet(const SizePacket& packet, const FleetKey& key, std::uint8_t out[kSizePacketHeader]);
// Reads any bytes. size : of the payload as it was sent; of it, kSizePacketHeader bytes are there. `packet` holds only
// after kOk; it has then arrived in full.
Decoded decode_size_packet(const std::uint8_t* data, std::size_t size, bool v6,
                           const std::vector<FleetKey>& keys, SizePacket* packet);

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_SIZE_PACKET_H_
