// The events that NCCL's proxy gives a profiler plugin, given by the net benchmark in the same order.
#pragma once
#include <dlfcn.h>
#include <stdlib.h>

#include <cstdint>

#include "abi/profiler.h"
#include "cpu_time.h"
#include "library.h"

namespace net_bench {

using namespace fabricpulse::abi;

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
  // Of this thread, while it exists. The first reading is for the caches, and what the second takes is taken off: here,
  // after a message of other work, it is more than anywhere else. By the least of many readings, a profiler that does
  // nothing took 0.2 % of the processor time.
  struct Used {
    explicit Used(Events* events) : events(events) {
      thread_s();
      const double before = thread_s();
      start = thread_s();
      reading = start - before;
    }
    ~Used() { events->used_s_ += thread_s() - start - reading; }
    Used(const Used&) = delete;
    Used& operator=(const Used&) = delete;
    Events* events;
    double start, reading;
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
  double used_s_ = 0;
};

}  // namespace net_bench
