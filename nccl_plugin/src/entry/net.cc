// The symbols ncclNetPlugin_v6 … v12: thin shims over one core for what differs between versions.
#include "abi/net.h"

#include <cstring>

#include "entry/net_core.h"

#define FABRICPULSE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fabricpulse {
namespace {

using abi::Result;

template <typename Properties>
Result fill_properties(int device, Properties* out) {
  return net::describe(device, [&](const Nic& nic) {
    memset(out, 0, sizeof(*out));
    out->name = const_cast<char*>(nic.name.c_str());
    out->pci_path = nic.pci_path.empty() ? nullptr : const_cast<char*>(nic.pci_path.c_str());
    out->guid = nic.guid;
    out->pointer_support = net::memory_kinds();
    out->speed_mbps = static_cast<int>(nic.speed_mbps);
    out->port = 0;
    out->latency_us = 0;  // NCCL takes its own figure
    out->max_comms = 65536;
    out->max_recvs = 1;
  });
}

template <typename Properties>
Result fill_sizes(int device, Properties* out) {
  Result result = fill_properties(device, out);
  if (result != abi::kSuccess) return result;
  out->devices.count = 1;
  out->devices.devices[0] = device;
  out->max_p2p_bytes = size_t{1} << 30;  // NCCL_MAX_NET_SIZE_BYTES of a request; sizes travel as 32 bits
  out->max_collective_bytes = size_t{1} << 40;
  return abi::kSuccess;
}

// What is new in a version is filled by the function for it.
Result properties_v6(int device, abi::PropertiesV6* out) { return fill_properties(device, out); }
Result properties_v7(int device, abi::PropertiesV7* out) { return fill_properties(device, out); }
Result properties_v8(int device, abi::PropertiesV8* out) { return fill_properties(device, out); }
Result properties_v9(int device, abi::PropertiesV9* out) { return fill_sizes(device, out); }
Result properties_v11(int device, abi::PropertiesV11* out) {
  Result result = fill_sizes(device, out);
  if (result == abi::kSuccess) out->max_multi_request_size = 1;
  return result;
}
Result properties_v12(int device, abi::PropertiesV12* out) {
  Result result = fill_sizes(device, out);
  if (result != abi::kSuccess) return result;
  out->max_multi_request_size = 1;
  out->rail = static_cast<int16_t>(device);
  out->plane = -1;
  return result;
}

template <int kVersion>
constexpr const char* version_name() {
  constexpr const char* kNames[] = {"v6", "v7", "v8", "v9", "v10", "v11", "v12"};
  return kNames[kVersion - 6];
}

template <int kVersion>
Result init_once(abi::Logger log) {
  return net::process_init(log, nullptr, version_name<kVersion>());
}
Result init_v10(abi::Logger log, abi::ProfilerCallback profiler) {
  return net::process_init(log, profiler, version_name<10>());
}
template <int kVersion>
Result init_each(void** context, uint64_t communicator, abi::Config*, abi::Logger log,
                 abi::ProfilerCallback profiler) {
  return net::init(context, communicator, log, profiler, version_name<kVersion>());
}

Result listen_process(int device, void* handle, void** comm) {
  return net::listen(net::process(), device, handle, comm);
}
Result connect_v6(int device, void* handle, void** comm) {
  return net::connect(net::process(), device, handle, comm);
}
Result connect_v7(int device, void* handle, void** comm, void** device_handle) {
  if (device_handle != nullptr) *device_handle = nullptr;
  return net::connect(net::process(), device, handle, comm);
}
Result connect_v10(int device, abi::Config*, void* handle, void** comm, void** device_handle) {
  return connect_v7(device, handle, comm, device_handle);
}
Result connect_v11(void* context, int device, void* handle, void** comm, void** device_handle) {
  if (device_handle != nullptr) *device_handle = nullptr;
  return net::connect(context, device, handle, comm);
}
Result accept_v7(void* listen_comm, void** comm, void** device_handle) {
  if (device_handle != nullptr) *device_handle = nullptr;
  return net::accept(listen_comm, comm);
}
Result reg_mr_int(void* comm, void* data, int size, int type, void** memory) {
  return net::reg_mr(comm, data, static_cast<size_t>(size), type, memory);
}
Result isend_int(void* comm, void* data, int size, int tag, void* memory, void** request) {
  if (size < 0) return abi::kInvalidArgument;
  return net::isend(comm, data, static_cast<size_t>(size), tag, memory, nullptr, request);
}
Result isend_size(void* comm, void* data, size_t size, int tag, void* memory, void** request) {
  return net::isend(comm, data, size, tag, memory, nullptr, request);
}
Result isend_profiled(void* comm, void* data, size_t size, int tag, void* memory, void* parent,
                      void** request) {
  return net::isend(comm, data, size, tag, memory, parent, request);
}
Result irecv_int(void* comm, int n, void** data, int* sizes, int*, void** memory, void** request) {
  if (n != 1 || sizes[0] < 0) return abi::kInvalidArgument;
  size_t size = static_cast<size_t>(sizes[0]);
  return net::irecv(comm, n, data, &size, memory, nullptr, request);
}
Result irecv_size(void* comm, int n, void** data, size_t* sizes, int*, void** memory, void** request) {
  return net::irecv(comm, n, data, sizes, memory, nullptr, request);
}
// An in-value of *request may hint that early completion is allowed; it is not needed, and would break the
// promise that a completed receive has arrived.
Result irecv_profiled(void* comm, int n, void** data, size_t* sizes, int*, void** memory, void** parents,
                      void** request) {
  return net::irecv(comm, n, data, sizes, memory, parents != nullptr ? parents[0] : nullptr, request);
}

constexpr char kName[] = "fabricpulse";

}  // namespace
}  // namespace fabricpulse

