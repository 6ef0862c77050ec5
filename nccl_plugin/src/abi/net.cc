// The symbols ncclNetPlugin_v6 … v12: one core, thin shims for what differs between versions.
//
// Nothing here blocks, and no exception leaves: `guarded` turns one into an error code and a line in NCCL's
// log.
#include "abi/net.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

#include "collectives.h"
#include "engine.h"

#define FABRICPULSE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fabricpulse {
namespace {

using abi::Result;

// What NCCL has last said by setNetAttr about a communicator's traffic. Connections take it over when they
// are used: it changes with the kind of transfer.
struct Attributes {
  std::atomic<uint32_t> operations{UINT32_MAX}, algorithms{UINT32_MAX}, protocols{UINT32_MAX};
  std::atomic<uint32_t> changes{1};
};

struct Context {  // of a communicator
  std::shared_ptr<Engine> engine;
  uint64_t communicator = 0;
  std::shared_ptr<Attributes> attributes = std::make_shared<Attributes>();
  abi::ProfilerCallback profiler = nullptr;
};

struct ListenComm {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Listener> listener;
  std::shared_ptr<Attributes> attributes;
  abi::ProfilerCallback profiler = nullptr;
};

// What a connection tells of the traffic on it, besides moving it.
struct Composition {
  std::shared_ptr<Attributes> attributes;
  uint32_t seen = 0;
  abi::ProfilerCallback profiler = nullptr;

  // With the connection's lock held. `parent`: the profiler's handle of the step, from NCCL; may be null.
  void note(Engine* engine, Connection* connection, void* parent, uint64_t now) {
    uint32_t changes = attributes->changes.load(std::memory_order_acquire);
    if (changes != seen) {
      seen = changes;
      connection->set_attributes(attributes->operations, attributes->algorithms, attributes->protocols);
    }
    if (parent == nullptr || profiler == nullptr || engine->detail() < 2 || !connection->flow_due(now))
      return;
    void* event = nullptr;  // stays null: ours is over with this call, and another profiler does not know it
    (void)profiler(&event, 0, parent, kNetEventId, connection);
    if (event != nullptr) (void)profiler(&event, 1, nullptr, kNetEventId, nullptr);
  }
};

struct SendComm {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Sender> sender;
  Composition composition;
};

struct RecvComm {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Receiver> receiver;
  Composition composition;
};

std::mutex process_lock;
Context* process_context = nullptr;  // for net v10 and older, which have no contexts and never say goodbye
abi::Logger logger = nullptr;

template <typename F>
Result guarded(F&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    if (logger != nullptr)
      logger(static_cast<int>(LogLevel::kWarn), ~0ul, "fabricpulse", 0, "NET/FABRICPULSE: %s", error.what());
  } catch (...) {
  }
  return abi::kInternalError;
}

Result report(Engine* engine, const std::string& text, Result result) {
  engine->warn(text);
  return result;
}

// Receivers that owe their sender a word. It is given when this thread has nothing better to do, which is
// soon: NCCL polls. Given at once it would lie between a receive and the send that answers it; left to the
// next call on that connection it may come late, since after the last receive NCCL has no reason to call.
class Debts {
 public:
  void add(Receiver* receiver) {
    for (size_t i = 0; i < count_; ++i)
      if (raw_[i] == receiver) return;
    if (count_ == kMost) {
      receiver->settle(receiver->clock());
      return;
    }
    raw_[count_] = receiver;
    receivers_[count_++] = receiver->weak_from_this();
  }
  void settle() {
    if (count_ == 0) return;
    for (size_t i = 0; i < count_; ++i) {
      if (auto receiver = receivers_[i].lock(); receiver && receiver->try_enter()) {
        receiver->settle(receiver->clock());
        receiver->leave();
      }
      receivers_[i].reset();
    }
    count_ = 0;
  }

 private:
  static constexpr size_t kMost = 16;
  Receiver* raw_[kMost] = {};
  std::weak_ptr<Receiver> receivers_[kMost];
  size_t count_ = 0;
};
thread_local Debts debts;

// ---- core, in terms of v12 ----

