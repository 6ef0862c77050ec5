// What NCCL holds by its handles: a communicator's context, listeners, the ends of connections.
#ifndef FABRICPULSE_ENTRY_COMMS_H_
#define FABRICPULSE_ENTRY_COMMS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "abi/net.h"
#include "process/collectives.h"
#include "process/plugin_engine.h"

namespace fabricpulse::net {

// NCCL's last setNetAttr about a communicator's traffic. Connections take it over when they
// are used: it changes with the kind of transfer.
struct Attributes {
  std::atomic<uint32_t> operations{UINT32_MAX}, algorithms{UINT32_MAX}, protocols{UINT32_MAX};
  std::atomic<uint32_t> changes{1};
};

// Connections that connect() has begun and not returned yet. Several threads may connect.
class Begun {
 public:
  // What a call has left in the handle, and whether it was the last one.
  void note(uint64_t cookie, bool over) {
    std::lock_guard<std::mutex> held(lock_);
    if (over) {
      cookies_.erase(cookie);
    } else if (cookie != 0) {
      cookies_.insert(cookie);
    }
  }
  const std::set<uint64_t>& cookies() const { return cookies_; }

 private:
  std::mutex lock_;
  std::set<uint64_t> cookies_;
};

struct Context {  // of a communicator
  std::shared_ptr<PluginEngine> engine;
  Begun begun;
  uint64_t communicator = 0;
  std::shared_ptr<Attributes> attributes = std::make_shared<Attributes>();
  abi::ProfilerCallback profiler = nullptr;
};

struct ListenComm {
  std::shared_ptr<PluginEngine> engine;
  std::shared_ptr<Listener> listener;
  std::shared_ptr<Attributes> attributes;
  abi::ProfilerCallback profiler = nullptr;
};

// What a connection reports of its traffic, besides moving it.
struct Composition {
  std::shared_ptr<Attributes> attributes;
  uint32_t seen = 0;
  abi::ProfilerCallback profiler = nullptr;

  // With the connection's lock held. `parent`: the profiler's handle of the step, from NCCL; may be null.
  void note(PluginEngine* engine, Connection* connection, void* parent, uint64_t now) {
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

struct Comm {  // what both ends have first
  std::shared_ptr<PluginEngine> engine;
  Connection* connection = nullptr;  // the one below
  // How many times NCCL has registered a memory for this connection.
  std::mutex registered_lock;
  std::map<RegisteredMemory*, uint32_t> registered;

  void registers(RegisteredMemory* memory) {
    std::lock_guard<std::mutex> held(registered_lock);
    ++registered[memory];
  }
  // True if it was the last time.
  bool deregisters(RegisteredMemory* memory) {
    std::lock_guard<std::mutex> held(registered_lock);
    auto found = registered.find(memory);
    if (found == registered.end()) return true;
    if (--found->second > 0) return false;
    registered.erase(found);
    return true;
  }
  // What NCCL has not given back when it closes: an abort leaves it.
  void deregister_rest() {
    for (auto& [memory, times] : registered)
      for (; times > 0; --times) engine->transport()->deregister_memory(memory);
    registered.clear();
  }
};

struct SendComm : Comm {
  std::shared_ptr<SendConnection> sender;
  Composition composition;
};

struct RecvComm : Comm {
  std::shared_ptr<RecvConnection> receiver;
  Composition composition;
};

}  // namespace fabricpulse::net

#endif  // FABRICPULSE_ENTRY_COMMS_H_
