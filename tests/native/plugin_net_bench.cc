// Two processes and one NCCL net: throughput, processor time and latency through the net v12 interface, for
// this project's plugin and, in the same way, for the transports inside libnccl (which export no symbol:
// their place is given).
//
// Why the comparison is fair. NCCL's progress thread decides when a transport gets to work, and transports
// differ in which call they work in: NCCL's sockets move bytes only when a request is tested, this plugin
// also when one is posted. So the calls are made in the order of NCCL's proxy (sendProxyProgress,
// recvProxyProgress and ncclProxyProgress of 2.29), for both nets by the same code:
//   * one thread a side, sender and receiver in processes of their own; nothing waits for readiness;
//   * a pass over a send posts at most one isend, if fewer than NCCL_STEPS are under way, and is over then;
//     otherwise it tests the oldest request, and only that one;
//   * a pass over a receive posts at most one irecv, if fewer than NCCL_STEPS are under way, and is over
//     then; otherwise it tests the oldest. Receives are posted before the first send starts;
//   * a pass without progress, and every eighth one with, ends with sched_yield.
// As a GPU would, the sender writes every cache line of a message before isend and the receiver reads and
// checks every line after test; no DMA does that here, so the time it takes is taken off the processor time
// (not off the throughput). Testing younger requests too is no choice: NCCL's sockets read the next message's
// head for whichever request is tested.
//
// Usage: plugin_net_bench ROLE HOST:PORT MODE BYTES SECONDS LIBRARY TABLE [STUB]
//   ROLE   receive (listens at HOST:PORT) or send
//   MODE   latency, bandwidth, or bandwidth:N over N communicators at the same time, each with a net context, a
//          connection and a progress thread of its own, as NCCL has them
//   TABLE  name of an exported symbol, or 0xOFFSET of the table in the library
//   STUB   0xOFFSET of cudaGetDevice in the library: replaced by one that answers device 0
// NET_BENCH_PROFILER=LIBRARY in the environment: the events of NCCL's proxy go to that library's profiler
// too. NET_BENCH_NAP_US=N: an idle pass ends with a nap instead, so that processor time is work and not waiting.
// Prints one JSON line. Of the processor time it says apart what the profiler's calls took, and each thread that is
// neither the first nor a communicator's: a library's own.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <link.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "abi/net.h"
#include "abi/profiler.h"

using namespace fabricpulse::abi;

namespace {

constexpr int kDepth = 8;  // NCCL_STEPS

void log_line(int level, unsigned long, const char*, int, const char* format, ...) {
  if (level > 2) return;
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
}

void check(Result result, const char* call) {
  if (result == kSuccess) return;
  fprintf(stderr, "%s returned %d\n", call, static_cast<int>(result));
  exit(1);
}

double now_s() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<double>(ts.tv_sec) + static_cast<double>(ts.tv_nsec) * 1e-9;
}

// Of this thread. What it does with a message is taken off the processor time: on a busy machine the clock on the wall
// would take off more than that.
double thread_s() {
  timespec ts;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
  return static_cast<double>(ts.tv_sec) + static_cast<double>(ts.tv_nsec) * 1e-9;
}

double cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

// What two readings of thread_s() with nothing between them differ by.
double reading_s() {
  double least = 1;
  for (int i = 0; i < 1000; ++i) {
    double start = thread_s();
    least = std::min(least, thread_s() - start);
  }
  return least;
}

// Processor seconds of the threads that are there, by name, but for the first one.
std::map<std::string, double> threads_s() {
  std::map<std::string, double> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(getpid())) continue;
    std::string name;
    double nanoseconds = 0;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (std::ifstream(task.path() / "schedstat") >> nanoseconds) found[name] += nanoseconds * 1e-9;
  }
  return found;
}

int meet(bool listens, const std::string& address) {
  size_t colon = address.rfind(':');
  addrinfo hints{}, *info = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints, &info) != 0)
    exit(2);
  int on = 1;
  for (int tries = 0; tries < 200; ++tries) {
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listens) {
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      if (bind(fd, info->ai_addr, info->ai_addrlen) != 0 || listen(fd, 1) != 0) exit(2);
      int peer = accept(fd, nullptr, nullptr);
      close(fd);
      return peer;
    }
    if (connect(fd, info->ai_addr, info->ai_addrlen) == 0) return fd;
    close(fd);
    usleep(50'000);
  }
  exit(2);
}