Result core_init(void** context, uint64_t communicator, abi::Logger log, abi::ProfilerCallback profiler,
                 const char* version) {
  return guarded([&]() -> Result {
    logger = log;
    std::string error;
    auto engine = Engine::acquire(log, Engine::Purpose::kNet, &error);
    if (!engine) {
      if (log != nullptr)
        log(static_cast<int>(LogLevel::kWarn), ~0ul, "fabricpulse", 0, "NET/FABRICPULSE: not used: %s",
            error.c_str());
      return abi::kSystemError;
    }
    engine->called(version);
    engine->add_communicator(1);
    auto* made = new Context;
    made->engine = std::move(engine);
    made->communicator = communicator;
    made->profiler = profiler;
    *context = made;
    return abi::kSuccess;
  });
}

Result core_finalize(void* context) {
  return guarded([&]() -> Result {
    auto* made = static_cast<Context*>(context);
    if (made == nullptr) return abi::kSuccess;
    made->engine->add_communicator(-1);
    delete made;
    return abi::kSuccess;
  });
}

Result process_init(abi::Logger log, abi::ProfilerCallback profiler, const char* version) {
  std::lock_guard<std::mutex> lock(process_lock);
  if (process_context != nullptr) return abi::kSuccess;
  void* context = nullptr;
  Result result = core_init(&context, 0, log, profiler, version);
  if (result == abi::kSuccess) process_context = static_cast<Context*>(context);
  return result;
}

// devices() and getProperties() have no context: NCCL calls them after an init() that succeeded.
std::shared_ptr<Engine> running() {
  std::string error;
  return Engine::acquire(nullptr, Engine::Purpose::kNet, &error);
}

Result core_devices(int* count) {
  return guarded([&]() -> Result {
    auto engine = running();
    if (!engine) return abi::kInternalError;
    *count = static_cast<int>(engine->device_count());
    return abi::kSuccess;
  });
}

