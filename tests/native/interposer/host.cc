// Drives the interposer as a program does: through the pointers of a context. The providers are stand-ins.
//   verbs_interposer_host faults SEED   queue pairs of verbs_stand_in.h, posts and cut paths at random
//   verbs_interposer_host threads       four threads post and poll on one queue pair each, two on one; extended calls too
//   verbs_interposer_host fork          a child uses what its parent opened, and opens a device of its own
// Prints what the program itself counted, as JSON; the files in FABRICPULSE_RUN_DIR are for the test.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "interposer.h"
#include "verbs_stand_in.h"

using namespace fabricpulse;
using interposer::Interposer;

namespace {

struct Counts {
  std::atomic<uint64_t> posts{0}, bytes{0}, completions{0}, errors{0}, receives{0}, received_bytes{0},
      messages{0};
  void print() const {
    printf("{\"posts\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"completions\":%" PRIu64 ",\"errors\":%" PRIu64
           ",\"receives\":%" PRIu64 ",\"received_bytes\":%" PRIu64 ",\"messages\":%" PRIu64 "}\n",
           posts.load(), bytes.load(), completions.load(), errors.load(), receives.load(),
           received_bytes.load(), messages.load());
    fflush(stdout);
  }
};

interposer::RealLibrary real_of(const VerbsLibrary& library) {
  interposer::RealLibrary real;
  real.open_device = library.open_device;
  real.close_device = library.close_device;
  real.get_device_name = library.get_device_name;
  real.create_qp = library.create_qp;
  real.modify_qp = library.modify_qp;
  real.destroy_qp = library.destroy_qp;
  real.destroy_cq = library.destroy_cq;
  return real;
}

void faults(uint32_t seed) {
  stand_in::Fabric fabric(seed);
  VerbsLibrary verbs = fabric.library();
  Interposer* one = Interposer::get();
  one->start(real_of(verbs), "");
  std::mt19937 random(seed);
  auto any = [&](uint32_t count) { return std::uniform_int_distribution<uint32_t>(0, count - 1)(random); };
  int count = 0;
  ib::Device** devices = verbs.get_device_list(&count);
  ib::Context* contexts[2] = {verbs.open_device(devices[0]), verbs.open_device(devices[1])};
  for (ib::Context* context : contexts) one->adopt(context);
  std::vector<uint8_t> memory(1 << 16);
  Counts counts;
  for (int life = 0; life < 20; ++life) {
    ib::ProtectionDomain* domains[2];
    ib::MemoryRegion* regions[2];
    ib::CompletionQueue* queues[2];
    ib::QueuePair* pairs[2];
    for (int end = 0; end < 2; ++end) {
      domains[end] = verbs.alloc_pd(contexts[end]);
      regions[end] = verbs.reg_mr(domains[end], memory.data(), memory.size(), 3);
      queues[end] = verbs.create_cq(contexts[end], 64, nullptr, nullptr, 0);
      ib::QueuePairInit init{};
      init.send_cq = init.recv_cq = queues[end];
      init.capacity.send_requests = init.capacity.recv_requests = 32;
      init.type = ib::kReliableConnected;
      pairs[end] = verbs.create_qp(domains[end], &init);
      one->adopt(pairs[end], &init);
    }
    for (int end = 0; end < 2; ++end) {
      ib::QueuePairAttributes attributes{};
      attributes.state = ib::kReadyToSend;
      attributes.peer_number = pairs[1 - end]->number;
      attributes.send_psn = static_cast<uint32_t>(10 + end);
      attributes.recv_psn = static_cast<uint32_t>(11 - end);
      const int mask = ib::kSetState | ib::kSetPeerNumber | ib::kSetSendPsn | ib::kSetRecvPsn;
      verbs.modify_qp(pairs[end], &attributes, mask);
      one->modified(pairs[end], attributes, mask);
    }
    uint32_t receives[2] = {};
    std::deque<uint64_t> sent[2];  // what the program may not forget before a completion says so
    uint64_t next_id = 1;
    const bool cuts = any(3) == 0;
    for (int step = 0; step < 4000; ++step) {
      const int end = static_cast<int>(any(2));
      ib::QueuePair* pair = pairs[end];
      if (receives[end] < 16) {
        ib::RecvRequest receive{next_id++ << 32, nullptr, nullptr, 0};
        ib::RecvRequest* bad = nullptr;
        if (pair->context->ops.post_recv(pair, &receive, &bad) != 0) abort();
        ++receives[end];
      }
      // Runs of WRITEs, signaled now and then, and a WRITE_WITH_IMM that always is.
      const uint32_t run = any(4);
      if (sent[end].size() + run + 1 <= 32 && any(2) == 0) {
        ib::SendRequest requests[4] = {};
        ib::Segment segment{reinterpret_cast<uint64_t>(memory.data()), 1 + any(1000),
                            regions[end]->local_key};
        for (uint32_t i = 0; i <= run; ++i) {
          requests[i].id = next_id++;
          requests[i].next = i < run ? &requests[i + 1] : nullptr;
          requests[i].segments = &segment;
          requests[i].segment_count = 1;
          requests[i].opcode = i < run ? ib::kWrite : ib::kWriteWithImmediate;
          if (i == run || any(3) == 0) requests[i].flags = ib::kSignaled;
          requests[i].remote = {reinterpret_cast<uint64_t>(memory.data()), regions[1 - end]->remote_key, {}};
          counts.bytes += segment.length;
        }
        ib::SendRequest* bad = nullptr;
        if (pair->context->ops.post_send(pair, requests, &bad) != 0) abort();
        counts.posts += run + 1;
        for (const ib::SendRequest* request = requests; request != nullptr; request = request->next)
          sent[end].push_back(request->id);
        ++counts.messages;
      }
      for (uint32_t n = any(6); n > 0; --n) fabric.step();
      ib::WorkCompletion found[4];
      const int polled = pair->context->ops.poll_cq(queues[end], 4, found);
      for (int i = 0; i < polled; ++i) {
        if (found[i].status != ib::kSuccess) {
          ++counts.errors;
        } else if (found[i].opcode & ib::kReceived) {
          ++counts.receives;
          counts.received_bytes += found[i].bytes;
          --receives[end];
        } else {
          ++counts.completions;
          while (sent[end].front() != found[i].id) sent[end].pop_front();
          sent[end].pop_front();
        }
      }
      if (cuts && any(200) == 0) fabric.cut(any(2), any(2) == 0);
      if (pair->state == ib::kErrorState) break;
    }
    fabric.cut(0, false);
    fabric.cut(1, false);
    for (int end = 0; end < 2; ++end) {
      auto* pair = one->detach(pairs[end]);
      verbs.destroy_qp(pairs[end]);
      one->drop(pair);
      verbs.destroy_cq(queues[end]);
      verbs.dereg_mr(regions[end]);
      verbs.dealloc_pd(domains[end]);
    }
  }
  for (ib::Context* context : contexts) {
    auto* entry = one->detach(context);
    one->drop(entry);
  }
  one->finish();
  counts.print();
}

// A provider that completes at once, with a lock as providers have.
struct SimpleQueue : ib::CompletionQueueEx {
  std::mutex guard;
  std::deque<ib::WorkCompletion> found;
  ib::WorkCompletion current;
};
struct SimplePair : ib::QueuePairEx {
  std::mutex guard;
  std::vector<uint64_t> begun;
};
void put(ib::CompletionQueue* queue, uint64_t id, uint32_t number, uint32_t opcode, uint32_t bytes) {
  auto* simple = reinterpret_cast<SimpleQueue*>(queue);
  ib::WorkCompletion made{};
  made.id = id;
  made.opcode = opcode;
  made.bytes = bytes;
  made.queue_pair = number;
  std::lock_guard<std::mutex> lock(simple->guard);
  simple->found.push_back(made);
}
int simple_poll(ib::CompletionQueue* queue, int most, ib::WorkCompletion* out) {
  auto* simple = reinterpret_cast<SimpleQueue*>(queue);
  std::lock_guard<std::mutex> lock(simple->guard);
  int count = 0;
  for (; count < most && !simple->found.empty(); ++count) {
    out[count] = simple->found.front();
    simple->found.pop_front();
  }
  return count;
}
int simple_send(ib::QueuePair* pair, ib::SendRequest* first, ib::SendRequest** bad) {
  auto* simple = reinterpret_cast<SimplePair*>(pair);
  std::lock_guard<std::mutex> lock(simple->guard);
  for (ib::SendRequest* request = first; request != nullptr; request = request->next) {
    if (request->id == UINT64_MAX) {
      *bad = request;
      return ENOMEM;
    }
    if (request->flags & ib::kSignaled) put(pair->send_cq, request->id, pair->number, 0, 0);
  }
  return 0;
}
int simple_receive(ib::QueuePair* pair, ib::RecvRequest* first, ib::RecvRequest**) {
  for (ib::RecvRequest* request = first; request != nullptr; request = request->next)
    put(pair->recv_cq, request->id, pair->number, ib::kReceived, 10);
  return 0;
}
int simple_next(ib::CompletionQueueEx* queue) {
  auto* simple = static_cast<SimpleQueue*>(queue);
  if (simple->found.empty()) return ENOENT;
  simple->current = simple->found.front();
  simple->found.pop_front();
  queue->status = simple->current.status;
  queue->id = simple->current.id;
  return 0;
}
int simple_start(ib::CompletionQueueEx* queue, void*) {
  static_cast<SimpleQueue*>(queue)->guard.lock();
  const int result = simple_next(queue);
  if (result != 0) static_cast<SimpleQueue*>(queue)->guard.unlock();
  return result;
}

struct Simple {
  ib::Context context{};
  ib::ProtectionDomain domain{&context, 0};
  std::vector<std::unique_ptr<SimpleQueue>> queues;
  std::vector<std::unique_ptr<SimplePair>> pairs;