void swap_bytes(int fd, const void* mine, void* theirs, size_t size) {
  if (send(fd, mine, size, 0) != static_cast<ssize_t>(size) ||
      recv(fd, theirs, size, MSG_WAITALL) != static_cast<ssize_t>(size)) {
    fprintf(stderr, "the other process has gone\n");
    exit(1);
  }
}

// What lies at an offset, given as 0x text, in a loaded library.
void* at_offset(const link_map* map, const char* text) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the linker gives the library's address as a number
  return reinterpret_cast<void*>(map->l_addr + strtoull(text, nullptr, 16));
}

const NetV12* table_of(const char* library, const char* table, const char* stub) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
  link_map* map = nullptr;
  dlinfo(handle, RTLD_DI_LINKMAP, &map);
  if (stub != nullptr) {
    // mov dword ptr [rdi], 0; xor eax, eax; ret
    static const uint8_t kDeviceZero[] = {0xc7, 0x07, 0, 0, 0, 0, 0x31, 0xc0, 0xc3};
    auto* at = static_cast<uint8_t*>(at_offset(map, stub));
    uint8_t* page = at - (reinterpret_cast<uintptr_t>(at) & 4095);
    if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) exit(2);
    memcpy(at, kDeviceZero, sizeof(kDeviceZero));
  }
  if (strncmp(table, "0x", 2) == 0) return static_cast<const NetV12*>(at_offset(map, table));
  auto* found = static_cast<const NetV12*>(dlsym(handle, table));
  if (found == nullptr) exit(2);
  return found;
}

struct End {
  const NetV12* net = nullptr;
  void *send = nullptr, *recv = nullptr, *send_memory = nullptr, *recv_memory = nullptr;
  std::vector<uint64_t> send_data, recv_data;
};

// The profiler events that NCCL's proxy has for one direction: an all-reduce of kSteps messages, its kernel
// channel, its proxy operation, and a proxy step a message; each only if the profiler's mask asks for it.
class Events {
 public:
  using Table = ProfilerV5<DescriptorV5>;
  static constexpr uint64_t kSteps = 16;

  explicit Events(bool sends) : sends_(sends) {
    const char* library = getenv("NET_BENCH_PROFILER");
    if (library == nullptr) return;
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    table_ = handle ? static_cast<const Table*>(dlsym(handle, "ncclProfiler_v5")) : nullptr;
    if (table_ == nullptr) exit(2);
    check(table_->init(&context_, 1, &mask_, "bench", 2, 2, sends ? 0 : 1, log_line), "profiler init");
  }

  // Processor seconds in calls of the profiler.
  double used_s() const { return used_s_; }

  void posted(uint64_t number, size_t bytes) {
    void*& step = steps_[number % kDepth];
    step = nullptr;
    if (table_ == nullptr || (number % kSteps != 0 && !steps_wanted())) return;
    Used used(this);
    if (number % kSteps == 0) begin(bytes);
    if (!steps_wanted() || op_ == nullptr) return;
    step = start(kEventProxyStep, op_);
    for (int state : {8, static_cast<int>(kStepSendPeerWait), static_cast<int>(kStepSendWait)})
      if (sends_ || state == kStepSendWait) record(step, sends_ ? state : static_cast<int>(kStepRecvWait));
  }

  void completed(uint64_t number) {
    void* step = steps_[number % kDepth];
    if (table_ == nullptr || (step == nullptr && number % kSteps != kSteps - 1)) return;
    Used used(this);
    if (step != nullptr) {
      if (!sends_) record(step, kStepRecvGpuWait);
      check(table_->stop_event(step), "stopEvent");
    }
    if (number % kSteps == kSteps - 1) end();
  }

 private:
  // Of this thread, while it exists. The first reading is for the caches: after a message of other work it takes longer
  // than the least, which is taken off.
  struct Used {
    explicit Used(Events* events) : events(events), start((thread_s(), thread_s())) {}
    ~Used() { events->used_s_ += std::max(0.0, thread_s() - start - events->reading_s_); }
    Used(const Used&) = delete;
    Used& operator=(const Used&) = delete;
    Events* events;
    double start;
  };