template <typename Properties>
Result fill_properties(int device, Properties* out) {
  return guarded([&]() -> Result {
    auto engine = running();
    if (!engine || device < 0 || static_cast<uint32_t>(device) >= engine->device_count())
      return abi::kInvalidArgument;
    const Engine::Nic& nic = engine->nic(static_cast<uint32_t>(device));
    memset(out, 0, sizeof(*out));
    out->name = const_cast<char*>(nic.name.c_str());
    out->pci_path = nic.pci_path.empty() ? nullptr : const_cast<char*>(nic.pci_path.c_str());
    out->guid = nic.guid;
    out->pointer_support = abi::kPointerHost;
    out->speed_mbps = static_cast<int>(nic.speed_mbps);
    out->port = 0;
    out->latency_us = 0;  // NCCL takes its own figure
    out->max_comms = 65536;
    out->max_recvs = 1;
    return abi::kSuccess;
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

Result core_listen(void* context, int device, void* handle, void** listen_comm) {
  return guarded([&]() -> Result {
    auto* made = static_cast<Context*>(context);
    if (device < 0 || static_cast<uint32_t>(device) >= made->engine->device_count())
      return abi::kInvalidArgument;
    auto* comm = new ListenComm;
    comm->engine = made->engine;
    comm->attributes = made->attributes;
    comm->profiler = made->profiler;
    Handle own;
    comm->listener = made->engine->listen(static_cast<uint32_t>(device), made->communicator, &own);
    memset(handle, 0, abi::kHandleBytes);
    memcpy(handle, &own, sizeof(own));
    *listen_comm = comm;
    return abi::kSuccess;
  });
}

Result core_connect(void* context, int device, void* handle, void** send_comm) {
  return guarded([&]() -> Result {
    auto* made = static_cast<Context*>(context);
    *send_comm = nullptr;
    if (device < 0 || static_cast<uint32_t>(device) >= made->engine->device_count())
      return abi::kInvalidArgument;
    std::string error;
    Handle own;
    memcpy(&own, handle, sizeof(own));
    auto sender = made->engine->connect(static_cast<uint32_t>(device), made->communicator, &own, &error);
    memcpy(handle, &own, sizeof(own));
    if (!error.empty()) return report(made->engine.get(), error, abi::kRemoteError);
    if (!sender) return abi::kSuccess;
    auto* comm = new SendComm;
    comm->engine = made->engine;
    comm->composition.attributes = made->attributes;
    comm->composition.profiler = made->profiler;
    comm->sender = std::move(sender);
    *send_comm = comm;
    return abi::kSuccess;
  });
}

Result core_accept(void* listen_comm, void** recv_comm) {
  return guarded([&]() -> Result {
    auto* listen = static_cast<ListenComm*>(listen_comm);
    *recv_comm = nullptr;
    auto receiver = listen->engine->accept(listen->listener);
    if (!receiver) return abi::kSuccess;
    auto* comm = new RecvComm;
    comm->engine = listen->engine;
    comm->composition.attributes = listen->attributes;
    comm->composition.profiler = listen->profiler;
    comm->receiver = std::move(receiver);
    *recv_comm = comm;
    return abi::kSuccess;
  });
}

// Sockets need no registration; NCCL wants something that is not null.
char registered;

Result core_reg_mr(void*, void*, size_t, int type, void** memory) {
  if (type != abi::kPointerHost) return abi::kInvalidArgument;
  *memory = &registered;
  return abi::kSuccess;
}

Result core_reg_mr_dmabuf(void*, void*, size_t, int, uint64_t, int, void**) { return abi::kInvalidUsage; }
Result core_dereg_mr(void*, void*) { return abi::kSuccess; }

Result core_isend(void* send_comm, void* data, size_t size, int tag, void* parent, void** request) {
  return guarded([&]() -> Result {
    auto* comm = static_cast<SendComm*>(send_comm);
    Sender* sender = comm->sender.get();
    *request = nullptr;
    if (size > (size_t{1} << 30)) return abi::kInvalidArgument;
    if (!sender->try_enter()) return abi::kSuccess;
    Result result = abi::kSuccess;
    uint64_t now = comm->engine->now();
    if (sender->broken(now)) {
      result = abi::kRemoteError;
    } else {
      *request = sender->send(data, static_cast<uint32_t>(size), static_cast<uint32_t>(tag), now);
      comm->composition.note(comm->engine.get(), sender, parent, now);
    }
    sender->leave();
    return result;
  });
}

Result core_irecv(void* recv_comm, int n, void** data, const size_t* sizes, void* parent, void** request) {
  return guarded([&]() -> Result {
    auto* comm = static_cast<RecvComm*>(recv_comm);
    Receiver* receiver = comm->receiver.get();
    *request = nullptr;
    if (n != 1) return abi::kInvalidArgument;
    if (!receiver->try_enter()) return abi::kSuccess;
    Result result = abi::kSuccess;
    uint64_t now = comm->engine->now();
    if (receiver->broken(now)) {
      result = abi::kRemoteError;
    } else {
      *request = receiver->receive(data[0], sizes[0], now);
      comm->composition.note(comm->engine.get(), receiver, parent, now);
      if (receiver->owes()) debts.add(receiver);
    }
    receiver->leave();
    return result;
  });
}

Result core_iflush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;  // host memory: what test() has reported is there
  return abi::kSuccess;
}

Result core_test(void* request, int* done, int* sizes) {
  return guarded([&]() -> Result {
    *done = 0;
    uint32_t size = 0;
    bool truncated = false, finished = false, broken = false;
    auto* kind = static_cast<RequestKind*>(request);
    if (*kind == RequestKind::kSend) {
      auto* message = static_cast<SendMessage*>(request);
      Sender* sender = message->owner;
      if (!sender->try_enter()) return abi::kSuccess;
      finished = sender->test(message, &size, sender->clock());
      broken = !finished && sender->broken(sender->clock());
      sender->leave();
    } else {
      auto* message = static_cast<ReceiveMessage*>(request);
      Receiver* receiver = message->owner;
      if (!receiver->try_enter()) return abi::kSuccess;
      finished = receiver->test(message, &size, &truncated, receiver->clock());
      broken = !finished && receiver->broken(receiver->clock());
      if (finished && receiver->owes()) debts.add(receiver);
      receiver->leave();
    }
    if (truncated) return abi::kInvalidUsage;
    if (broken) return abi::kRemoteError;
    if (!finished) {
      debts.settle();
      return abi::kSuccess;
    }
    if (sizes != nullptr) sizes[0] = static_cast<int>(size);
    *done = 1;
    return abi::kSuccess;
  });
}

Result core_close_send(void* send_comm) {
  return guarded([&]() -> Result {
    std::unique_ptr<SendComm> comm(static_cast<SendComm*>(send_comm));
    if (comm) comm->engine->close(comm->sender);
    if (comm) comm->sender.reset();
    return abi::kSuccess;
  });
}

Result core_close_recv(void* recv_comm) {
  return guarded([&]() -> Result {
    std::unique_ptr<RecvComm> comm(static_cast<RecvComm*>(recv_comm));
    if (comm) comm->engine->close(comm->receiver);
    if (comm) comm->receiver.reset();
    return abi::kSuccess;
  });
}

Result core_close_listen(void* listen_comm) {
  return guarded([&]() -> Result {
    std::unique_ptr<ListenComm> comm(static_cast<ListenComm*>(listen_comm));
    if (comm) comm->engine->close_listener(comm->listener);
    if (comm) comm->listener.reset();
    return abi::kSuccess;
  });
}

Result core_set_attributes(void* context, abi::NetAttributes* attributes) {
  auto* made = static_cast<Context*>(context);
  if (made == nullptr || attributes == nullptr) return abi::kSuccess;
  Attributes& kept = *made->attributes;
  kept.operations = attributes->operations;
  kept.algorithms = attributes->algorithms;
  kept.protocols = attributes->protocols;
  kept.changes.fetch_add(1, std::memory_order_release);
  return abi::kSuccess;
}

// ---- shims ----

// Properties: what is new in a version is filled by the overload for it.
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
  return process_init(log, nullptr, version_name<kVersion>());
}
Result init_v10(abi::Logger log, abi::ProfilerCallback profiler) {
  return process_init(log, profiler, version_name<10>());
}
template <int kVersion>
Result init_each(void** context, uint64_t communicator, abi::Config*, abi::Logger log,
                 abi::ProfilerCallback profiler) {
  return core_init(context, communicator, log, profiler, version_name<kVersion>());
}

Result listen_process(int device, void* handle, void** comm) {
  return core_listen(process_context, device, handle, comm);
}
Result connect_v6(int device, void* handle, void** comm) {
  return core_connect(process_context, device, handle, comm);
}
Result connect_v7(int device, void* handle, void** comm, void** device_handle) {
  if (device_handle != nullptr) *device_handle = nullptr;
  return core_connect(process_context, device, handle, comm);
}
Result connect_v10(int device, abi::Config*, void* handle, void** comm, void** device_handle) {
  return connect_v7(device, handle, comm, device_handle);
}
Result connect_v11(void* context, int device, void* handle, void** comm, void** device_handle) {
  if (device_handle != nullptr) *device_handle = nullptr;
  return core_connect(context, device, handle, comm);
}
Result accept_v7(void* listen_comm, void** comm, void** device_handle) {
  if (device_handle != nullptr) *device_handle = nullptr;
  return core_accept(listen_comm, comm);
}
Result reg_mr_int(void* comm, void* data, int size, int type, void** memory) {
  return core_reg_mr(comm, data, static_cast<size_t>(size), type, memory);
}
Result isend_int(void* comm, void* data, int size, int tag, void*, void** request) {
  if (size < 0) return abi::kInvalidArgument;
  return core_isend(comm, data, static_cast<size_t>(size), tag, nullptr, request);
}
Result isend_size(void* comm, void* data, size_t size, int tag, void*, void** request) {
  return core_isend(comm, data, size, tag, nullptr, request);
}
Result isend_profiled(void* comm, void* data, size_t size, int tag, void*, void* parent, void** request) {
  return core_isend(comm, data, size, tag, parent, request);
}
Result irecv_int(void* comm, int n, void** data, int* sizes, int*, void**, void** request) {
  if (n != 1 || sizes[0] < 0) return abi::kInvalidArgument;
  size_t size = static_cast<size_t>(sizes[0]);
  return core_irecv(comm, n, data, &size, nullptr, request);
}
Result irecv_size(void* comm, int n, void** data, size_t* sizes, int*, void**, void** request) {
  return core_irecv(comm, n, data, sizes, nullptr, request);
}
// An in-value of *request may hint that early completion is allowed; it is not needed, and would break the
// promise that a completed receive has arrived.
Result irecv_profiled(void* comm, int n, void** data, size_t* sizes, int*, void**, void** parents,
                      void** request) {
  return core_irecv(comm, n, data, sizes, parents != nullptr ? parents[0] : nullptr, request);
}

constexpr char kName[] = "fabricpulse";

}  // namespace
}  // namespace fabricpulse

