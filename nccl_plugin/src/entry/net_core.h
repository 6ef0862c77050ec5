// What all versions of the net interface share, in terms of v12.
//
// Nothing here blocks, and no exception leaves: one becomes an error code and a line in NCCL's log.
#ifndef FABRICPULSE_ENTRY_NET_CORE_H_
#define FABRICPULSE_ENTRY_NET_CORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "abi/net.h"
#include "process/plugin_engine.h"

namespace fabricpulse::net {

// `version` is shown in the telemetry.
abi::Result init(void** context, uint64_t communicator, abi::Logger log, abi::ProfilerCallback profiler,
                 const char* version);
abi::Result finalize(void* context);
// The one context of net v10 and older, which have none and never finalize it.
abi::Result process_init(abi::Logger log, abi::ProfilerCallback profiler, const char* version);
void* process();

abi::Result devices(int* count);
// Calls `use` with the NIC that has this number for NCCL.
abi::Result describe(int device, const std::function<void(const Nic&)>& use);

abi::Result listen(void* context, int device, void* handle, void** listen_comm);
abi::Result connect(void* context, int device, void* handle, void** send_comm);
abi::Result accept(void* listen_comm, void** recv_comm);
abi::Result reg_mr(void* comm, void* data, size_t size, int type, void** memory);
abi::Result reg_mr_dmabuf(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                          void** memory);
abi::Result dereg_mr(void* comm, void* memory);
// The kinds of memory that can be registered, NCCL_PTR_*.
int memory_kinds();
// memory: what reg_mr() gave. parent: the profiler's handle of the step; may be null.
abi::Result isend(void* send_comm, void* data, size_t size, int tag, void* memory, void* parent,
                  void** request);
abi::Result irecv(void* recv_comm, int n, void** data, const size_t* sizes, void** memory, void* parent,
                  void** request);
abi::Result iflush(void* recv_comm, int n, void** data, int* sizes, void** memory, void** request);
abi::Result test(void* request, int* done, int* sizes);
abi::Result close_send(void* send_comm);
abi::Result close_recv(void* recv_comm);
abi::Result close_listen(void* listen_comm);
abi::Result set_attributes(void* context, abi::NetAttributes* attributes);

}  // namespace fabricpulse::net

#endif  // FABRICPULSE_ENTRY_NET_CORE_H_