  bool steps_wanted() const { return (mask_ & kEventProxyStep) != 0; }
  void begin(size_t bytes) {
    if ((mask_ & kEventCollective) == 0) return;
    DescriptorV5 d{};
    d.type = kEventCollective;
    d.collective.function = "AllReduce";
    d.collective.count = bytes * kSteps;
    d.collective.type = "ncclInt8";
    d.collective.algorithm = "RING";
    d.collective.protocol = "SIMPLE";
    check(table_->start_event(context_, &collective_, &d), "startEvent");
    kernel_ = start(kEventKernelChannel, collective_);
    op_ = start(kEventProxyOp, collective_);
    if (collective_ != nullptr) check(table_->stop_event(collective_), "stopEvent");
  }
  void end() {
    for (void** event : {&op_, &kernel_}) {
      if (*event != nullptr) check(table_->stop_event(*event), "stopEvent");
      *event = nullptr;
    }
    collective_ = nullptr;
  }
  void* start(uint64_t type, void* parent) {
    if ((static_cast<uint64_t>(mask_) & type) == 0 || parent == nullptr) return nullptr;
    DescriptorV5 d{};
    d.type = type;
    d.parent = parent;
    if (type == kEventProxyOp) d.proxy_op.pid = pid_;
    void* event = nullptr;
    check(table_->start_event(context_, &event, &d), "startEvent");
    return event;
  }
  void record(void* event, int state) {
    if (event != nullptr) check(table_->record_state(event, state, nullptr), "recordEventState");
  }

  const bool sends_;
  const Table* table_ = nullptr;
  void *context_ = nullptr, *collective_ = nullptr, *kernel_ = nullptr, *op_ = nullptr;
  void* steps_[kDepth] = {};
  int mask_ = 0;
  const int pid_ = getpid();  // as NCCL, which asks once
  const double reading_s_ = reading_s();
  double used_s_ = 0;
};

constexpr size_t kLineWords = 8;  // of 8 bytes, in a cache line

// What the receiver expects in each line of message `number`; the first word tells also whether it is the
// last.
uint64_t line_word(uint64_t number, size_t at) {
  return ((number + 1) * UINT64_C(0x9e3779b97f4a7c15) + at) << 1;
}

// One direction of one connection as an op of NCCL's proxy.
class Op {
 public:
  Op(End* end, bool sends, size_t bytes, Events* events)
      : end_(end), events_(events), sends_(sends), bytes_(bytes), words_((bytes + 7) / 8) {}

  // One pass; true if something has moved. A send may start message `allowed` - 1 at most.
  bool pass(uint64_t allowed, bool last) {
    if (posted_ < done_ + kDepth && posted_ < allowed && post(last)) return true;
    if (posted_ == done_) return false;
    int finished = 0, size = 0;
    check(end_->net->test(requests_[done_ % kDepth], &finished, &size), "test");
    if (finished != 0) complete();
    return finished != 0;
  }

  uint64_t posted() const { return posted_; }
  uint64_t done() const { return done_; }
  bool saw_last() const { return saw_last_; }  // the receiver has it
  bool sent_last() const { return sent_last_ && filled_ == posted_; }
  uint64_t wrong() const { return wrong_; }
  double touched_s() const { return touched_s_; }
  double longest_gap_s() const { return longest_gap_s_; }  // between two received messages

 private:
  uint64_t* slot(uint64_t number) {
    auto& data = sends_ ? end_->send_data : end_->recv_data;
    return data.data() + (number % kDepth) * words_;
  }

  bool post(bool last) {
    void* request = nullptr;
    if (sends_) {
      if (filled_ == posted_) {
        fill(posted_, last);
        ++filled_;
        sent_last_ = last;
      }
      check(end_->net->isend(end_->send, slot(posted_), bytes_, 0, end_->send_memory, nullptr, &request),
            "isend");
    } else {
      void* data = slot(posted_);
      int tag = 0;
      check(end_->net->irecv(end_->recv, 1, &data, &bytes_, &tag, &end_->recv_memory, nullptr, &request),
            "irecv");
    }
    if (request == nullptr) return false;
    requests_[posted_ % kDepth] = request;
    if (events_ != nullptr) events_->posted(posted_, bytes_);
    ++posted_;
    return true;
  }

  void fill(uint64_t number, bool last) {
    double start = thread_s();
    uint64_t* data = slot(number);
    for (size_t at = 0; at < words_; at += kLineWords) data[at] = line_word(number, at);
    data[0] |= last ? 1 : 0;
    touched_s_ += thread_s() - start;
  }

