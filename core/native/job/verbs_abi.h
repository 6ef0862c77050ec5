// The part of libibverbs' ABI that queue pairs need, in our own words: the library is opened at run time, so its
// headers are not needed to build, and a host without it can still load the plugin. Source: rdma-core,
// libibverbs/verbs.h; the layouts are those of IBVERBS_1.1 and have not changed since.
#ifndef FABRICPULSE_JOB_VERBS_ABI_H_
#define FABRICPULSE_JOB_VERBS_ABI_H_

#include <pthread.h>

#include <cstddef>
#include <cstdint>

namespace fabricpulse::ib {

struct Device;  // opaque
struct Srq;
struct CompletionChannel;
struct QueuePair;
struct CompletionQueue;
struct SendRequest;
struct RecvRequest;
struct WorkCompletion;

// What is called through the context, not through the library. The other members are not ours to call.
struct ContextOps {
  void* before_poll[11];
  int (*poll_cq)(CompletionQueue*, int most, WorkCompletion*);
  void* between[13];
  int (*post_send)(QueuePair*, SendRequest*, SendRequest** bad);
  int (*post_recv)(QueuePair*, RecvRequest*, RecvRequest** bad);
  void* after[5];
};

struct Context {
  Device* device;
  ContextOps ops;
  int command_fd;
  int async_fd;
  int completion_vectors;
  pthread_mutex_t mutex;
  void* compatibility;
};

struct ProtectionDomain {
  Context* context;
  uint32_t handle;
};

struct MemoryRegion {
  Context* context;
  ProtectionDomain* domain;
  void* address;
  size_t length;
  uint32_t handle;
  uint32_t local_key;
  uint32_t remote_key;
};

struct CompletionQueue {
  Context* context;
  CompletionChannel* channel;
  void* user;
  uint32_t handle;
  int entries;
};

struct QueuePair {
  Context* context;
  void* user;
  ProtectionDomain* domain;
  CompletionQueue* send_cq;
  CompletionQueue* recv_cq;
  Srq* srq;
  uint32_t handle;
  uint32_t number;
  uint32_t state;
  uint32_t type;
};

union Gid {
  uint8_t raw[16];
  uint64_t halves[2];  // its alignment
};

struct GidEntry {
  Gid gid;
  uint32_t index;
  uint32_t port;
  uint32_t type;
  uint32_t ifindex;
};
enum GidType : uint32_t { kGidRoceV2 = 2 };

struct PortAttributes {
  uint32_t state;
  uint32_t max_mtu;
  uint32_t active_mtu;
  int32_t gid_table_length;
  uint32_t capabilities;
  uint32_t max_message;
  uint32_t bad_pkeys;
  uint32_t qkey_violations;
  uint16_t pkey_table_length;
  uint16_t lid;
  uint16_t sm_lid;
  uint8_t lmc;
  uint8_t max_vl;
  uint8_t sm_sl;
  uint8_t subnet_timeout;
  uint8_t init_type_reply;
  uint8_t active_width;
  uint8_t active_speed;
  uint8_t physical_state;
  uint8_t link_layer;
  uint8_t flags;
  uint16_t capabilities2;
  uint8_t later[32];  // versions of the library to come
};
enum PortState : uint32_t { kPortActive = 4 };
enum LinkLayer : uint8_t { kLinkInfiniBand = 1, kLinkEthernet = 2 };

struct Capacity {
  uint32_t send_requests;
  uint32_t recv_requests;
  uint32_t send_segments;
  uint32_t recv_segments;
  uint32_t inline_bytes;
};

struct QueuePairInit {
  void* user;
  CompletionQueue* send_cq;
  CompletionQueue* recv_cq;
  Srq* srq;
  Capacity capacity;
  uint32_t type;
  int32_t signal_all;
};
enum QueuePairType : uint32_t { kReliableConnected = 2 };

struct GlobalRoute {
  Gid destination;
  uint32_t flow_label;
  uint8_t source_gid_index;
  uint8_t hop_limit;
  uint8_t traffic_class;
};

struct AddressHandle {
  GlobalRoute route;
  uint16_t lid;
  uint8_t service_level;
  uint8_t source_path_bits;
  uint8_t static_rate;
  uint8_t is_global;
  uint8_t port;
};

struct QueuePairAttributes {
  uint32_t state;
  uint32_t current_state;
  uint32_t path_mtu;
  uint32_t path_migration_state;
  uint32_t qkey;
  uint32_t recv_psn;
  uint32_t send_psn;
  uint32_t peer_number;
  uint32_t access;
  Capacity capacity;
  AddressHandle address;
  AddressHandle alternate;
  uint16_t pkey_index;
  uint16_t alternate_pkey_index;
  uint8_t async_notify;
  uint8_t draining;
  uint8_t max_reads;
  uint8_t max_peer_reads;
  uint8_t min_rnr_timer;
  uint8_t port;
  uint8_t timeout;
  uint8_t retries;
  uint8_t rnr_retries;
  uint8_t alternate_port;
  uint8_t alternate_timeout;
  uint32_t rate_limit;
};
enum QueuePairState : uint32_t { kReset, kInit, kReadyToReceive, kReadyToSend, kErrorState = 6 };
enum AttributeMask : int {
  kSetState = 1 << 0,
  kSetAccess = 1 << 3,
  kSetPkeyIndex = 1 << 4,
  kSetPort = 1 << 5,
  kSetAddress = 1 << 7,
  kSetPathMtu = 1 << 8,
  kSetTimeout = 1 << 9,
  kSetRetries = 1 << 10,
  kSetRnrRetries = 1 << 11,
  kSetRecvPsn = 1 << 12,
  kSetMaxReads = 1 << 13,
  kSetMinRnrTimer = 1 << 15,
  kSetSendPsn = 1 << 16,
  kSetMaxPeerReads = 1 << 17,
  kSetPeerNumber = 1 << 20,
};

struct Segment {
  uint64_t address;
  uint32_t length;
  uint32_t local_key;
};

struct SendRequest {
  uint64_t id;
  SendRequest* next;
  Segment* segments;
  int32_t segment_count;
  uint32_t opcode;
  uint32_t flags;
  uint32_t immediate;  // network byte order
  struct {
    uint64_t address;
    uint32_t key;
    uint64_t unused[2];
  } remote;
  uint64_t unused[7];
};
enum Opcode : uint32_t { kWrite = 0, kWriteWithImmediate = 1 };
enum SendFlags : uint32_t { kSignaled = 1 << 1, kInline = 1 << 3 };

struct RecvRequest {
  uint64_t id;
  RecvRequest* next;
  Segment* segments;
  int32_t segment_count;
};

struct WorkCompletion {
  uint64_t id;
  uint32_t status;
  uint32_t opcode;  // only with kSuccess
  uint32_t vendor_error;
  uint32_t bytes;
  uint32_t immediate;  // network byte order
  uint32_t queue_pair;
  uint32_t source_queue_pair;
  uint32_t flags;
  uint16_t pkey_index;
  uint16_t source_lid;
  uint8_t service_level;
  uint8_t path_bits;
};
enum CompletionStatus : uint32_t { kSuccess = 0, kFlushed = 5, kRetriesExceeded = 12 };

enum Access : int { kLocalWrite = 1, kRemoteWrite = 2 };

struct AsyncEvent {
  void* element;
  uint32_t type;
};
enum AsyncEventType : uint32_t {
  kEventDeviceFatal = 8,
  kEventPortActive = 9,
  kEventPortError = 10,
  kEventGidChange = 18,
};

static_assert(offsetof(Context, async_fd) == 268 && sizeof(SendRequest) == 128, "libibverbs ABI");
static_assert(sizeof(WorkCompletion) == 48 && sizeof(QueuePairAttributes) == 144, "libibverbs ABI");
static_assert(sizeof(ContextOps) == 32 * sizeof(void*), "libibverbs ABI");
static_assert(offsetof(QueuePair, number) == 52 && offsetof(MemoryRegion, remote_key) == 40,
              "libibverbs ABI");
static_assert(sizeof(GidEntry) == 32 && sizeof(QueuePairInit) == 64, "libibverbs ABI");

}  // namespace fabricpulse::ib

#endif  // FABRICPULSE_JOB_VERBS_ABI_H_