  Simple() {
    static char name[] = "simple0";
    context.device = reinterpret_cast<ib::Device*>(name);
    context.ops.poll_cq = simple_poll;
    context.ops.post_send = simple_send;
    context.ops.post_recv = simple_receive;
  }
  SimpleQueue* queue() {
    auto made = std::make_unique<SimpleQueue>();
    memset(static_cast<ib::CompletionQueueEx*>(made.get()), 0, sizeof(ib::CompletionQueueEx));
    made->context = &context;
    made->start_poll = simple_start;
    made->next_poll = simple_next;
    made->end_poll = [](ib::CompletionQueueEx* queue) { static_cast<SimpleQueue*>(queue)->guard.unlock(); };
    made->read_opcode = [](ib::CompletionQueueEx* queue) {
      return static_cast<SimpleQueue*>(queue)->current.opcode;
    };
    made->read_bytes = [](ib::CompletionQueueEx* queue) {
      return static_cast<SimpleQueue*>(queue)->current.bytes;
    };
    made->read_queue_pair = [](ib::CompletionQueueEx* queue) {
      return static_cast<SimpleQueue*>(queue)->current.queue_pair;
    };
    queues.push_back(std::move(made));
    return queues.back().get();
  }
  SimplePair* pair(SimpleQueue* queue, uint32_t number) {
    auto made = std::make_unique<SimplePair>();
    memset(static_cast<ib::QueuePairEx*>(made.get()), 0, sizeof(ib::QueuePairEx));
    made->pair.context = &context;
    made->pair.number = number;
    made->pair.send_cq = made->pair.recv_cq = reinterpret_cast<ib::CompletionQueue*>(queue);
    made->start = [](ib::QueuePairEx* pair) {
      static_cast<SimplePair*>(pair)->guard.lock();
      static_cast<SimplePair*>(pair)->begun.clear();
    };
    made->rdma_write = [](ib::QueuePairEx* pair, uint32_t, uint64_t) {
      static_cast<SimplePair*>(pair)->begun.push_back(pair->id);
    };
    made->send = [](ib::QueuePairEx* pair) { static_cast<SimplePair*>(pair)->begun.push_back(pair->id); };
    made->set_sge = [](ib::QueuePairEx*, uint32_t, uint64_t, uint32_t) {};
    made->complete = [](ib::QueuePairEx* pair) {
      auto* simple = static_cast<SimplePair*>(pair);
      for (uint64_t id : simple->begun) put(pair->pair.send_cq, id, pair->pair.number, 0, 0);
      simple->guard.unlock();
      return 0;
    };
    made->abort = [](ib::QueuePairEx* pair) { static_cast<SimplePair*>(pair)->guard.unlock(); };
    pairs.push_back(std::move(made));
    return pairs.back().get();
  }
};

interposer::RealLibrary simple_library() {
  interposer::RealLibrary real;
  real.get_device_name = [](ib::Device* device) { return reinterpret_cast<const char*>(device); };
  real.qp_to_qp_ex = [](ib::QueuePair* pair) {
    auto* extended = reinterpret_cast<ib::QueuePairEx*>(pair);
    return extended->start != nullptr ? extended : nullptr;
  };
  return real;
}

ib::QueuePairInit init_of(const SimplePair& pair) {
  ib::QueuePairInit init{};
  init.send_cq = pair.pair.send_cq;
  init.recv_cq = pair.pair.recv_cq;
  init.capacity.send_requests = 4096;
  init.type = ib::kReliableConnected;
  return init;
}

// Posts `count` times four requests, of which the last two end a message, and one that is refused in the middle.
void post(SimplePair* pair, int count, Counts* counts) {
  ib::Segment segment{0, 100, 0};
  for (int i = 0; i < count; ++i) {
    ib::SendRequest requests[3] = {};
    for (int n = 0; n < 3; ++n) {
      requests[n].id = n == 2 ? UINT64_MAX : 7;
      requests[n].next = n < 2 ? &requests[n + 1] : nullptr;
      requests[n].segments = &segment;
      requests[n].segment_count = 1;
      requests[n].opcode = ib::kWrite;
      if (n > 0) requests[n].opcode = ib::kSend;
      if (n == 1) requests[n].flags = ib::kSignaled;
    }
    ib::SendRequest* bad = nullptr;
    if (pair->pair.context->ops.post_send(&pair->pair, requests, &bad) != ENOMEM || bad != &requests[2])
      abort();
    ib::RecvRequest receive{9, nullptr, nullptr, 0};
    ib::RecvRequest* bad_receive = nullptr;
    if (pair->pair.context->ops.post_recv(&pair->pair, &receive, &bad_receive) != 0) abort();
    pair->start(pair);
    pair->id = 7;
    pair->flags = ib::kSignaled;
    pair->rdma_write(pair, 0, 0);
    pair->set_sge(pair, 0, 0, 50);
    pair->send(pair);
    pair->set_sge(pair, 0, 0, 25);
    if (i % 5 == 4) {
      pair->abort(pair);
    } else if (pair->complete(pair) == 0) {
      counts->posts += 2;
      counts->bytes += 75;
      ++counts->messages;
    }
    counts->posts += 2;
    counts->bytes += 200;
    ++counts->messages;
  }
}

void poll(SimpleQueue* queue, bool extended, const std::atomic<bool>* done, Counts* counts) {
  auto seen = [&](uint32_t opcode, uint32_t bytes) {
    if (opcode & ib::kReceived) {
      ++counts->receives;
      counts->received_bytes += bytes;
    } else {
      ++counts->completions;
    }
  };
  for (;;) {
    const bool last = done->load();
    bool any = false;
    if (extended) {
      if (queue->start_poll(queue, nullptr) == 0) {
        any = true;
        do seen(queue->read_opcode(queue), queue->read_bytes(queue));
        while (queue->next_poll(queue) == 0);
        queue->end_poll(queue);
      }
    } else {
      ib::WorkCompletion found[8];
      const int count = queue->context->ops.poll_cq(reinterpret_cast<ib::CompletionQueue*>(queue), 8, found);
      for (int i = 0; i < count; ++i) seen(found[i].opcode, found[i].bytes);
      any = count > 0;
    }
    if (last && !any) return;
  }
}

void threads() {
  Simple simple;
  Interposer* one = Interposer::get();
  one->start(simple_library(), "");
  one->adopt(&simple.context);
  Counts counts;
  std::atomic<bool> done{false};
  std::vector<std::thread> posters, pollers;
  for (uint32_t n = 0; n < 3; ++n) {
    SimpleQueue* queue = simple.queue();
    SimplePair* pair = simple.pair(queue, 100 + n);
    const ib::QueuePairInit init = init_of(*pair);
    one->adopt(&pair->pair, &init);
    if (n == 1) one->adopt(queue);
    pollers.emplace_back(poll, queue, n == 1, &done, &counts);
    if (n == 0) pollers.emplace_back(poll, queue, false, &done, &counts);
    posters.emplace_back(post, pair, 300, &counts);
  }
  for (auto& thread : posters) thread.join();
  done = true;
  for (auto& thread : pollers) thread.join();
  for (auto& pair : simple.pairs) one->drop(one->detach(&pair->pair));
  one->finish();
  counts.print();
}

void in_child_of_fork() {
  Simple simple;
  Interposer* one = Interposer::get();
  one->start(simple_library(), "");
  one->adopt(&simple.context);
  SimpleQueue* queue = simple.queue();
  SimplePair* pair = simple.pair(queue, 100);
  const ib::QueuePairInit init = init_of(*pair);
  one->adopt(&pair->pair, &init);
  Counts counts, unseen;
  const std::atomic<bool> done{true};
  post(pair, 10, &counts);
  const pid_t child = fork();
  if (child == 0) {
    post(pair, 5, &unseen);  // passed on, and counted nowhere
    Simple own;
    one->adopt(&own.context);
    SimplePair* mine = own.pair(own.queue(), 200);
    const ib::QueuePairInit mine_init = init_of(*mine);
    one->adopt(&mine->pair, &mine_init);
    post(mine, 3, &counts);
    one->finish();
    _exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) abort();
  poll(queue, false, &done, &counts);
  one->finish();
  counts.print();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "faults" && argc > 2) {
    faults(static_cast<uint32_t>(strtoul(argv[2], nullptr, 10)));
  } else if (mode == "threads") {
    threads();
  } else if (mode == "fork") {
    in_child_of_fork();
  } else {
    return 2;
  }
  return 0;
}
