// Wire format of queue pair lanes: what the ends write into one another's slots (chunk headers, state frames), and the
// immediate data that tells of it.
#ifndef FABRICPULSE_TRANSPORT_VERBS_VERBS_SLOTS_H_
#define FABRICPULSE_TRANSPORT_VERBS_VERBS_SLOTS_H_

#include <cstddef>
#include <cstdint>

#include "core/wire.h"
#include "transport/verbs/verbs_pair.h"

namespace fabricpulse {

// Immediate data: what was written, and where.
enum class Told : uint32_t { kChunk = 1, kControl = 2, kCredit = 3 };
constexpr int kToldShift = 28;
constexpr uint32_t kToldMask = (1u << kToldShift) - 1;

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
  uint32_t message;
  uint32_t capacity;
  uint64_t address;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_VERBS_VERBS_SLOTS_H_
