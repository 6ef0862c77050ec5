// NCCL's net plugin ABI, versions 6 to 12, as far as this plugin takes part in it.
//
// Declared here independently: the released packages carry no such header. Every layout is fixed by
// assertions. A version is a table of functions under the symbol ncclNetPlugin_v<N>; what changes between
// versions is noted there.
#ifndef FABRICPULSE_ABI_NET_H_
#define FABRICPULSE_ABI_NET_H_

#include <cstddef>
#include <cstdint>

namespace fabricpulse::abi {

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

constexpr size_t kHandleBytes = 128;
constexpr int kPointerHost = 1;  // bits of ptrSupport and of regMr's type
constexpr int kPointerCuda = 2;
constexpr int kPointerDmabuf = 4;

using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);
// NCCL's callback into its profiler: type 0 start, 1 stop, 2 update, 3 update and stop.
using ProfilerCallback = Result (*)(void** event, int type, void* parent, int64_t plugin, void* data);

struct Config {  // ncclNetCommConfig
  int traffic_class;
};

struct DevicesV9 {  // v9 to v11
  int count;
  int devices[4];
};
struct DevicesV12 {
  int count;
  int devices[8];
};

struct PropertiesV6 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
};
static_assert(sizeof(PropertiesV6) == 48);

struct PropertiesV7 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  int device_type;
  int device_version;
};
static_assert(sizeof(PropertiesV7) == 56 && offsetof(PropertiesV7, device_type) == 48);

struct PropertiesV8 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  int device_type;
  int device_version;
};
static_assert(sizeof(PropertiesV8) == 64 && offsetof(PropertiesV8, speed_mbps) == 32);

struct PropertiesV9 {  // and v10
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  int device_type;
  int device_version;
  DevicesV9 devices;
  size_t max_p2p_bytes;
  size_t max_collective_bytes;
};
static_assert(sizeof(PropertiesV9) == 104 && offsetof(PropertiesV9, devices) == 64 &&
              offsetof(PropertiesV9, max_p2p_bytes) == 88);

struct PropertiesV11 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  int device_type;
  int device_version;
  DevicesV9 devices;
  size_t max_p2p_bytes;
  size_t max_collective_bytes;
  int max_multi_request_size;
};
static_assert(sizeof(PropertiesV11) == 112 && offsetof(PropertiesV11, max_multi_request_size) == 104);

struct PropertiesV12 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  int device_type;
  int device_version;
  DevicesV12 devices;
  size_t max_p2p_bytes;
  size_t max_collective_bytes;
  int max_multi_request_size;
  int16_t rail;
  int16_t plane;
};
static_assert(sizeof(PropertiesV12) == 128 && offsetof(PropertiesV12, max_p2p_bytes) == 104 &&
              offsetof(PropertiesV12, rail) == 124);

struct Peers {
  int32_t max_peers, min_peers, max_flows, min_flows;
};
struct NetAttributes {  // setNetAttr, v11 and newer; all ones = unknown
  Peers send, receive;
  uint32_t operations, algorithms, protocols;
};
static_assert(sizeof(NetAttributes) == 44);

// A comm or request is opaque to NCCL; a device handle (netDeviceType other than host) is never made.
struct NetV6 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV6*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm);
  Result (*accept)(void* listen_comm, void** recv_comm);
  Result (*reg_mr)(void* comm, void* data, int size, int type, void** memory);
  Result (*reg_mr_dmabuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                          void** memory);
  Result (*dereg_mr)(void* comm, void* memory);
  Result (*isend)(void* send_comm, void* data, int size, int tag, void* memory, void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, int* sizes, int* tags, void** memory, void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void*);
  Result (*close_recv)(void*);
  Result (*close_listen)(void*);
};
static_assert(sizeof(NetV6) == 17 * 8);

struct NetV7 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV7*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, void** device_handle);
  Result (*accept)(void* listen_comm, void** recv_comm, void** device_handle);
  Result (*reg_mr)(void* comm, void* data, int size, int type, void** memory);
  Result (*reg_mr_dmabuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                          void** memory);
  Result (*dereg_mr)(void* comm, void* memory);
  Result (*isend)(void* send_comm, void* data, int size, int tag, void* memory, void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, int* sizes, int* tags, void** memory, void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void*);
  Result (*close_recv)(void*);
  Result (*close_listen)(void*);
  Result (*get_device_mr)(void* comm, void* memory, void** device_memory);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
};
static_assert(sizeof(NetV7) == 19 * 8);

