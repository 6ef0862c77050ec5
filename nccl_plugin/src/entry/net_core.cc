#include "entry/net_core.h"

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>

#include "entry/comms.h"
#include "entry/deferred_acks.h"

namespace fabricpulse::net {

using abi::Result;

namespace {

std::mutex process_lock;
Context* process_context = nullptr;
// The last communicator's; they may begin in several threads at once.
std::atomic<abi::Logger> logger{nullptr};

template <typename F>
Result guarded(F&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    if (abi::Logger log = logger.load(std::memory_order_relaxed); log != nullptr)
      log(static_cast<int>(LogLevel::kWarn), ~0ul, "fabricpulse", 0, "NET/FABRICPULSE: %s", error.what());
  } catch (...) {
  }
  return abi::kInternalError;
}

thread_local DeferredAcks deferred_acks;
// Its count. Each test() asks, and a variable that is never destroyed costs less to find.
thread_local size_t acks_deferred = 0;

void defer_ack(RecvConnection* receiver) {
  if (!receiver->ack_pending()) return;
  deferred_acks.add(receiver);
  acks_deferred = deferred_acks.count();
}

void flush_acks() {
  if (acks_deferred == 0) return;
  deferred_acks.flush();
  acks_deferred = deferred_acks.count();
}

// What is to be closed; nullptr in a child made by fork(): there it stays as it is, with locks that a thread of the
// parent may hold for ever, and what it has in the telemetry is the parent's.
template <typename T>
T* own(void* comm) {
  auto* made = static_cast<T*>(comm);
  return made == nullptr || made->engine->inherited() ? nullptr : made;
}

}  // namespace

