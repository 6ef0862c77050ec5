// The symbols ncclProfiler_v4 … v7. NCCL takes them from the net plugin's library by itself; with
// NCCL_PROFILER_PLUGIN set to this library they work beside NCCL's own transports.
#include "abi/profiler.h"

#include <exception>
#include <type_traits>

#include "process/collectives.h"
#include "process/plugin_engine.h"

#define FABRICPULSE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fabricpulse {
namespace {

using abi::Result;
using Event = Profiler::Event;

Result start(void** context, uint64_t communicator, int* mask, int ranks, int rank,
             abi::Logger log) noexcept {
  try {
    std::string error;
    auto engine = PluginEngine::acquire(log, PluginEngine::Purpose::kProfiler, &error);
    if (!engine) return abi::kSystemError;  // NCCL goes on without a profiler
    *context = new Profiler(std::move(engine), communicator, static_cast<uint32_t>(ranks),
                            static_cast<uint32_t>(rank), mask);
    return abi::kSuccess;
  } catch (const std::exception&) {
    return abi::kSystemError;
  }
}

Result init_v4(void** context, int* mask, const char*, uint64_t communicator, int, int ranks, int rank,
               abi::Logger log) {
  return start(context, communicator, mask, ranks, rank, log);
}
Result init_v5(void** context, uint64_t communicator, int* mask, const char*, int, int ranks, int rank,
               abi::Logger log) {
  return start(context, communicator, mask, ranks, rank, log);
}

template <typename D>
Result start_event(void* context, void** handle, D* descriptor) noexcept {
  auto* profiler = static_cast<Profiler*>(context);
  *handle = nullptr;
  if (profiler == nullptr || profiler->inherited()) return abi::kSuccess;
  Event* event = nullptr;
  auto* parent = static_cast<Event*>(descriptor->parent);
  try {
    switch (static_cast<uint64_t>(descriptor->type)) {
      case abi::kEventCollective: {
        const auto& c = descriptor->collective;
        event = profiler->operation(c.function, c.algorithm, c.protocol, c.count * type_bytes(c.type),
                                    c.sequence, c.channels);
        break;
      }
      case abi::kEventP2p: {
        const auto& p = descriptor->p2p;
        event = profiler->transfer(p.function, p.count * type_bytes(p.type), p.channels);
        break;
      }
      case abi::kEventProxyOp:
        // A proxy of another process has our parent's address in its own memory.
        if (!profiler->here(descriptor->proxy_op.pid)) break;
        if (profiler->owns(parent))
          event = profiler->proxy(parent, descriptor->rank, descriptor->proxy_op.peer,
                                  descriptor->proxy_op.channel);
        break;
      case abi::kEventKernelChannel:
        if (profiler->owns(parent)) event = profiler->kernel(parent, descriptor->kernel_channel.gpu_time);
        break;
      case abi::kEventProxyStep:
        if (profiler->owns(parent)) event = profiler->step(parent);
        break;
      case abi::kEventNetPlugin:
        // From our own net plugin, in this very call of its: which connection carries the step. No handle is
        // given out, so nothing has to be stopped.
        if (descriptor->net_plugin.id == kNetEventId && profiler->owns(parent))
          profiler->name_flow(parent, static_cast<Connection*>(descriptor->net_plugin.data));
        break;
      default:
        break;
    }
  } catch (const std::exception&) {
  }
  *handle = event;
  return abi::kSuccess;
}

Result stop_event(void* handle) {
  auto* event = static_cast<Event*>(handle);
  if (event != nullptr && event->owner != nullptr && !event->owner->inherited()) event->owner->stop(event);
  return abi::kSuccess;
}

Result record_state(void* handle, int state, void* arguments) {
  auto* event = static_cast<Event*>(handle);
  if (event == nullptr || event->owner == nullptr || event->owner->inherited()) return abi::kSuccess;
  if (event->kind == Profiler::Kind::kKernel && state == abi::kKernelChannelStop && arguments != nullptr)
    event->owner->kernel_stopped(event, static_cast<abi::KernelChannelStop*>(arguments)->gpu_time);
  if (event->kind != Profiler::Kind::kStep) return abi::kSuccess;
  event->owner->step_waits(event, state == abi::kStepSendWait || state == abi::kStepRecvWait);
  return abi::kSuccess;
}

Result finalize(void* context) {
  auto* profiler = static_cast<Profiler*>(context);
  if (profiler != nullptr && !profiler->inherited()) delete profiler;
  return abi::kSuccess;
}

constexpr char kProfilerName[] = "fabricpulse";

}  // namespace
}  // namespace fabricpulse

using namespace fabricpulse;

FABRICPULSE_EXPORT const abi::ProfilerV4 ncclProfiler_v4 = {
    kProfilerName, init_v4, start_event<abi::DescriptorV4>, stop_event, record_state, finalize};
FABRICPULSE_EXPORT const abi::ProfilerV5<abi::DescriptorV5> ncclProfiler_v5 = {
    kProfilerName, init_v5, start_event<abi::DescriptorV5>, stop_event, record_state, finalize};
FABRICPULSE_EXPORT const abi::ProfilerV5<abi::DescriptorV5> ncclProfiler_v6 = {
    kProfilerName, init_v5, start_event<abi::DescriptorV5>, stop_event, record_state, finalize};
FABRICPULSE_EXPORT const abi::ProfilerV5<abi::DescriptorV7> ncclProfiler_v7 = {
    kProfilerName, init_v5, start_event<abi::DescriptorV7>, stop_event, record_state, finalize};
