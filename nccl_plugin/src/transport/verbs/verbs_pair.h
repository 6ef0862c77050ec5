// One reliable connected queue pair, with a completion queue of its own and the memory that its ends write their
// messages into. Making, connecting and ending one are system calls that may take milliseconds: not on NCCL's
// progress thread.
#ifndef FABRICPULSE_TRANSPORT_VERBS_VERBS_PAIR_H_
#define FABRICPULSE_TRANSPORT_VERBS_VERBS_PAIR_H_

#include <memory>

#include "core/monotonic.h"
#include "core/wire.h"
#include "transport/verbs/verbs_device.h"

namespace fabricpulse {

// What the peer has to know of an end: `setup` of Hello and HelloReply.
struct VerbsSetup {
  static constexpr uint32_t kMagic = 0x31515046;  // "FPQ1"
  uint32_t magic = kMagic;
  uint32_t number = 0;
  uint32_t psn = 0;
  uint32_t key = 0;  // of the three below
  uint64_t chunks = 0;
  uint64_t control = 0;
  uint64_t early = 0;
  uint8_t gid[16] = {};
  uint32_t flow_label = 0;  // both directions take the same
  uint8_t mtu = 0;
  uint8_t reserved[3] = {};

  bool plausible() const {
    return magic == kMagic && number != 0 && number < (1u << 24) && psn < (1u << 24) && mtu >= 1 &&
           mtu <= 5 && flow_label < (1u << 20);
  }
};
static_assert(sizeof(VerbsSetup) <= kSetupBytes, "wire format");

// Slots that the peer writes into. A chunk's is that of its number: at most kChunkWindow of a connection are under
// way, so one is free again before the next comes. Control frames are counted by credits.
constexpr size_t kChunkSlotBytes = 256;
constexpr uint32_t kControlSlots = 32;
constexpr size_t kControlSlotBytes = 2048;
constexpr uint32_t kSpareReceives = 16;  // for credits, which no credit allows

class VerbsPair {
 public:
  enum class End : uint8_t { kSender, kReceiver };  // of chunks

  // In state INIT. nullptr: errno.
  static std::unique_ptr<VerbsPair> make(VerbsDevices* devices, const VerbsPort& port, const NicAddress& gid,
                                         End end, uint32_t flow_label);
  ~VerbsPair();
  VerbsPair(const VerbsPair&) = delete;
  VerbsPair& operator=(const VerbsPair&) = delete;

  const VerbsSetup& setup() const { return setup_; }
  // INIT to RTS, receives posted. False: errno.
  bool connect(const VerbsSetup& peer);
  // To ERROR, completions drained: nothing that the peer has sent lands in this host's memory after it. A device that
  // does not flush receives within 50 ms has its queue pair destroyed here, which may take seconds. clock: nanoseconds
  // that never go back.
  void end(uint64_t (*clock)() = monotonic_ns);

  bool post_receives(uint32_t count);

  ib::QueuePair* pair() { return pair_; }
  ib::CompletionQueue* completions() { return completions_; }
  const VerbsSetup& peer() const { return peer_; }
  End which() const { return end_; }
  uint32_t device() const { return port_.device->number; }
  std::atomic<uint64_t>* device_under_way() const { return &port_.device->under_way; }
  uint32_t local_key() const { return arena_region_->local_key; }
  uint32_t send_depth() const { return send_depth_; }
  uint32_t inline_bytes() const { return inline_bytes_; }
  uint8_t* chunk_slot(uint64_t chunk) { return chunks_ + (chunk % kChunkWindow) * kChunkSlotBytes; }
  uint8_t* control_in(uint32_t slot) { return control_in_ + slot * kControlSlotBytes; }
  uint8_t* control_out(uint32_t slot) { return control_out_ + slot * kControlSlotBytes; }
  uint8_t* early(uint32_t message) { return early_ + size_t{message % kEagerSlots} * kEagerBytes; }

 private:
  VerbsPair(VerbsDevices* devices, const VerbsPort& port, End end)
      : devices_(devices), port_(port), end_(end) {}
  bool create();
  uint32_t receive_depth() const {
    return kControlSlots + kSpareReceives + (end_ == End::kReceiver ? kChunkWindow : 0);
  }

  VerbsDevices* const devices_;
  const VerbsPort port_;
  const End end_;
  ib::CompletionQueue* completions_ = nullptr;
  ib::QueuePair* pair_ = nullptr;
  uint8_t* arena_ = nullptr;
  size_t arena_bytes_ = 0;
  ib::MemoryRegion* arena_region_ = nullptr;
  uint8_t *chunks_ = nullptr, *control_in_ = nullptr, *control_out_ = nullptr, *early_ = nullptr;
  VerbsSetup setup_, peer_;
  bool ended_ = false;
  uint32_t send_depth_ = 0, inline_bytes_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_VERBS_VERBS_PAIR_H_