using namespace fabricpulse;

FABRICPULSE_EXPORT const abi::NetV6 ncclNetPlugin_v6 = {
    kName,       init_once<6>, core_devices,       properties_v6,   listen_process,   connect_v6,
    core_accept, reg_mr_int,   core_reg_mr_dmabuf, core_dereg_mr,   isend_int,        irecv_int,
    core_iflush, core_test,    core_close_send,    core_close_recv, core_close_listen};

FABRICPULSE_EXPORT const abi::NetV7 ncclNetPlugin_v7 = {
    kName,       init_once<7>, core_devices,       properties_v7,   listen_process,    connect_v7,
    accept_v7,   reg_mr_int,   core_reg_mr_dmabuf, core_dereg_mr,   isend_int,         irecv_int,
    core_iflush, core_test,    core_close_send,    core_close_recv, core_close_listen, nullptr,
    nullptr};

FABRICPULSE_EXPORT const abi::NetV8 ncclNetPlugin_v8 = {
    kName,       init_once<8>, core_devices,       properties_v8,   listen_process,    connect_v7,
    accept_v7,   core_reg_mr,  core_reg_mr_dmabuf, core_dereg_mr,   isend_int,         irecv_int,
    core_iflush, core_test,    core_close_send,    core_close_recv, core_close_listen, nullptr,
    nullptr};

