#include "profile.h"

#include <dlfcn.h>

#include <stdexcept>

namespace fabricpulse::ring {
namespace {

// The profiler's counters equal those of the net part.
void log_nothing(int, unsigned long, const char*, int, const char*, ...) {}

}  // namespace

Profile::Profile(const std::string& library, uint64_t communicator, uint32_t ranks, uint32_t rank,
                 Collective collective)
    : rank_(rank), collective_(collective) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(std::string("cannot load the plugin: ") + dlerror());
  table_ = static_cast<const abi::ProfilerV5<D>*>(dlsym(handle, "ncclProfiler_v5"));
  if (table_ == nullptr) throw std::runtime_error(library + " has no ncclProfiler_v5");
  if (table_->init(&context_, communicator, &mask_, "ring", static_cast<int>(ranks), static_cast<int>(ranks),
                   static_cast<int>(rank), log_nothing) != abi::kSuccess)
    throw std::runtime_error("the profiler refuses");
}

Profile::~Profile() { table_->finalize(context_); }

void Profile::begin(uint64_t sequence, size_t bytes) {
  D collective{};
  collective.type = abi::kEventCollective;
  collective.rank = static_cast<int>(rank_);
  collective.collective.sequence = sequence;
  collective.collective.function = collective_.function;
  collective.collective.count = bytes / 4;
  collective.collective.type = "ncclFloat32";
  collective.collective.algorithm = collective_.algorithm;
  collective.collective.protocol = "SIMPLE";
  collective.collective.channels = 1;
  void* operation = nullptr;
  table_->start_event(context_, &operation, &collective);
  if (operation == nullptr) return;  // not enabled
  D channel{};
  channel.type = abi::kEventKernelChannel;
  channel.parent = operation;
  channel.rank = static_cast<int>(rank_);
  table_->stop_event(operation);  // enqueued, as NCCL reports it; its channel comes after that, and ends it
  table_->start_event(context_, &channel_, &channel);
}

void Profile::end() {
  if (channel_ != nullptr) table_->stop_event(channel_);
  channel_ = nullptr;
}

}  // namespace fabricpulse::ring
