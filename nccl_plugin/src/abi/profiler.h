// NCCL's profiler ABI, versions 4 to 7, independently (see net.h). The symbol is ncclProfiler_v<N>.
#ifndef FABRICPULSE_ABI_PROFILER_H_
#define FABRICPULSE_ABI_PROFILER_H_

#include <cstddef>
#include <cstdint>

#include "abi/net.h"

namespace fabricpulse::abi {

enum ProfilerEvent : uint64_t {  // bits of the activation mask and of a descriptor's type
  kEventGroup = 1,
  kEventCollective = 2,
  kEventP2p = 4,
  kEventProxyOp = 8,
  kEventProxyStep = 16,
  kEventKernelChannel = 64,
  kEventNetPlugin = 128,
};

enum ProxyStepState : int {
  kStepSendWait = 9,   // given to the network
  kStepRecvWait = 10,  // posted to the network
  kStepRecvFlushWait = 11,
  kStepRecvGpuWait = 12,
  kStepSendPeerWait = 20,
  kKernelChannelStop = 22,  // a kernel channel, no step: with the GPU's time of its end
};

// What comes with kKernelChannelStop.
struct KernelChannelStop {
  uint64_t gpu_time;
};

struct CollectiveV4 {
  uint64_t sequence;
  const char* function;
  const void* send_buffer;
  void* recv_buffer;
  size_t count;
  int root;
  const char* type;
  uint8_t channels;
  uint8_t warps;
  const char* algorithm;
  const char* protocol;
};
struct CollectiveV5 : CollectiveV4 {
  void* parent_group;
};
struct CollectiveV7 : CollectiveV5 {
  const char* kernel_variant;
  bool symmetric;
  uint64_t user_tag;
};
struct P2pV4 {
  const char* function;
  void* buffer;
  const char* type;
  size_t count;
  int peer;
  uint8_t channels;
};
struct ProxyOp {
  int32_t pid;
  uint8_t channel;
  int peer;
  int steps;
  int chunk_size;
  int is_send;
};
struct ProxyStep {
  int step;
};
struct KernelChannel {
  uint8_t channel;
  uint64_t gpu_time;  // of its start, ns; of NVIDIA's GPUs since 1970
};
struct NetPluginEvent {
  int64_t id;  // the net plugin's type of event and its version
  void* data;
};

template <typename Type, typename Collective>
struct Descriptor {
  Type type;
  void* parent;
  int rank;
  union {
    Collective collective;
    P2pV4 p2p;  // newer versions only append
    ProxyOp proxy_op;
    ProxyStep proxy_step;
    KernelChannel kernel_channel;
    NetPluginEvent net_plugin;
  };
};
using DescriptorV4 = Descriptor<uint8_t, CollectiveV4>;
using DescriptorV5 = Descriptor<uint64_t, CollectiveV5>;
using DescriptorV7 = Descriptor<uint64_t, CollectiveV7>;
static_assert(sizeof(CollectiveV4) == 80 && sizeof(CollectiveV5) == 88 && sizeof(CollectiveV7) == 112);
static_assert(sizeof(DescriptorV7) == 136);
static_assert(offsetof(DescriptorV4, parent) == 8 && offsetof(DescriptorV4, collective) == 24);

template <typename D>
struct ProfilerV5 {
  const char* name;
  Result (*init)(void** context, uint64_t communicator, int* mask, const char* name, int nodes, int ranks,
                 int rank, Logger);
  Result (*start_event)(void* context, void** event, D* descriptor);
  Result (*stop_event)(void* event);
  Result (*record_state)(void* event, int state, void* arguments);
  Result (*finalize)(void* context);
};
struct ProfilerV4 {
  const char* name;
  Result (*init)(void** context, int* mask, const char* name, uint64_t communicator, int nodes, int ranks,
                 int rank, Logger);
  Result (*start_event)(void* context, void** event, DescriptorV4* descriptor);
  Result (*stop_event)(void* event);
  Result (*record_state)(void* event, int state, void* arguments);
  Result (*finalize)(void* context);
};
static_assert(sizeof(ProfilerV4) == 48);

}  // namespace fabricpulse::abi

#endif  // FABRICPULSE_ABI_PROFILER_H_
