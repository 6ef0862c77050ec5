// Plays the part of NCCL towards the profiler: one communicator, `count` all-reduces of 1 MiB with two kernel
// channels and one proxy operation with one step each, which begin after the all-reduce was enqueued, as NCCL's proxy
// has them begin, and one kernel channel after the other has ended. Usage: plugin_profiler_host LIBRARY VERSION COUNT
// [HOLD_SECONDS [GPU_US [inside|sends|late]]]. GPU_US: the proxy sees start and end of a kernel channel at once; the GPU's own clock
// says that so long lay between them. inside: of a communicator inside one host, which has no proxy operations.
// sends: as many sends instead, of which NCCL starts the first kernel channel alone, and of every fourth none
// (NVIDIA/nccl#2056). late: the proxy operation ends 200 ms after the kernels; prints for each when they ended: the time and
// the raw clock before and after.
#include "abi/profiler.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

using namespace fabricpulse::abi;

namespace {

void log_line(int, unsigned long, const char*, int, const char* format, ...) {
  va_list values;
  va_start(values, format);
  vfprintf(stderr, format, values);
  va_end(values);
  fputc('\n', stderr);
}

uint64_t now_ns(clockid_t clock = CLOCK_REALTIME) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

template <typename Table, typename D, bool kV4>
int play(void* symbol, int count, int hold, int gpu_us, const char* mode) {
  const bool inside = strcmp(mode, "inside") == 0, sends = strcmp(mode, "sends") == 0;
  const bool late = strcmp(mode, "late") == 0;
  auto* table = static_cast<Table*>(symbol);
  void* context = nullptr;
  // The library writes it at any time, as with NCCL, from another thread (`detail` of the control socket).
  static int activation = -1;
  auto mask = [] { return __atomic_load_n(&activation, __ATOMIC_RELAXED); };
  auto asked = [&](uint64_t type) { return (static_cast<uint64_t>(mask()) & type) != 0; };
  Result result;
  if constexpr (kV4) {
    result = table->init(&context, &activation, "world", 77, 1, 2, 1, log_line);
  } else {
    result = table->init(&context, 77, &activation, "world", 1, 2, 1, log_line);
  }
  if (result != kSuccess) return 3;
  printf("mask %d\n", mask());
  fflush(stdout);
  for (int i = 0; i < count; ++i) {
    D d{};
    void *coll = nullptr, *kernel = nullptr, *second = nullptr, *proxy = nullptr, *step = nullptr;
    d.type = static_cast<decltype(d.type)>(kEventCollective);
    d.rank = 1;
    d.collective.function = "AllReduce";
    d.collective.count = 1 << 18;
    d.collective.type = "ncclFloat32";
    d.collective.algorithm = "RING";
    d.collective.protocol = "SIMPLE";
    d.collective.channels = asked(kEventKernelChannel) ? 2 : 0;
    if (sends) {
      d.type = static_cast<decltype(d.type)>(kEventP2p);
      d.p2p = {};
      d.p2p.function = "Send";
      d.p2p.count = 1 << 18;
      d.p2p.type = "ncclFloat32";
      d.p2p.channels = asked(kEventKernelChannel) ? 2 : 0;
    }
    const bool starts = asked(kEventKernelChannel) && !(sends && i % 4 == 3);
    table->start_event(context, &coll, &d);
    if (coll == nullptr) return 4;
    table->stop_event(coll);  // enqueued; runs on
    D k{};
    k.type = static_cast<decltype(k.type)>(kEventKernelChannel);
    k.parent = coll;
    if (starts && gpu_us == 0) table->start_event(context, &kernel, &k);
    D p{};
    p.type = static_cast<decltype(p.type)>(kEventProxyOp);
    p.parent = coll;
    p.proxy_op.pid = getpid();
    if (asked(kEventProxyOp) && !inside) table->start_event(context, &proxy, &p);
    D s{};
    s.type = static_cast<decltype(s.type)>(kEventProxyStep);
    s.parent = proxy;
    if (asked(kEventProxyStep) && proxy != nullptr) table->start_event(context, &step, &s);
    if (step != nullptr) table->record_state(step, kStepSendWait, nullptr);
    usleep(1000);  // what the operation takes
    uint64_t gpu_ns = now_ns();
    k.kernel_channel.gpu_time = gpu_us > 0 ? gpu_ns - static_cast<uint64_t>(gpu_us) * 1000 : 0;
    if (starts && gpu_us > 0) table->start_event(context, &kernel, &k);
    if (gpu_us > 0 && kernel != nullptr) table->record_state(kernel, kKernelChannelStop, &gpu_ns);
    for (void* event : {step, proxy, kernel})
      if (event != nullptr && (!late || event == kernel)) table->stop_event(event);
    k.kernel_channel.gpu_time = gpu_us > 0 ? gpu_ns : 0;
    if (starts && !sends) table->start_event(context, &second, &k);
    if (gpu_us > 0 && second != nullptr) table->record_state(second, kKernelChannelStop, &gpu_ns);
    const uint64_t before[] = {now_ns(), now_ns(CLOCK_MONOTONIC_RAW)};
    if (second != nullptr) table->stop_event(second);
    if (late) {
      const uint64_t after[] = {now_ns(), now_ns(CLOCK_MONOTONIC_RAW)};
      printf("ended %lu %lu %lu %lu\n", before[0], after[0], before[1], after[1]);
      usleep(200'000);  // the last event comes so much later than the end
      for (void* event : {step, proxy})
        if (event != nullptr) table->stop_event(event);
    }
    // An operation of another process' proxy must not be taken for ours.
    D other{};
    other.type = static_cast<decltype(other.type)>(kEventProxyOp);
    other.parent = reinterpret_cast<void*>(0x10);
    other.proxy_op.pid = getpid() + 1;
    void* foreign = reinterpret_cast<void*>(0x1);
    table->start_event(context, &foreign, &other);
    if (foreign != nullptr) return 5;
  }
  printf("played\n");
  fflush(stdout);
  sleep(static_cast<unsigned>(hold));  // until the test has looked; it ends us earlier
  printf("mask %d\n", mask());
  return table->finalize(context) == kSuccess && mask() == 0 ? 0 : 6;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  char name[64];
  snprintf(name, sizeof(name), "ncclProfiler_%s", argv[2]);
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) return 2;
  int count = static_cast<int>(strtol(argv[3], nullptr, 10));
  int hold = argc > 4 ? static_cast<int>(strtol(argv[4], nullptr, 10)) : 0;
  int gpu_us = argc > 5 ? static_cast<int>(strtol(argv[5], nullptr, 10)) : 0;
  const char* mode = argc > 6 ? argv[6] : "";
  if (strcmp(argv[2], "v4") == 0)
    return play<ProfilerV4, DescriptorV4, true>(symbol, count, hold, gpu_us, mode);
  if (strcmp(argv[2], "v7") == 0)
    return play<ProfilerV5<DescriptorV7>, DescriptorV7, false>(symbol, count, hold, gpu_us, mode);
  return play<ProfilerV5<DescriptorV5>, DescriptorV5, false>(symbol, count, hold, gpu_us, mode);
}