struct NetV8 {  // regMr: size_t
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV8*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, void** device_handle);
  Result (*accept)(void* listen_comm, void** recv_comm, void** device_handle);
  Result (*reg_mr)(void* comm, void* data, size_t size, int type, void** memory);
  Result (*reg_mr_dmabuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                          void** memory);
  Result (*dereg_mr)(void* comm, void* memory);
  Result (*isend)(void* send_comm, void* data, int size, int tag, void* memory, void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, int* sizes, int* tags, void** memory, void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void*);
  Result (*close_recv)(void*);
  Result (*close_listen)(void*);
  Result (*get_device_mr)(void* comm, void* memory, void** device_memory);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
};
static_assert(sizeof(NetV8) == 19 * 8);

struct NetV9 {  // isend and irecv: size_t; virtual devices
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV9*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, void** device_handle);
  Result (*accept)(void* listen_comm, void** recv_comm, void** device_handle);
  Result (*reg_mr)(void* comm, void* data, size_t size, int type, void** memory);
  Result (*reg_mr_dmabuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                          void** memory);
  Result (*dereg_mr)(void* comm, void* memory);
  Result (*isend)(void* send_comm, void* data, size_t size, int tag, void* memory, void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, size_t* sizes, int* tags, void** memory,
                  void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void*);
  Result (*close_recv)(void*);
  Result (*close_listen)(void*);
  Result (*get_device_mr)(void* comm, void* memory, void** device_memory);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
  Result (*make_virtual_device)(int* device, DevicesV9* devices);
};
static_assert(sizeof(NetV9) == 20 * 8);

struct NetV10 {  // profiler callback and handles; connect gets the communicator's configuration
  const char* name;
  Result (*init)(Logger, ProfilerCallback);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV9*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, Config* config, void* handle, void** send_comm, void** device_handle);
  Result (*accept)(void* listen_comm, void** recv_comm, void** device_handle);
  Result (*reg_mr)(void* comm, void* data, size_t size, int type, void** memory);
  Result (*reg_mr_dmabuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                          void** memory);
  Result (*dereg_mr)(void* comm, void* memory);
  Result (*isend)(void* send_comm, void* data, size_t size, int tag, void* memory, void* profiler,
                  void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, size_t* sizes, int* tags, void** memory,
                  void** profilers, void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void*);
  Result (*close_recv)(void*);
  Result (*close_listen)(void*);
  Result (*get_device_mr)(void* comm, void* memory, void** device_memory);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
  Result (*make_virtual_device)(int* device, DevicesV9* devices);
};
static_assert(sizeof(NetV10) == 20 * 8);

// init and finalize for each communicator; its context goes to listen and connect.
template <typename Properties, typename Devices>
struct NetContextual {
  const char* name;
  Result (*init)(void** context, uint64_t communicator, Config* config, Logger, ProfilerCallback);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties*);
  Result (*listen)(void* context, int device, void* handle, void** listen_comm);
  Result (*connect)(void* context, int device, void* handle, void** send_comm, void** device_handle);
  Result (*accept)(void* listen_comm, void** recv_comm, void** device_handle);
  Result (*reg_mr)(void* comm, void* data, size_t size, int type, void** memory);
  Result (*reg_mr_dmabuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                          void** memory);
  Result (*dereg_mr)(void* comm, void* memory);
  Result (*isend)(void* send_comm, void* data, size_t size, int tag, void* memory, void* profiler,
                  void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, size_t* sizes, int* tags, void** memory,
                  void** profilers, void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** memory, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void*);
  Result (*close_recv)(void*);
  Result (*close_listen)(void*);
  Result (*get_device_mr)(void* comm, void* memory, void** device_memory);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
  Result (*make_virtual_device)(int* device, Devices* devices);
  Result (*finalize)(void* context);
  Result (*set_attributes)(void* context, NetAttributes*);
};
using NetV11 = NetContextual<PropertiesV11, DevicesV9>;
using NetV12 = NetContextual<PropertiesV12, DevicesV12>;
static_assert(sizeof(NetV11) == 22 * 8 && sizeof(NetV12) == 22 * 8);

}  // namespace fabricpulse::abi

#endif  // FABRICPULSE_ABI_NET_H_
