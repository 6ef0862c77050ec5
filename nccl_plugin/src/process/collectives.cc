#include "process/collectives.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "abi/profiler.h"
#include "core/monotonic.h"

namespace fabricpulse {
namespace {

constexpr size_t kCacheLine = 64;  // bytes
// How far a GPU's clock may be from the host's; the driver sets it when it starts.
constexpr int64_t kGpuClockOffNs = INT64_C(86'400'000'000'000);

}  // namespace

uint32_t type_bytes(const char* type) {
  if (type == nullptr) return 1;
  if (type[0] == 'n' && type[1] == 'c' && type[2] == 'c' && type[3] == 'l') type += 4;
  if (type[0] == 'H') return 2;  // Half
  if (type[0] == 'D') return 8;  // Double
  // All others have their bits in their names, as Float32, Bfloat16 or Float8e4m3.
  while (*type != '\0' && (*type < '0' || *type > '9')) ++type;
  switch (*type) {
    case '1':
      return 2;
    case '3':
      return 4;
    case '6':
      return 8;
    default:
      return 1;
  }
}

Profiler::Profiler(std::shared_ptr<PluginEngine> engine, uint64_t communicator, uint32_t ranks, uint32_t rank,
                   int* mask)
    : engine_(std::move(engine)),
      communicator_(communicator),
      ranks_(ranks),
      rank_(rank),
      pid_(getpid()),
      mask_(mask),
      pool_(new Event[kPool]) {
  for (uint32_t i = 0; i + 1 < kPool; ++i) pool_[i].next_free = &pool_[i + 1];
  free_ = &pool_[0];
  last_free_ = &pool_[kPool - 1];
  engine_->add_profiler(this);
}

Profiler::~Profiler() {
  engine_->remove_profiler(this);
  set_level(0);
  // Of a communicator that was aborted: nothing of it runs on.
  for (uint32_t i = 0; i < kPool; ++i) {
    if (pool_[i].record == nullptr) continue;
    RecordChange<fp_plugin_collective> change(pool_[i].record);
    --pool_[i].record->in_progress;
  }
}

void Profiler::set_level(uint32_t level) {
  int wanted = 0;
  if (level >= 1)
    wanted |= abi::kEventCollective | abi::kEventP2p | abi::kEventKernelChannel | abi::kEventProxyOp;
  if (level >= 2) wanted |= abi::kEventProxyStep | abi::kEventNetPlugin;
  __atomic_store_n(mask_, wanted, __ATOMIC_RELAXED);
}

Profiler::Event* Profiler::take(Kind kind) {
  Event* event = free_;
  if (event == nullptr) return nullptr;
  free_ = event->next_free;
  if (free_ == nullptr) last_free_ = nullptr;
  // The one that is used again is the one that has rested longest: no cache has it.
  for (size_t at = 0; free_ != nullptr && at < sizeof(Event); at += kCacheLine)
    __builtin_prefetch(reinterpret_cast<const char*>(free_) + at, 1);
  if (kind == Kind::kOperation) {
    *event = Event{};
  } else {  // most of it is of operations alone
    event->gpu_start_ns = event->gpu_end_ns = event->waiting_since_ns = 0;
    event->rank = event->peer = event->channel = UINT32_MAX;
    event->kernels_left = 0;
  }
  event->kind = kind;
  event->owner = this;
  event->open = 1;
  return event;
}

fp_plugin_collective* Profiler::record_of(const char* function, const char* algorithm, const char* protocol) {
  for (fp_plugin_collective* record : records_)
    if (strcmp(record->function, function) == 0 && strcmp(record->algorithm, algorithm) == 0 &&
        strcmp(record->protocol, protocol) == 0)
      return record;
  fp_plugin_collective* record =
      engine_->telemetry()->take_collective(communicator_, rank_, ranks_, function, algorithm, protocol);
  if (record != nullptr) records_.push_back(record);
  return record;
}

Profiler::Event* Profiler::operation(const char* function, const char* algorithm, const char* protocol,
                                     uint64_t bytes, uint64_t number, uint32_t channels) {
  std::lock_guard<QuickLock> guard(lock_);
  Event* event = begin(function, algorithm, protocol, bytes, channels);
  if (event != nullptr) event->number = number;
  return event;
}

Profiler::Event* Profiler::transfer(const char* function, uint64_t bytes, uint32_t channels) {
  std::lock_guard<QuickLock> guard(lock_);
  Event* event = begin(function, "", "", bytes, channels);
  if (event != nullptr) event->p2p = true;
  return event;
}

Profiler::Event* Profiler::begin(const char* function, const char* algorithm, const char* protocol,
                                 uint64_t bytes, uint32_t channels) {
  fp_plugin_collective* record =
      record_of(function ? function : "", algorithm ? algorithm : "", protocol ? protocol : "");
  if (record == nullptr) return nullptr;
  Event* event = take(Kind::kOperation);
  if (event == nullptr) return nullptr;
  event->record = record;
  event->bytes = bytes;
  event->serial = ++serial_;
  if (generation_runs_) ++generation_;
  generation_runs_ = false;
  event->generation = generation_;
  event->started_ns = monotonic_ns();
  event->kernels_left = channels;
  if (channels > 0) await_kernels(event);
  RecordChange<fp_plugin_collective> change(record);
  ++record->in_progress;
  return event;
}

void Profiler::await_kernels(Event* operation) {
  ++operation->open;
  operation->earlier = last_awaited_;
  (last_awaited_ != nullptr ? last_awaited_->later : first_awaited_) = operation;
  last_awaited_ = operation;
  if (++awaited_ <= kMostAwaited) return;
  first_awaited_->measured = false;
  await_no_more(first_awaited_);
}

void Profiler::kernel_ended(Event* operation) {
  if (operation->kernels_left == 0 || --operation->kernels_left > 0) return;
  const uint64_t serial = operation->serial;
  await_no_more(operation);
  while (first_awaited_ != nullptr && first_awaited_->serial + kGroup < serial) {
    first_awaited_->measured = false;
    await_no_more(first_awaited_);
  }
}

// A kernel channel of it has ended. But what NCCL reports just now is awaited on.
void Profiler::note_run(const Event& operation) {
  if (operation.generation == generation_) generation_runs_ = true;
  const uint64_t running = operation.generation;
  for (Event* event = first_awaited_; event != nullptr && event->generation + kGenerations <= running;) {
    Event* later = event->later;
    if (event->kernels_running == 0) {
      event->measured &= event->p2p && event->kernel_end_ns != 0;
      await_no_more(event);
    }
    event = later;
  }
}

void Profiler::await_no_more(Event* operation) {
  operation->kernels_left = 0;
  (operation->earlier != nullptr ? operation->earlier->later : first_awaited_) = operation->later;
  (operation->later != nullptr ? operation->later->earlier : last_awaited_) = operation->earlier;
  operation->earlier = operation->later = nullptr;
  --awaited_;
  release(operation);
}

Profiler::Event* Profiler::kernel(Event* parent, uint64_t gpu_ns) {
  std::lock_guard<QuickLock> guard(lock_);
  Event* event = child(parent, Kind::kKernel);
  if (event != nullptr) event->gpu_start_ns = gpu_ns;
  return event;
}

Profiler::Event* Profiler::proxy(Event* parent, int rank, int peer, uint32_t channel) {
  std::lock_guard<QuickLock> guard(lock_);
  Event* event = child(parent, Kind::kChild);
  if (event == nullptr) return nullptr;
  event->rank = rank < 0 ? UINT32_MAX : static_cast<uint32_t>(rank);
  event->peer = peer < 0 ? UINT32_MAX : static_cast<uint32_t>(peer);
  event->channel = channel;
  return event;
}

Profiler::Event* Profiler::step(Event* parent) {
  std::lock_guard<QuickLock> guard(lock_);
  return child(parent, Kind::kStep);
}

Profiler::Event* Profiler::child(Event* parent, Kind kind) {
  if (parent == nullptr || parent->open == 0) return nullptr;
  Event* event = take(kind);
  if (event == nullptr) {
    if (kind != Kind::kKernel) return nullptr;
    parent->measured = false;
    kernel_ended(parent);
    return nullptr;
  }
  event->parent = parent;
  ++parent->open;
  if (kind == Kind::kKernel) ++parent->kernels_running;
  for (Event* up = parent; up != nullptr; up = up->parent) {
    if (up->kind != Kind::kOperation) continue;
    uint64_t* began = kind == Kind::kKernel ? &up->kernel_start_ns : &up->first_ns;
    if (*began == 0) *began = monotonic_ns();
  }
  return event;
}

void Profiler::stop(Event* event) {
  std::lock_guard<QuickLock> guard(lock_);
  if (event->open == 0) return;
  uint64_t now = 0;
  if (event->waiting_since_ns != 0) end_wait(event, now = monotonic_ns());
  if (event->kind == Kind::kKernel && event->parent != nullptr && event->parent->kind == Kind::kOperation) {
    Event* operation = event->parent;
    const bool first = operation->kernel_end_ns == 0;
    --operation->kernels_running;
    operation->kernel_end_ns = now = monotonic_ns();
    if (event->gpu_start_ns == 0 || event->gpu_end_ns < event->gpu_start_ns) operation->gpu_known = false;
    operation->gpu_start_ns =
        first ? event->gpu_start_ns : std::min(operation->gpu_start_ns, event->gpu_start_ns);
    operation->gpu_end_ns = std::max(operation->gpu_end_ns, event->gpu_end_ns);
    note_run(*operation);
    kernel_ended(operation);
  }
  release(event, now);
}

void Profiler::kernel_stopped(Event* kernel, uint64_t gpu_ns) {
  std::lock_guard<QuickLock> guard(lock_);
  // Of other GPUs the clock may have another unit: only one that goes with the host's is one of nanoseconds.
  timespec real{};
  clock_gettime(CLOCK_REALTIME, &real);
  const int64_t off = static_cast<int64_t>(gpu_ns) - (real.tv_sec * INT64_C(1'000'000'000) + real.tv_nsec);
  if (std::abs(off) < kGpuClockOffNs) kernel->gpu_end_ns = gpu_ns;
}

void Profiler::step_waits(Event* event, bool waits) {
  std::lock_guard<QuickLock> guard(lock_);
  if (waits) {
    event->waiting_since_ns = monotonic_ns();
  } else if (event->waiting_since_ns != 0) {
    end_wait(event, monotonic_ns());
  }
}

void Profiler::end_wait(Event* step, uint64_t now) {
  uint64_t waited = elapsed(now, step->waiting_since_ns);
  step->waiting_since_ns = 0;
  for (Event* up = step->parent; up != nullptr; up = up->parent) {
    if (up->record == nullptr) continue;
    RecordChange<fp_plugin_collective> change(up->record);
    up->record->proxy_wait_ns += waited;
  }
}

void Profiler::name_flow(const Event* step, Connection* connection) {
  uint32_t rank = UINT32_MAX, peer = UINT32_MAX, channel = UINT32_MAX, collective = UINT32_MAX;
  {
    std::lock_guard<QuickLock> guard(lock_);
    if (step->open == 0) return;
    for (const Event* up = step; up != nullptr; up = up->parent) {
      if (up->channel != UINT32_MAX) {
        rank = up->rank;
        peer = up->peer;
        channel = up->channel;
      }
      if (up->record != nullptr) collective = engine_->telemetry()->collective_index(up->record);
    }
  }
  connection->set_flow(collective, rank, peer, channel);
}

// One of the event's parts has ended; with the last one the event itself.
void Profiler::release(Event* event, uint64_t now) {
  while (event != nullptr && --event->open == 0) {
    if (event->record != nullptr) finish(*event, now != 0 ? now : monotonic_ns());
    Event* parent = event->parent;
    event->next_free = nullptr;
    event->parent = nullptr;
    event->record = nullptr;
    (last_free_ != nullptr ? last_free_->next_free : free_) = event;
    last_free_ = event;
    event = parent;
  }
}

void Profiler::finish(const Event& operation, uint64_t now) {
  // A kernel that ran for longer than its operation has existed may be another one's. One of its own may look so too,
  // as NCCL starts the event after the launch. The other children are taken then; without any the time is unknown.
  const uint64_t gpu_ns = operation.gpu_end_ns - operation.gpu_start_ns;
  const bool has_kernels = operation.kernel_end_ns != 0;
  const bool by_gpu = has_kernels && operation.gpu_known && operation.gpu_end_ns != 0;
  const bool foreign = by_gpu && gpu_ns > elapsed(operation.kernel_end_ns, operation.started_ns);
  const bool kernels = has_kernels && !foreign;
  const uint64_t from = kernels ? operation.kernel_start_ns : operation.first_ns;
  const uint64_t until = kernels ? operation.kernel_end_ns : now;
  fp_plugin_collective* record = operation.record;
  const bool measured = operation.measured && from != 0;
  const uint64_t lasted = by_gpu && !foreign ? gpu_ns : elapsed(until, from);
  const uint64_t took = measured ? std::max<uint64_t>(lasted, 1) : 0;
  if (measured)
    engine_->telemetry()->operation(*record, operation.number, operation.bytes, took,
                                    engine_->past_event_time(until));
  RecordChange<fp_plugin_collective> change(record);
  ++record->operations;
  --record->in_progress;
  record->bytes += operation.bytes;
  record->last_end_mono_ns = until;
  if (!measured) return;
  record->busy_ns += took;
  record->last_bandwidth =
      static_cast<uint64_t>(static_cast<double>(operation.bytes) * 1e9 / static_cast<double>(took));
}

}  // namespace fabricpulse