  void complete() {
    if (events_ != nullptr) events_->completed(done_);
    if (!sends_) {
      double start = thread_s();
      const uint64_t* data = slot(done_);
      uint64_t differs = (data[0] ^ line_word(done_, 0)) & ~UINT64_C(1);
      for (size_t at = kLineWords; at < words_; at += kLineWords) differs |= data[at] ^ line_word(done_, at);
      wrong_ += differs != 0;
      saw_last_ = (data[0] & 1) != 0;
      touched_s_ += thread_s() - start;
      double end = now_s();
      if (done_ > 0) longest_gap_s_ = std::max(longest_gap_s_, end - arrived_s_);
      arrived_s_ = end;
    }
    ++done_;
  }

  End* end_;
  Events* events_;
  const bool sends_;
  size_t bytes_;
  const size_t words_;
  void* requests_[kDepth] = {};
  uint64_t posted_ = 0, done_ = 0, filled_ = 0, wrong_ = 0;
  bool saw_last_ = false, sent_last_ = false;
  double touched_s_ = 0, arrived_s_ = 0, longest_gap_s_ = 0;
};

// ncclProxyProgress: gives way when idle, and now and then when not.
class Turn {
 public:
  void end(bool moved) {
    if (moved && ++passes_ < 8) return;
    passes_ = 0;
    if (moved || nap_us_ == 0) {
      sched_yield();
    } else {
      usleep(nap_us_);
    }
  }

 private:
  static uint32_t nap_us() {
    const char* text = getenv("NET_BENCH_NAP_US");
    return text != nullptr ? static_cast<uint32_t>(strtoul(text, nullptr, 10)) : 0;
  }

  const uint32_t nap_us_ = nap_us();
  int passes_ = 0;
};

// A communicator's connection: both directions, so that latency can go back and forth.
class Communicator {
 public:
  Communicator(const NetV12* net, uint64_t number, bool receives, size_t bytes, int peer)
      : events_(!receives),
        out_(&end_, true, bytes, receives ? nullptr : &events_),
        in_(&end_, false, bytes, receives ? &events_ : nullptr) {
    end_.net = net;
    void* context = nullptr;
    Config config{-1};
    check(net->init(&context, number, &config, log_line, nullptr), "init");
    int devices = 0;
    check(net->devices(&devices), "devices");
    if (devices < 1) exit(1);
    alignas(8) uint8_t mine[kHandleBytes] = {}, theirs[kHandleBytes] = {};
    void* listener = nullptr;
    check(net->listen(context, 0, mine, &listener), "listen");
    swap_bytes(peer, mine, theirs, sizeof(mine));
    for (double start = now_s(); end_.send == nullptr || end_.recv == nullptr;) {
      void* unused = nullptr;
      if (end_.send == nullptr) check(net->connect(context, 0, theirs, &end_.send, &unused), "connect");
      if (end_.recv == nullptr) check(net->accept(listener, &end_.recv, &unused), "accept");
      if (now_s() - start > 20) exit(1);
    }
    size_t words = (bytes + 7) / 8;
    end_.send_data.assign(words * kDepth, 7);
    end_.recv_data.assign(words * kDepth, 0);
    check(net->reg_mr(end_.send, end_.send_data.data(), end_.send_data.size() * 8, kPointerHost,
                      &end_.send_memory),
          "regMr");
    check(net->reg_mr(end_.recv, end_.recv_data.data(), end_.recv_data.size() * 8, kPointerHost,
                      &end_.recv_memory),
          "regMr");
  }

  Op& out() { return out_; }
  Op& in() { return in_; }
  double touched_s() const { return in_.touched_s() + out_.touched_s(); }
  double profiler_s() const { return events_.used_s(); }

  void post_receives() {
    while (in_.posted() < kDepth) in_.pass(UINT64_MAX, false);
  }

  // One way, as fast as it goes, until the sender's time is over.
  void stream(bool receives, double start, double seconds) {
    Turn turn;
    if (receives) {
      while (!in_.saw_last()) turn.end(in_.pass(UINT64_MAX, false));
    } else {
      while (!out_.sent_last() || out_.done() < out_.posted())
        turn.end(out_.pass(out_.sent_last() ? out_.posted() : UINT64_MAX, now_s() - start >= seconds));
    }
  }