using namespace fabricpulse;

FABRICPULSE_EXPORT const abi::NetV6 ncclNetPlugin_v6 = {
    kName,       init_once<6>, net::devices,       properties_v6,   listen_process,   connect_v6,
    net::accept, reg_mr_int,   net::reg_mr_dmabuf, net::dereg_mr,   isend_int,        irecv_int,
    net::iflush, net::test,    net::close_send,    net::close_recv, net::close_listen};

FABRICPULSE_EXPORT const abi::NetV7 ncclNetPlugin_v7 = {
    kName,       init_once<7>, net::devices,       properties_v7,   listen_process,    connect_v7,
    accept_v7,   reg_mr_int,   net::reg_mr_dmabuf, net::dereg_mr,   isend_int,         irecv_int,
    net::iflush, net::test,    net::close_send,    net::close_recv, net::close_listen, nullptr,
    nullptr};

FABRICPULSE_EXPORT const abi::NetV8 ncclNetPlugin_v8 = {
    kName,       init_once<8>, net::devices,       properties_v8,   listen_process,    connect_v7,
    accept_v7,   net::reg_mr,  net::reg_mr_dmabuf, net::dereg_mr,   isend_int,         irecv_int,
    net::iflush, net::test,    net::close_send,    net::close_recv, net::close_listen, nullptr,
    nullptr};

FABRICPULSE_EXPORT const abi::NetV9 ncclNetPlugin_v9 = {
    kName,       init_once<9>, net::devices,       properties_v9,   listen_process,    connect_v7,
    accept_v7,   net::reg_mr,  net::reg_mr_dmabuf, net::dereg_mr,   isend_size,        irecv_size,
    net::iflush, net::test,    net::close_send,    net::close_recv, net::close_listen, nullptr,
    nullptr,     nullptr};

FABRICPULSE_EXPORT const abi::NetV10 ncclNetPlugin_v10 = {
    kName,       init_v10,    net::devices,       properties_v9,   listen_process,    connect_v10,
    accept_v7,   net::reg_mr, net::reg_mr_dmabuf, net::dereg_mr,   isend_profiled,    irecv_profiled,
    net::iflush, net::test,   net::close_send,    net::close_recv, net::close_listen, nullptr,
    nullptr,     nullptr};

FABRICPULSE_EXPORT const abi::NetV11 ncclNetPlugin_v11 = {
    kName,       init_each<11>, net::devices,       properties_v11,     net::listen,       connect_v11,
    accept_v7,   net::reg_mr,   net::reg_mr_dmabuf, net::dereg_mr,      isend_profiled,    irecv_profiled,
    net::iflush, net::test,     net::close_send,    net::close_recv,    net::close_listen, nullptr,
    nullptr,     nullptr,       net::finalize,      net::set_attributes};

FABRICPULSE_EXPORT const abi::NetV12 ncclNetPlugin_v12 = {
    kName,       init_each<12>, net::devices,       properties_v12,     net::listen,       connect_v11,
    accept_v7,   net::reg_mr,   net::reg_mr_dmabuf, net::dereg_mr,      isend_profiled,    irecv_profiled,
    net::iflush, net::test,     net::close_send,    net::close_recv,    net::close_listen, nullptr,
    nullptr,     nullptr,       net::finalize,      net::set_attributes};