Result init(void** context, uint64_t communicator, abi::Logger log, abi::ProfilerCallback profiler,
            const char* version) {
  return guarded([&]() -> Result {
    logger.store(log, std::memory_order_relaxed);
    std::string error;
    auto engine = PluginEngine::acquire(log, PluginEngine::Purpose::kNet, &error);
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

Result finalize(void* context) {
  return guarded([&]() -> Result {
    auto* made = static_cast<Context*>(context);
    if (made == nullptr || made->engine->inherited()) return abi::kSuccess;
    for (uint64_t cookie : made->begun.cookies()) made->engine->give_up(cookie);
    made->engine->add_communicator(-1);
    delete made;
    return abi::kSuccess;
  });
}

Result process_init(abi::Logger log, abi::ProfilerCallback profiler, const char* version) {
  std::lock_guard<std::mutex> lock(process_lock);
  if (process_context != nullptr && !process_context->engine->inherited()) return abi::kSuccess;
  void* context = nullptr;
  Result result = init(&context, 0, log, profiler, version);
  if (result == abi::kSuccess) process_context = static_cast<Context*>(context);
  return result;
}

void* process() { return process_context; }

// devices() and getProperties() have no context: NCCL calls them after an init() that succeeded.
static std::shared_ptr<PluginEngine> running() {
  std::string error;
  return PluginEngine::acquire(nullptr, PluginEngine::Purpose::kNet, &error);
}

Result devices(int* count) {
  return guarded([&]() -> Result {
    auto engine = running();
    if (!engine) return abi::kInternalError;
    *count = static_cast<int>(engine->device_count());
    return abi::kSuccess;
  });
}

Result listen(void* context, int device, void* handle, void** listen_comm) {
  return guarded([&]() -> Result {
    auto* made = static_cast<Context*>(context);
    if (made->engine->inherited()) return abi::kInvalidUsage;
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

Result connect(void* context, int device, void* handle, void** send_comm) {
  return guarded([&]() -> Result {
    auto* made = static_cast<Context*>(context);
    *send_comm = nullptr;
    if (made->engine->inherited()) return abi::kInvalidUsage;
    if (device < 0 || static_cast<uint32_t>(device) >= made->engine->device_count())
      return abi::kInvalidArgument;
    bool failed = false;
    Handle own;
    memcpy(&own, handle, sizeof(own));
    auto sender = made->engine->connect(static_cast<uint32_t>(device), made->communicator, &own, &failed);
    memcpy(handle, &own, sizeof(own));
    made->begun.note(own.cookie, sender != nullptr || failed);
    if (failed) {
      made->engine->give_up(own.cookie);  // NCCL has nothing that it could close
      return abi::kRemoteError;
    }
    if (!sender) return abi::kSuccess;
    auto* comm = new SendComm;
    comm->engine = made->engine;
    comm->composition.attributes = made->attributes;
    comm->composition.profiler = made->profiler;
    comm->connection = sender.get();
    comm->sender = std::move(sender);
    *send_comm = comm;
    return abi::kSuccess;
  });
}

Result accept(void* listen_comm, void** recv_comm) {
  return guarded([&]() -> Result {
    auto* listen = static_cast<ListenComm*>(listen_comm);
    *recv_comm = nullptr;
    if (listen->engine->inherited()) return abi::kInvalidUsage;
    auto receiver = listen->engine->accept(listen->listener);
    if (!receiver) return abi::kSuccess;
    auto* comm = new RecvComm;
    comm->engine = listen->engine;
    comm->composition.attributes = listen->attributes;
    comm->composition.profiler = listen->profiler;
    comm->connection = receiver.get();
    comm->receiver = std::move(receiver);
    *recv_comm = comm;
    return abi::kSuccess;
  });
}

int memory_kinds() {
  auto engine = running();
  return engine ? engine->transport()->memory_kinds() : abi::kPointerHost;
}

Result reg_mr(void* comm, void* data, size_t size, int type, void** memory) {
  return guarded([&]() -> Result {
    auto* made = static_cast<Comm*>(comm);
    if (made->engine->inherited()) return abi::kInvalidUsage;
    std::string why;
    RegisteredMemory* registered = made->engine->transport()->register_memory(data, size, type, &why);
    *memory = registered;
    if (registered == nullptr) {
      made->engine->warn("NCCL's memory cannot be registered: " + why);
      return abi::kInvalidArgument;
    }
    made->registers(registered);
    return abi::kSuccess;
  });
}

Result reg_mr_dmabuf(void*, void*, size_t, int, uint64_t, int, void**) { return abi::kInvalidUsage; }

// An abort takes memory back while requests are under way, and closes their connection only later.
Result dereg_mr(void* comm, void* memory) {
  return guarded([&]() -> Result {
    auto* made = static_cast<Comm*>(comm);
    auto* registered = static_cast<RegisteredMemory*>(memory);
    if (made->engine->inherited()) return abi::kSuccess;
    if (made->deregisters(registered)) {
      ConnectionLock locked(made->connection);
      made->connection->memory_returned(registered, made->engine->now());
    }
    made->engine->transport()->deregister_memory(registered);
    return abi::kSuccess;
  });
}

Result isend(void* send_comm, void* data, size_t size, int tag, void* memory, void* parent, void** request) {
  return guarded([&]() -> Result {
    auto* comm = static_cast<SendComm*>(send_comm);
    SendConnection* sender = comm->sender.get();
    *request = nullptr;
    if (sender->inherited()) return abi::kInvalidUsage;
    if (size > (size_t{1} << 30)) return abi::kInvalidArgument;
    if (!sender->try_lock()) return abi::kSuccess;
    Result result = abi::kSuccess;
    uint64_t now = comm->engine->now();
    if (sender->broken(now)) {
      result = abi::kRemoteError;
    } else {
      *request = sender->send(data, static_cast<uint32_t>(size), static_cast<uint32_t>(tag),
                              static_cast<const RegisteredMemory*>(memory), now);
      comm->composition.note(comm->engine.get(), sender, parent, now);
    }
    sender->unlock();
    return result;
  });
}

Result irecv(void* recv_comm, int n, void** data, const size_t* sizes, void** memory, void* parent,
             void** request) {
  return guarded([&]() -> Result {
    auto* comm = static_cast<RecvComm*>(recv_comm);
    RecvConnection* receiver = comm->receiver.get();
    *request = nullptr;
    if (receiver->inherited()) return abi::kInvalidUsage;
    if (n != 1) return abi::kInvalidArgument;
    if (!receiver->try_lock()) return abi::kSuccess;
    Result result = abi::kSuccess;
    uint64_t now = comm->engine->now();
    if (receiver->broken(now)) {
      result = abi::kRemoteError;
    } else {
      auto* registered = memory != nullptr ? static_cast<const RegisteredMemory*>(memory[0]) : nullptr;
      *request = receiver->receive(data[0], sizes[0], registered, now);
      comm->composition.note(comm->engine.get(), receiver, parent, now);
      defer_ack(receiver);
    }
    receiver->unlock();
    return result;
  });
}

Result iflush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;  // host memory: what test() has reported is there
  return abi::kSuccess;
}

Result test(void* request, int* done, int* sizes) {
  return guarded([&]() -> Result {
    *done = 0;
    uint32_t size = 0;
    bool truncated = false, finished = false, broken = false;
    if (request == nullptr) return abi::kInternalError;  // as NCCL's own transports
    auto* kind = static_cast<RequestKind*>(request);
    if (*kind == RequestKind::kSend) {
      auto* message = static_cast<SendMessage*>(request);
      SendConnection* sender = message->owner;
      if (sender->inherited()) return abi::kInvalidUsage;
      if (!sender->try_lock()) return abi::kSuccess;
      if (!sender->waits(message)) {
        const uint64_t now = sender->clock();
        finished = sender->test(message, &size, now);
        broken = !finished && sender->broken(now);
      }
      sender->unlock();
    } else {
      auto* message = static_cast<ReceiveMessage*>(request);
      RecvConnection* receiver = message->owner;
      if (receiver->inherited()) return abi::kInvalidUsage;
      if (!receiver->try_lock()) return abi::kSuccess;
      if (!receiver->waits(message)) {
        const uint64_t now = receiver->clock();
        finished = receiver->test(message, &size, &truncated, now);
        broken = !finished && receiver->broken(now);
        if (finished) defer_ack(receiver);
      }
      receiver->unlock();
    }
    if (truncated) return abi::kInvalidUsage;
    if (broken) return abi::kRemoteError;
    if (!finished) {
      flush_acks();
      return abi::kSuccess;
    }
    if (sizes != nullptr) sizes[0] = static_cast<int>(size);
    *done = 1;
    return abi::kSuccess;
  });
}

Result close_send(void* send_comm) {
  return guarded([&]() -> Result {
    std::unique_ptr<SendComm> comm(own<SendComm>(send_comm));
    if (!comm) return abi::kSuccess;
    comm->engine->close(comm->sender);
    comm->sender.reset();
    comm->deregister_rest();
    return abi::kSuccess;
  });
}

Result close_recv(void* recv_comm) {
  return guarded([&]() -> Result {
    std::unique_ptr<RecvComm> comm(own<RecvComm>(recv_comm));
    if (!comm) return abi::kSuccess;
    comm->engine->close(comm->receiver);
    comm->receiver.reset();
    comm->deregister_rest();
    return abi::kSuccess;
  });
}

Result close_listen(void* listen_comm) {
  return guarded([&]() -> Result {
    std::unique_ptr<ListenComm> comm(own<ListenComm>(listen_comm));
    if (comm) comm->engine->close_listener(comm->listener);
    if (comm) comm->listener.reset();
    return abi::kSuccess;
  });
}

Result set_attributes(void* context, abi::NetAttributes* attributes) {
  auto* made = static_cast<Context*>(context);
  if (made == nullptr || attributes == nullptr) return abi::kSuccess;
  Attributes& kept = *made->attributes;
  kept.operations = attributes->operations;
  kept.algorithms = attributes->algorithms;
  kept.protocols = attributes->protocols;
  kept.changes.fetch_add(1, std::memory_order_release);
  return abi::kSuccess;
}

Result describe(int device, const std::function<void(const Nic&)>& use) {
  return guarded([&]() -> Result {
    auto engine = running();
    if (!engine || device < 0 || static_cast<uint32_t>(device) >= engine->device_count())
      return abi::kInvalidArgument;
    use(engine->nic(static_cast<uint32_t>(device)));
    return abi::kSuccess;
  });
}

}  // namespace fabricpulse::net