  // To and fro; half a round trip of each.
  std::vector<double> bounce(bool receives, double start, double seconds) {
    std::vector<double> rounds;
    Turn turn;
    uint64_t round = 0;
    bool more = true;
    while (more) {
      double before = now_s();
      if (!receives) more = before - start < seconds;
      // The one side sends first, the other answers with what it was told: go on, or that was the last.
      auto until = [&](Op* op, uint64_t count, uint64_t may_send) {
        while (op->done() < count) {
          bool moved = out_.pass(may_send, !more);
          moved |= in_.pass(UINT64_MAX, false);
          turn.end(moved);
        }
      };
      if (!receives) {
        until(&in_, round + 1, round + 1);
        rounds.push_back((now_s() - before) / 2);
      } else {
        until(&in_, round + 1, round);
        more = !in_.saw_last();
        if (more) {
          // The answer leaves now; that it has left is seen while the next round is waited for.
          while (out_.posted() < round + 1) turn.end(out_.pass(round + 1, false));
        } else {
          until(&out_, round + 1, round + 1);
        }
      }
      ++round;
    }
    while (out_.done() < out_.posted()) turn.end(out_.pass(out_.posted(), false));
    return rounds;
  }

 private:
  End end_;
  Events events_;
  Op out_, in_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 8) return 2;
  bool receives = strcmp(argv[1], "receive") == 0, latency = strcmp(argv[3], "latency") == 0;
  const char* many = strchr(argv[3], ':');
  unsigned long communicators = many != nullptr ? strtoul(many + 1, nullptr, 10) : 1;
  if (communicators < 1 || communicators > 256) return 2;
  size_t bytes = strtoull(argv[4], nullptr, 10);
  if (bytes < 8) return 2;
  double seconds = strtod(argv[5], nullptr);
  if (!(seconds > 0)) return 2;
  int peer = meet(receives, argv[2]);
  int on = 1;
  setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const NetV12* net = table_of(argv[6], argv[7], argc > 8 ? argv[8] : nullptr);
  std::vector<std::unique_ptr<Communicator>> all;
  for (unsigned long number = 1; number <= communicators; ++number)
    all.push_back(std::make_unique<Communicator>(net, number, receives, bytes, peer));
  // The receiver has posted before the sender starts.
  if (latency || receives)
    for (auto& each : all) each->post_receives();
  char word = 0;
  swap_bytes(peer, "x", &word, 1);

  const std::map<std::string, double> threads_before = threads_s();
  double start = now_s(), cpu = cpu_s();
  std::vector<double> rounds;
  if (latency) {
    rounds = all.front()->bounce(receives, start, seconds);
  } else {
    std::vector<std::thread> threads;
    for (auto& each : all)
      threads.emplace_back([&each, receives, start, seconds] { each->stream(receives, start, seconds); });
    for (auto& thread : threads) thread.join();
  }
  std::map<std::string, double> threads_after = threads_s();
  double took = now_s() - start, touched = 0, longest_gap = 0, profiler = 0;
  uint64_t count = 0, wrong = 0;
  for (auto& each : all) {
    touched += each->touched_s();
    profiler += each->profiler_s();
    count += latency || receives ? each->in().done() : each->out().done();
    wrong += each->in().wrong();
    longest_gap = std::max(longest_gap, each->in().longest_gap_s());
  }
  double used = cpu_s() - cpu - touched;
  double gigabytes = static_cast<double>(count) * static_cast<double>(bytes) / 1e9;
  double p50 = 0;
  if (!rounds.empty()) {
    std::nth_element(rounds.begin(), rounds.begin() + static_cast<long>(rounds.size() / 2), rounds.end());
    p50 = rounds[rounds.size() / 2];
  }
  const double per_gb = gigabytes > 0 ? 1 / gigabytes : 0;
  std::string threads_text;
  for (const auto& [name, seconds] : threads_after) {
    auto before = threads_before.find(name);
    double spent = seconds - (before != threads_before.end() ? before->second : 0);
    threads_text += (threads_text.empty() ? "\"" : ", \"") + name + "\": " + std::to_string(spent * per_gb);
  }
  printf(
      "{\"role\": \"%s\", \"messages\": %llu, \"wrong\": %llu, \"seconds\": %.6f, \"gb_per_s\": %.6f, "
      "\"cpu_s_per_gb\": %.6f, \"touch_s_per_gb\": %.6f, \"profiler_s_per_gb\": %.6f, "
      "\"threads_s_per_gb\": {%s}, \"half_round_trip_us\": %.3f, \"longest_gap_ms\": %.3f}\n",
      argv[1], static_cast<unsigned long long>(count), static_cast<unsigned long long>(wrong), took,
      gigabytes / took, used * per_gb, touched * per_gb, profiler * per_gb, threads_text.c_str(), p50 * 1e6,
      longest_gap * 1e3);
  fflush(stdout);
  swap_bytes(peer, "y", &word, 1);
  // Receives that were posted ahead are given up with the process.
  _exit(wrong == 0 ? 0 : 1);
}
