// The probe packet: what NICs of a fleet send each other. No request, no reply: both ends of an edge send
// trains on their own account, and every packet carries what the other end needs to hold all four stamps of
// both directions.
//
// 120 bytes of UDP payload, little endian:
//
//   0  u32 magic "FPM1"      4 u8 version    5 u8 position (0..2)  6 u8 path    7 u8 paths
//   8  u32 key id           12 u32 epoch (start identity of the sender)
//  16  u64 sender NIC       24 u64 receiver NIC
//  32  u32 train            36 u8 sweep    37 u8 tx flags   38 u8 rx flags   39 u8 abilities of the sender
//      flags: bit 0 = stamps of the NIC; bits 1 to 7 = how far they may be off, in units of 64 ns. 0 there = by its
//      own clock, as engines once sent them; those are of no use
//      abilities: bit 0 = tells how fast its correction changes; bit 1 = takes TX stamps of the train that brings them.
//      0 by engines that have neither
//  -- TX stamps of an earlier train of the sender on this edge, by its stamp clock. The last packet to a peer with bit 1
//     carries the stamp of packet 1 of its own train instead
//  40  u32 train (0 = none) 44 u8 path       45 u8 valid bits    46 u16 MTU of the sender (0 = no size probes)
//  48  i64 stamp of packet 0   56 i32 packet 1 - packet 0   60 i32 packet 2 - packet 0
//  64  i64 fleet time - stamp clock   72 u32 bound of it, ns; 0xffffffff = not synchronised
//  -- what the sender has received from the receiver of this packet
//  76  u32 train (0 = none) 80 u32 epoch     84 u8 path   85 u8 valid bits
//  86  i16 how fast (fleet time - stamp clock) changes from the TX stamps to these, units of 50 ppb
//  88  i64 stamp of packet 0   96 i32 packet 1 - packet 0  100 i32 packet 2 - packet 0
// 104  u32 microseconds since a packet was accepted; 0xffffffff = never
// 108  u32 packets received
// 112  u64 SipHash-2-4 over bytes 0..111
//
// If packet 0 of a train has no stamp, the base is that of the first packet that has one and the deltas count
// from it.
#ifndef FABRICPULSE_EXPORTERS_WIRE_H_
#define FABRICPULSE_EXPORTERS_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fabricpulse/siphash.h"

namespace fabricpulse {

// A larger MTU, that of the loopback device, is not probed in full.
constexpr std::uint16_t kMostMtu = 16'384;
constexpr std::uint32_t kWireMagic = 0x314d5046;  // "FPM1"
constexpr std::uint8_t kWireVersion = 1;
constexpr std::size_t kPacketSize = 120;
constexpr int kTrain = 3;
constexpr int kMaxPaths = 16;
constexpr std::int64_t kMostStampErrorNs = 127 * 64;  // that a packet can tell
constexpr std::uint32_t kNever = 0xffffffff;
constexpr std::int64_t kSlopePpb = 50;
constexpr std::uint8_t kTellsSlope = 1, kTakesStampsAtOnce = 2;  // abilities

// Stamps of one train, absolute, ns of one stamp clock. Bit i of `valid` says that ns[i] holds. error_ns : 0 = taken by
// the kernel; else by the NIC, and off by no more than this after they were put on the stamp clock.
struct TrainStamps {
  std::uint32_t train = 0;  // 0 = none
  std::uint8_t path = 0;
  std::uint8_t valid = 0;
  std::uint16_t error_ns = 0;
  std::int64_t ns[kTrain] = {0, 0, 0};
};

struct Packet {
  std::uint64_t sender = 0;
  std::uint64_t receiver = 0;
  std::uint32_t epoch = 0;
  std::uint32_t train = 0;
  std::uint8_t position = 0;
  std::uint8_t path = 0;
  std::uint8_t paths = 1;  // source ports of the sender's sweep, the main path included
  std::uint8_t sweep = 0;  // every sweep-th train leaves the main path; 0 = none does
  std::uint16_t mtu = 0;   // up to which the sender sends size probes (size_probes.h); 0 = it sends none
  std::uint8_t abilities = kTellsSlope | kTakesStampsAtOnce;

  TrainStamps sent;  // TX stamps of an earlier train, or of this one
  std::int64_t correction_ns = 0;
  std::uint32_t correction_bound_ns = kNever;
  std::int16_t correction_slope = 0;  // from `sent` to `rx`, in units of kSlopePpb

  TrainStamps rx;  // RX stamps of a train of the receiver
  std::uint32_t rx_epoch = 0;
  std::uint32_t rx_ago_us = kNever;
  std::uint32_t received = 0;
};

// Fleet time minus the stamp clock of the sender when that showed stamp_ns. A clock that is corrected by some hundred
// ppm, as one that has turned, leaves correction_ns by microseconds from one train to the next.
std::int64_t correction_at(const Packet& packet, std::int64_t stamp_ns);

// What makes correction_at exact over `span_ns`, in which the correction changes by `change_ns`.
std::int16_t correction_slope(std::int64_t change_ns, std::int64_t span_ns);

// The path that a train takes: known to both ends, so that the receiver knows what it has missed.
inline std::uint8_t path_of_train(std::uint32_t train, std::uint8_t paths, std::uint8_t sweep) {
  if (sweep == 0 || paths < 2 || train % sweep != 0) return 0;
  return static_cast<std::uint8_t>(1 + train / sweep % (paths - 1u));
}

struct FleetKey {
  std::uint32_t id = 0;
  SipKey key{};
};

// The id under which a key travels: identifies keys and fleets without revealing the key.
FleetKey make_fleet_key(const SipKey& key);

enum class Decoded { kOk, kMalformed, kWrongFleet, kBadMac };

void encode_packet(const Packet& packet, const FleetKey& key, std::uint8_t out[kPacketSize]);

// Reads any bytes; `packet` holds only after kOk. The MAC is checked before any field is trusted.
Decoded decode_packet(const std::uint8_t* data, std::size_t size, const std::vector<FleetKey>& keys,
                      Packet* packet);

// Whose packet it is and of which train, if it is one: nothing of it is authentic. False for another size.
bool claims_of_packet(const std::uint8_t* data, std::size_t size, std::uint64_t* sender,
                      std::uint32_t* train);

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_WIRE_H_
