// A stand-in for libibverbs whose queue pairs all live in this process: a fabric that holds packets back, loses
// paths, repeats what was not acknowledged, and delivers what is under way even after the sender's queue pair is
// gone. It keeps to the rules of reliable connections that the lanes rely on, and ends the program where a caller
// breaks one (too many requests, memory that is not registered locally). Any thread may call the library; the fabric is
// stepped, and `busy` set, by the thread that has made it.
#ifndef FABRICPULSE_TESTS_NATIVE_VERBS_STAND_IN_H_
#define FABRICPULSE_TESTS_NATIVE_VERBS_STAND_IN_H_

#include <arpa/inet.h>
#include <errno.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "transport/verbs/verbs_library.h"

namespace fabricpulse::stand_in {

#define STAND_IN_REQUIRE(what)                          \
  do {                                                  \
    if (!(what)) {                                      \
      fprintf(stderr, "stand-in: broken: %s\n", #what); \
      abort();                                          \
    }                                                   \
  } while (0)

constexpr int kTries = 64;  // of a packet without an answer, then RETRY_EXC

struct Queue : ib::CompletionQueue {
  std::deque<ib::WorkCompletion> found;
};

struct Request {
  uint64_t id = 0;
  bool signaled = false, immediate = false;
  uint32_t value = 0;
  uint64_t address = 0;
  uint32_t key = 0;
  std::vector<uint8_t> data;
  int tries = 0;
};

struct Pair : ib::QueuePair {
  uint32_t device = 0;
  uint32_t peer = 0, send_psn = 0, expected_psn = 0;
  uint32_t most_sends = 0, most_receives = 0;
  std::deque<Request> sends;  // not acknowledged, oldest first
  size_t executed = 0;        // of those: the peer has them, its acknowledgement has not come
  uint32_t receives = 0;
};

// What is in the network: it arrives though its sender may be gone.
struct Packet {
  uint32_t to = 0, from = 0, psn = 0;
  Request request;
};

class Fabric {
 public:
  static constexpr uint32_t kDevices = 2;
  explicit Fabric(uint32_t seed) : random_(seed) {
    one() = this;
    for (uint32_t i = 0; i < kDevices; ++i) {
      contexts_[i].device = reinterpret_cast<ib::Device*>(&names_[i]);
      contexts_[i].async_fd = -1;
      contexts_[i].ops.poll_cq = poll;
      contexts_[i].ops.post_send = post_send;
      contexts_[i].ops.post_recv = post_recv;
    }
  }
  ~Fabric() { one() = nullptr; }

  VerbsLibrary library();
  using Guard = std::lock_guard<std::recursive_mutex>;
  static std::recursive_mutex& lock() {
    static std::recursive_mutex held;
    return held;
  }
  // Packets of a device are lost, in the direction from the queue pairs of an end or in both.
  void cut(uint32_t device, bool is_cut) { cut_[device] = is_cut; }
  // One thing happens in the fabric. False: there is nothing that could.
  bool step();
  size_t regions() const {
    Guard guard(lock());
    return regions_.size();
  }
  size_t pairs() const {
    Guard guard(lock());
    return pairs_.size();
  }
  bool busy = false;       // a call of this thread now must not wait for a driver: nothing is destroyed
  bool holds_back = true;  // now and then, what is for one queue pair
  uint64_t dropped = 0;    // packets that came for a queue pair that was closed or gone

 private:
  static Fabric*& one() {
    static Fabric* instance = nullptr;
    return instance;
  }
  static int poll(ib::CompletionQueue* queue, int most, ib::WorkCompletion* out) {
    Guard guard(lock());
    auto& found = static_cast<Queue*>(queue)->found;
    int count = 0;
    for (; count < most && !found.empty(); ++count) {
      out[count] = found.front();
      found.pop_front();
    }
    return count;
  }
  static int post_send(ib::QueuePair* pair, ib::SendRequest* first, ib::SendRequest** bad);
  static int post_recv(ib::QueuePair* pair, ib::RecvRequest* first, ib::RecvRequest** bad);
  static ib::WorkCompletion completion(const Pair* pair, uint64_t id, uint32_t status) {
    ib::WorkCompletion made{};
    made.id = id;
    made.status = status;
    made.queue_pair = pair->number;
    return made;
  }
  static void to_error(Pair* pair, uint32_t status) {
    pair->state = ib::kErrorState;
    auto& sent = static_cast<Queue*>(pair->send_cq)->found;
    for (const Request& request : pair->sends) {
      sent.push_back(completion(pair, request.id, status));
      status = ib::kFlushed;
    }
    pair->sends.clear();
    auto& received = static_cast<Queue*>(pair->recv_cq)->found;
    for (; pair->receives > 0; --pair->receives) received.push_back(completion(pair, 0, ib::kFlushed));
  }
  void transmit(Pair* pair);
  void arrive(const Packet& packet);
  void acknowledge(Pair* pair);
  Pair* find(uint32_t number) {
    auto at = pairs_.find(number);
    return at == pairs_.end() ? nullptr : at->second.get();
  }
  size_t any(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }

  const std::thread::id owner_ = std::this_thread::get_id();
  std::mt19937 random_;
  char names_[kDevices][8] = {"rdma0", "rdma1"};
  ib::Context contexts_[kDevices] = {};
  bool cut_[kDevices] = {};
  std::map<uint32_t, std::unique_ptr<Pair>> pairs_;
  std::map<uint32_t, std::unique_ptr<ib::MemoryRegion>> regions_;  // by key
  std::map<ib::CompletionQueue*, std::unique_ptr<Queue>> queues_;
  std::deque<Packet> network_;
  uint32_t held_back_ = 0;  // number of a queue pair
  uint32_t next_number_ = 17, next_key_ = 100;
};

inline int Fabric::post_send(ib::QueuePair* base, ib::SendRequest* first, ib::SendRequest**) {
  Guard guard(lock());
  auto* pair = static_cast<Pair*>(base);
  for (ib::SendRequest* wr = first; wr != nullptr; wr = wr->next) {
    STAND_IN_REQUIRE(pair->sends.size() < pair->most_sends);
    Request request;
    request.id = wr->id;
    request.signaled = wr->flags & ib::kSignaled;
    request.immediate = wr->opcode == ib::kWriteWithImmediate;
    request.value = wr->immediate;
    request.address = wr->remote.address;
    request.key = wr->remote.key;
    if (wr->segment_count == 1) {
      const ib::Segment& segment = *wr->segments;
      if (!(wr->flags & ib::kInline)) {
        auto region = one()->regions_.find(segment.local_key);
        STAND_IN_REQUIRE(region != one()->regions_.end());
        auto begin = reinterpret_cast<uint64_t>(region->second->address);
        STAND_IN_REQUIRE(segment.address >= begin &&
                         segment.address + segment.length <= begin + region->second->length);
      }
      const auto* data = reinterpret_cast<const uint8_t*>(segment.address);
      request.data.assign(data, data + segment.length);
    }
    if (pair->state == ib::kErrorState) {
      static_cast<Queue*>(pair->send_cq)->found.push_back(completion(pair, request.id, ib::kFlushed));
      continue;
    }
    STAND_IN_REQUIRE(pair->state == ib::kReadyToSend);
    pair->sends.push_back(std::move(request));
  }
  return 0;
}

inline int Fabric::post_recv(ib::QueuePair* base, ib::RecvRequest* first, ib::RecvRequest**) {
  Guard guard(lock());
  auto* pair = static_cast<Pair*>(base);
  for (ib::RecvRequest* wr = first; wr != nullptr; wr = wr->next) {
    STAND_IN_REQUIRE(pair->receives < pair->most_receives);
    if (pair->state == ib::kErrorState) {
      static_cast<Queue*>(pair->recv_cq)->found.push_back(completion(pair, 0, ib::kFlushed));
    } else {
      ++pair->receives;
    }
  }
  return 0;
}

// The oldest request that the peer does not have goes out, perhaps again.
inline void Fabric::transmit(Pair* pair) {
  if (pair->state != ib::kReadyToSend || pair->executed >= pair->sends.size()) return;
  Request& request = pair->sends[pair->executed];
  if (++request.tries > kTries) {
    to_error(pair, ib::kRetriesExceeded);
    return;
  }
  if (cut_[pair->device]) return;
  uint32_t psn = (pair->send_psn + static_cast<uint32_t>(pair->executed)) & 0xffffff;
  network_.push_back({pair->peer, pair->number, psn, request});
}

inline void Fabric::arrive(const Packet& packet) {
  Pair* to = find(packet.to);
  Pair* from = find(packet.from);
  if (to == nullptr || (to->state != ib::kReadyToReceive && to->state != ib::kReadyToSend)) {
    ++dropped;
    return;
  }
  if (packet.psn != to->expected_psn) return;  // a duplicate, or out of sequence: not executed
  const Request& request = packet.request;
  if (!request.data.empty()) {
    auto region = regions_.find(request.key);
    bool inside = region != regions_.end();
    if (inside) {
      auto begin = reinterpret_cast<uint64_t>(region->second->address);
      inside =
          request.address >= begin && request.address + request.data.size() <= begin + region->second->length;
    }
    if (!inside) {  // remote access error: both ends' queue pairs end
      if (from != nullptr && from->state == ib::kReadyToSend) to_error(from, 10);
      to_error(to, ib::kFlushed);
      return;
    }
    memcpy(reinterpret_cast<void*>(request.address), request.data.data(), request.data.size());
  }
  if (request.immediate) {
    if (to->receives == 0) return;  // receiver not ready: it comes again
    --to->receives;
    ib::WorkCompletion made = completion(to, 0, ib::kSuccess);
    made.opcode = 129;  // receive, with immediate
    made.bytes = static_cast<uint32_t>(request.data.size());
    made.immediate = request.value;
    static_cast<Queue*>(to->recv_cq)->found.push_back(made);
  }
  to->expected_psn = (to->expected_psn + 1) & 0xffffff;
  if (from == nullptr || from->state != ib::kReadyToSend || from->sends.empty()) return;
  uint32_t done = (packet.psn - from->send_psn) & 0xffffff;
  if (done == from->executed) ++from->executed;
}

inline void Fabric::acknowledge(Pair* pair) {
  if (pair->executed == 0 || cut_[pair->device]) return;
  if (pair->sends.front().signaled)
    static_cast<Queue*>(pair->send_cq)
        ->found.push_back(completion(pair, pair->sends.front().id, ib::kSuccess));
  pair->sends.pop_front();
  --pair->executed;
  pair->send_psn = (pair->send_psn + 1) & 0xffffff;
}

inline bool Fabric::step() {
  Guard guard(lock());
  // Now and then the fabric keeps what is for one queue pair to itself for a while.
  if (holds_back && any(200) == 0)
    held_back_ = pairs_.empty() ? 0 : std::next(pairs_.begin(), static_cast<long>(any(pairs_.size())))->first;
  if (any(400) == 0) held_back_ = 0;
  if (!network_.empty() && any(3) != 0) {
    // In order on one queue pair, in any order between them.
    size_t at = any(network_.size());
    for (size_t i = 0; i < at; ++i)
      if (network_[i].to == network_[at].to) at = i;
    if (network_[at].to == held_back_) return true;
    Packet packet = std::move(network_[at]);
    network_.erase(network_.begin() + static_cast<long>(at));
    arrive(packet);
    return true;
  }
  std::vector<Pair*> busy;
  for (auto& entry : pairs_)
    if (!entry.second->sends.empty()) busy.push_back(entry.second.get());
  if (busy.empty()) return !network_.empty();
  Pair* pair = busy[any(busy.size())];
  if (any(2) == 0) {
    acknowledge(pair);
  } else {
    transmit(pair);
  }
  return true;
}

inline VerbsLibrary Fabric::library() {
  VerbsLibrary made;
  made.get_device_list = [](int* count) {
    static ib::Device* list[kDevices + 1];
    for (uint32_t i = 0; i < kDevices; ++i) list[i] = one()->contexts_[i].device;
    *count = kDevices;
    return list;
  };
  made.free_device_list = [](ib::Device**) {};
  made.get_device_name = [](ib::Device* device) -> const char* {
    return reinterpret_cast<const char*>(device);
  };
  made.open_device = [](ib::Device* device) -> ib::Context* {
    for (ib::Context& context : one()->contexts_)
      if (context.device == device) return &context;
    return nullptr;
  };
  made.close_device = [](ib::Context*) { return 0; };
  made.query_port = [](ib::Context*, uint8_t, ib::PortAttributes* out) {
    *out = {};
    out->state = ib::kPortActive;
    out->active_mtu = 5;
    return 0;
  };
  // One GID a device: ::ffff:10.0.0.<device>.
  made.query_gid_table = [](ib::Context* context, ib::GidEntry* out, size_t, uint32_t, size_t) -> ssize_t {
    out[0] = {};
    out[0].gid.raw[10] = out[0].gid.raw[11] = 0xff;
    out[0].gid.raw[12] = 10;
    out[0].gid.raw[15] = static_cast<uint8_t>(context - one()->contexts_);
    out[0].index = 1;
    out[0].port = 1;
    out[0].type = ib::kGidRoceV2;
    return 1;
  };
  made.alloc_pd = [](ib::Context* context) { return new ib::ProtectionDomain{context, 0}; };
  made.dealloc_pd = [](ib::ProtectionDomain* domain) {
    delete domain;
    return 0;
  };
  made.reg_mr = [](ib::ProtectionDomain* domain, void* data, size_t size, int) {
    Guard guard(lock());
    uint32_t key = one()->next_key_++;
    auto region = std::make_unique<ib::MemoryRegion>();
    *region = {domain->context, domain, data, size, 0, key, key};
    return (one()->regions_[key] = std::move(region)).get();
  };
  made.dereg_mr = [](ib::MemoryRegion* region) {
    Guard guard(lock());
    return one()->regions_.erase(region->local_key) == 1 ? 0 : 22;
  };
  made.create_cq = [](ib::Context* context, int entries, void*, ib::CompletionChannel*,
                      int) -> ib::CompletionQueue* {
    Guard guard(lock());
    auto queue = std::make_unique<Queue>();
    queue->context = context;
    queue->entries = entries;
    ib::CompletionQueue* key = queue.get();
    one()->queues_[key] = std::move(queue);
    return key;
  };
  made.destroy_cq = [](ib::CompletionQueue* queue) {
    Guard guard(lock());
    return one()->queues_.erase(queue) == 1 ? 0 : 22;
  };
  made.create_qp = [](ib::ProtectionDomain* domain, ib::QueuePairInit* init) -> ib::QueuePair* {
    Guard guard(lock());
    auto pair = std::make_unique<Pair>();
    pair->context = domain->context;
    pair->domain = domain;
    pair->send_cq = init->send_cq;
    pair->recv_cq = init->recv_cq;
    pair->number = one()->next_number_++;
    pair->device = static_cast<uint32_t>(domain->context - one()->contexts_);
    pair->most_sends = init->capacity.send_requests;
    pair->most_receives = init->capacity.recv_requests;
    ib::QueuePair* raw = pair.get();
    one()->pairs_[pair->number] = std::move(pair);
    return raw;
  };
  made.modify_qp = [](ib::QueuePair* base, ib::QueuePairAttributes* attributes, int mask) {
    Guard guard(lock());
    auto* pair = static_cast<Pair*>(base);
    if (mask & ib::kSetPeerNumber) pair->peer = attributes->peer_number;
    if (mask & ib::kSetRecvPsn) pair->expected_psn = attributes->recv_psn;
    if (mask & ib::kSetSendPsn) pair->send_psn = attributes->send_psn;
    if (attributes->state == ib::kErrorState) {
      to_error(pair, ib::kFlushed);
    } else {
      pair->state = attributes->state;
    }
    return 0;
  };
  made.destroy_qp = [](ib::QueuePair* pair) {
    Guard guard(lock());
    STAND_IN_REQUIRE(std::this_thread::get_id() != one()->owner_ || !one()->busy);
    return one()->pairs_.erase(pair->number) == 1 ? 0 : 22;
  };
  made.get_async_event = [](ib::Context*, ib::AsyncEvent*) {
    errno = EAGAIN;
    return -1;
  };
  made.ack_async_event = [](ib::AsyncEvent*) {};
  return made;
}

}  // namespace fabricpulse::stand_in

#endif  // FABRICPULSE_TESTS_NATIVE_VERBS_STAND_IN_H_
