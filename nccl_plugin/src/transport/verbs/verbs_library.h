// libibverbs, opened at run time.
#ifndef FABRICPULSE_TRANSPORT_VERBS_VERBS_LIBRARY_H_
#define FABRICPULSE_TRANSPORT_VERBS_VERBS_LIBRARY_H_

#include <sys/types.h>

#include <string>

#include "job/verbs_abi.h"

namespace fabricpulse {

// Its functions. Those that may be nullptr are marked.
struct VerbsLibrary {
  ib::Device** (*get_device_list)(int* count) = nullptr;
  void (*free_device_list)(ib::Device** list) = nullptr;
  const char* (*get_device_name)(ib::Device* device) = nullptr;
  ib::Context* (*open_device)(ib::Device* device) = nullptr;
  int (*close_device)(ib::Context* context) = nullptr;
  int (*query_port)(ib::Context* context, uint8_t port, ib::PortAttributes* out) = nullptr;
  int (*query_gid)(ib::Context* context, uint8_t port, int index, ib::Gid* out) = nullptr;
  // nullptr before rdma-core 32.
  ssize_t (*query_gid_table)(ib::Context* context, ib::GidEntry* out, size_t most, uint32_t flags,
                             size_t entry_size) = nullptr;
  ib::ProtectionDomain* (*alloc_pd)(ib::Context* context) = nullptr;
  int (*dealloc_pd)(ib::ProtectionDomain* domain) = nullptr;
  ib::MemoryRegion* (*reg_mr)(ib::ProtectionDomain* domain, void* data, size_t size, int access) = nullptr;
  int (*dereg_mr)(ib::MemoryRegion* region) = nullptr;
  ib::CompletionQueue* (*create_cq)(ib::Context* context, int entries, void* user,
                                    ib::CompletionChannel* channel, int vector) = nullptr;
  int (*destroy_cq)(ib::CompletionQueue* queue) = nullptr;
  ib::QueuePair* (*create_qp)(ib::ProtectionDomain* domain, ib::QueuePairInit* init) = nullptr;
  int (*modify_qp)(ib::QueuePair* pair, ib::QueuePairAttributes* attributes, int mask) = nullptr;
  int (*destroy_qp)(ib::QueuePair* pair) = nullptr;
  int (*get_async_event)(ib::Context* context, ib::AsyncEvent* out) = nullptr;
  void (*ack_async_event)(ib::AsyncEvent* event) = nullptr;
  int (*fork_init)() = nullptr;

  // Opens `name`, or where that is empty libibverbs.so.1. It stays open. False: `error` names what is missing.
  bool open(const std::string& name, std::string* error);
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_VERBS_VERBS_LIBRARY_H_
