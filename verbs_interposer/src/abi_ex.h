// What the interposer needs of libibverbs' ABI beyond job/verbs_abi.h: the members of structures that
// inline functions of infiniband/verbs.h call through. Source: rdma-core, libibverbs/verbs.h; the layouts are those
// of IBVERBS_1.1 and have only grown since.
#ifndef FABRICPULSE_INTERPOSER_ABI_EX_H_
#define FABRICPULSE_INTERPOSER_ABI_EX_H_

#include <pthread.h>

#include <cstddef>
#include <cstdint>

#include "job/verbs_abi.h"

namespace fabricpulse::ib {

struct CompletionQueueEx;
struct QueuePairEx;
struct MemoryWindow;
struct AddressHandleObject;
struct DataBuffer {
  void* address;
  size_t length;
};

// What lies before an ibv_context that is "extended"; it grows downwards, so size shows what is there.
struct ContextExtension {
  CompletionQueueEx* (*create_cq_ex)(Context*, void* attributes);
  void* between1[6];
  QueuePair* (*open_qp)(Context*, void* attributes);
  QueuePair* (*create_qp_ex)(Context*, QueuePairInit* begins_so);
  void* between2[4];
  uint64_t abi_placeholder;  // rdma-core's verbs.h calls it _ABI_placeholder_
  size_t size;               // of the whole, with the context
};

// ibv_context with what a provider of today fills; only its own size matters here.
constexpr size_t kContextSize = 328;

inline ContextExtension* extension_of(Context* context) {
  if (reinterpret_cast<uintptr_t>(context->compatibility) != UINTPTR_MAX) return nullptr;
  auto* extension =
      reinterpret_cast<ContextExtension*>(reinterpret_cast<uint8_t*>(context) - sizeof(ContextExtension));
  return extension->size >= sizeof(ContextExtension) + kContextSize ? extension : nullptr;
}

struct QueuePairEx {
  QueuePair pair;
  pthread_mutex_t mutex;
  pthread_cond_t condition;
  uint32_t events_completed;
  uint64_t present;
  uint64_t id;
  uint32_t flags;
  void (*atomic_cmp_swp)(QueuePairEx*, uint32_t key, uint64_t address, uint64_t compare, uint64_t swap);
  void (*atomic_fetch_add)(QueuePairEx*, uint32_t key, uint64_t address, uint64_t add);
  void (*bind_mw)(QueuePairEx*, MemoryWindow*, uint32_t key, const void* info);
  void (*local_inv)(QueuePairEx*, uint32_t key);
  void (*rdma_read)(QueuePairEx*, uint32_t key, uint64_t address);
  void (*rdma_write)(QueuePairEx*, uint32_t key, uint64_t address);
  void (*rdma_write_imm)(QueuePairEx*, uint32_t key, uint64_t address, uint32_t immediate);
  void (*send)(QueuePairEx*);
  void (*send_imm)(QueuePairEx*, uint32_t immediate);
  void (*send_inv)(QueuePairEx*, uint32_t key);
  void (*send_tso)(QueuePairEx*, void* header, uint16_t header_bytes, uint16_t mss);
  void (*set_ud_addr)(QueuePairEx*, AddressHandleObject*, uint32_t number, uint32_t qkey);
  void (*set_xrc_srqn)(QueuePairEx*, uint32_t number);
  void (*set_inline_data)(QueuePairEx*, void* data, size_t length);
  void (*set_inline_data_list)(QueuePairEx*, size_t count, const DataBuffer* list);
  void (*set_sge)(QueuePairEx*, uint32_t key, uint64_t address, uint32_t length);
  void (*set_sge_list)(QueuePairEx*, size_t count, const Segment* list);
  void (*start)(QueuePairEx*);
  int (*complete)(QueuePairEx*);
  void (*abort)(QueuePairEx*);
  // atomic_write came later: `present` does not show whether it is there.
};

struct CompletionQueueEx {
  Context* context;
  CompletionChannel* channel;
  void* user;
  uint32_t handle;
  int entries;
  pthread_mutex_t mutex;
  pthread_cond_t condition;
  uint32_t completion_events;
  uint32_t async_events;
  uint32_t present;
  uint32_t status;
  uint64_t id;
  int (*start_poll)(CompletionQueueEx*, void* attributes);
  int (*next_poll)(CompletionQueueEx*);
  void (*end_poll)(CompletionQueueEx*);
  uint32_t (*read_opcode)(CompletionQueueEx*);
  uint32_t (*read_vendor_error)(CompletionQueueEx*);
  uint32_t (*read_bytes)(CompletionQueueEx*);
  uint32_t (*read_immediate)(CompletionQueueEx*);
  uint32_t (*read_queue_pair)(CompletionQueueEx*);
};

// The rest of enum ibv_wr_opcode.
enum MoreOpcodes : uint32_t {
  kSend = 2,
  kSendWithImmediate = 3,
  kRead = 4,
  kCompareSwap = 5,
  kFetchAdd = 6,
  kLocalInvalidate = 7,
  kBindWindow = 8,
  kSendWithInvalidate = 9,
  kSegmentation = 10,
};
enum CompletionOpcode : uint32_t { kReceived = 1 << 7, kReceivedWithImmediate };

static_assert(sizeof(Context) == kContextSize && sizeof(ContextExtension) == 120, "libibverbs ABI");
static_assert(offsetof(QueuePairEx, present) == 160 && offsetof(QueuePairEx, abort) == 336, "libibverbs ABI");
static_assert(offsetof(CompletionQueueEx, start_poll) == 144, "libibverbs ABI");

}  // namespace fabricpulse::ib

#endif  // FABRICPULSE_INTERPOSER_ABI_EX_H_