FABRICPULSE_EXPORT const abi::NetV9 ncclNetPlugin_v9 = {
    kName,       init_once<9>, core_devices,       properties_v9,   listen_process,    connect_v7,
    accept_v7,   core_reg_mr,  core_reg_mr_dmabuf, core_dereg_mr,   isend_size,        irecv_size,
    core_iflush, core_test,    core_close_send,    core_close_recv, core_close_listen, nullptr,
    nullptr,     nullptr};

FABRICPULSE_EXPORT const abi::NetV10 ncclNetPlugin_v10 = {
    kName,       init_v10,    core_devices,       properties_v9,   listen_process,    connect_v10,
    accept_v7,   core_reg_mr, core_reg_mr_dmabuf, core_dereg_mr,   isend_profiled,    irecv_profiled,
    core_iflush, core_test,   core_close_send,    core_close_recv, core_close_listen, nullptr,
    nullptr,     nullptr};

FABRICPULSE_EXPORT const abi::NetV11 ncclNetPlugin_v11 = {
    kName,       init_each<11>, core_devices,       properties_v11,     core_listen,       connect_v11,
    accept_v7,   core_reg_mr,   core_reg_mr_dmabuf, core_dereg_mr,      isend_profiled,    irecv_profiled,
    core_iflush, core_test,     core_close_send,    core_close_recv,    core_close_listen, nullptr,
    nullptr,     nullptr,       core_finalize,      core_set_attributes};

FABRICPULSE_EXPORT const abi::NetV12 ncclNetPlugin_v12 = {
    kName,       init_each<12>, core_devices,       properties_v12,     core_listen,       connect_v11,
    accept_v7,   core_reg_mr,   core_reg_mr_dmabuf, core_dereg_mr,      isend_profiled,    irecv_profiled,
    core_iflush, core_test,     core_close_send,    core_close_recv,    core_close_listen, nullptr,
    nullptr,     nullptr,       core_finalize,      core_set_attributes};
