// Wire format of queue pair lanes: what the ends write into one another's slots (chunk headers, state frames), and the
// immediate data that announces it.
#ifndef FABRICPULSE_TRANSPORT_VERBS_VERBS_SLOTS_H_
#define FABRICPULSE_TRANSPORT_VERBS_VERBS_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/lane.h"
#include "core/wire.h"
#include "transport/verbs/verbs_pair.h"

namespace fabricpulse {

// Immediate data: what was written, and where.
enum class Immediate : uint32_t { kChunk = 1, kControl = 2, kCredit = 3 };
constexpr int kImmediateShift = 28;
constexpr uint32_t kImmediateMask = (1u << kImmediateShift) - 1;

// With the highest bit it announces a chunk by itself: the write that carries it has put the payload to its place, and
// has its length. From the highest bit on: 1, chunk, message, last, place.
constexpr uint32_t kPlaced = 1u << 31;
constexpr int kPlacedOffsetBits = 16, kPlacedMessageBits = 6, kPlacedChunkBits = 8;
static_assert(1u << kPlacedMessageBits == kMaxRequests && kChunkWindow <= 1u << kPlacedChunkBits,
              "wire format");
static_assert(1u << kPlacedOffsetBits == PlacedChunk::kOffsets, "wire format");

inline uint32_t immediate_of(const PlacedChunk& placed) {
  uint32_t word = kPlaced | (placed.chunk % kChunkWindow) << (kPlacedOffsetBits + 1 + kPlacedMessageBits);
  word |= (placed.message % kMaxRequests) << (kPlacedOffsetBits + 1);
  word |= uint32_t{placed.last} << kPlacedOffsetBits;
  return word | placed.offset / PlacedChunk::kOffsetUnit;
}
inline PlacedChunk placed_chunk(uint32_t immediate, uint32_t length) {
  PlacedChunk placed;
  placed.chunk = (immediate >> (kPlacedOffsetBits + 1 + kPlacedMessageBits)) % (1u << kPlacedChunkBits);
  placed.message = (immediate >> (kPlacedOffsetBits + 1)) % kMaxRequests;
  placed.last = (immediate >> kPlacedOffsetBits) & 1;
  placed.offset = (immediate % (1u << kPlacedOffsetBits)) * PlacedChunk::kOffsetUnit;
  placed.length = length;
  return placed;
}

// Where the payload of a chunk is.
enum class Place : uint8_t { kDirect = 1, kInSlot = 2, kEarly = 3, kTooLarge = 4 };

struct ChunkSlot {
  FrameHeader header;
  Place place;
  uint8_t reserved[7];
  uint8_t payload[kChunkSlotBytes - sizeof(FrameHeader) - 8];
};
static_assert(sizeof(ChunkSlot) == kChunkSlotBytes, "wire format");
constexpr uint32_t kSlotHead = offsetof(ChunkSlot, payload);
constexpr uint32_t kMostInSlot = sizeof(ChunkSlot::payload);

// A state frame; `receives` entries of one ReceiveHead and `keys` keys each follow.
struct ControlSlot {
  FrameHeader header;
  HeldState held;
  uint16_t receives;
  uint16_t keys;
  uint32_t reserved;
};
struct ReceiveHead {
  uint32_t message;   // low 32 bits of its number
  uint32_t capacity;  // bytes
  uint64_t address;
};
constexpr uint32_t kMostReceives = 32;  // NCCL has no more under way

// Bytes of one receive with so many keys, and how many such receives fit a slot.
constexpr size_t receive_bytes(uint32_t keys) {
  return sizeof(ReceiveHead) + ((keys + 1) / 2) * 2 * sizeof(uint32_t);
}
constexpr uint32_t receives_that_fit(uint32_t keys) {
  const size_t fit = (kControlSlotBytes - sizeof(ControlSlot)) / receive_bytes(keys);
  return fit < kMostReceives ? static_cast<uint32_t>(fit) : kMostReceives;
}

// Names receives behind a state frame. key_of(receive, nic): key of its memory on that NIC, 0 for none. Returns how
// many bytes that is.
template <typename KeyOf>
size_t write_receives(ControlSlot* slot, const PostedReceive* receives, uint32_t count, uint32_t keys,
                      KeyOf&& key_of) {
  const size_t each = receive_bytes(keys);
  auto* out = reinterpret_cast<uint8_t*>(slot + 1);
  for (uint32_t i = 0; i < count; ++i, out += each) {
    ReceiveHead head{receives[i].message, receives[i].capacity, reinterpret_cast<uint64_t>(receives[i].data)};
    memcpy(out, &head, sizeof(head));
    for (uint32_t nic = 0; nic < keys; ++nic) {
      const uint32_t key = key_of(receives[i], nic);
      memcpy(out + sizeof(head) + nic * sizeof(key), &key, sizeof(key));
    }
  }
  slot->receives = static_cast<uint16_t>(count);
  slot->keys = static_cast<uint16_t>(keys);
  return count * each;
}

// What a peer has written behind a state frame, as it likes: one after the other to use(receive). False if it cannot be.
template <typename Use>
bool read_receives(const ControlSlot* slot, Use&& use) {
  const uint32_t keys = slot->keys, count = slot->receives;
  if (keys > kMaxNics || count > receives_that_fit(keys)) return false;
  const auto* in = reinterpret_cast<const uint8_t*>(slot + 1);
  for (uint32_t i = 0; i < count; ++i, in += receive_bytes(keys)) {
    ReceiveHead head;
    memcpy(&head, in, sizeof(head));
    PeerReceive receive;
    receive.message = head.message;
    receive.capacity = head.capacity;
    receive.address = head.address;
    memcpy(receive.keys, in + sizeof(head), keys * sizeof(uint32_t));
    use(receive);
  }
  return true;
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_VERBS_VERBS_SLOTS_H_
