// Plays the part of NCCL towards net plugin and profiler together: a connection of this process to itself
// carries COUNT messages, each within a step of a proxy operation of an all-reduce. Usage: plugin_flow_host
// LIBRARY COUNT. Prints "played" and how often the net plugin has called the profiler, then waits for
// SIGTERM.
#include <stdlib.h>
#include <string.h>

#include "abi/profiler.h"
#include "nccl_host.h"

using namespace fabricpulse::abi;
using namespace nccl_host;
using Descriptor7 = DescriptorV7;
using Profiler = ProfilerV5<Descriptor7>;

namespace {

const Profiler* profiler = nullptr;
void* profiling = nullptr;
int asked = 0;

// NCCL's part of the callback: our event under the one of the step.
Result callback(void** event, int type, void* parent, int64_t plugin, void* data) {
  if (type == 1) return profiler->stop_event(*event);
  if (type != 0) return kInvalidUsage;
  ++asked;
  Descriptor7 d{};
  d.type = kEventNetPlugin;
  d.parent = parent;
  d.net_plugin = {plugin, data};
  return profiler->start_event(profiling, event, &d);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const sigset_t stop = blocked(SIGTERM);
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return failed(dlerror());
  profiler = static_cast<const Profiler*>(dlsym(library, "ncclProfiler_v7"));
  auto* net = static_cast<const NetV12*>(dlsym(library, "ncclNetPlugin_v12"));
  if (profiler == nullptr || net == nullptr) return failed("symbols are missing");
  int mask = 0;
  if (profiler->init(&profiling, 77, &mask, "world", 2, 4, 1, log_line) != kSuccess)
    return failed("profiler");
  void* context = nullptr;
  Config config{-1};
  if (net->init(&context, 77, &config, log_line, callback) != kSuccess) return failed("init");
  NetAttributes attributes{};
  attributes.operations = 4;
  attributes.algorithms = 2;
  attributes.protocols = 1;
  net->set_attributes(context, &attributes);
  Loop loop;
  if (const char* what = loop.connect(net, context)) return failed(what);
  static char out[4096], in[4096];
  const long count = strtol(argv[2], nullptr, 10);
  for (long i = 0; i < count; ++i) {
    Descriptor7 d{};
    void *collective = nullptr, *operation = nullptr, *step = nullptr;
    d.type = kEventCollective;
    d.rank = 1;
    d.collective.function = "AllReduce";
    d.collective.count = 1024;
    d.collective.type = "ncclFloat32";
    d.collective.algorithm = "RING";
    d.collective.protocol = "LL128";
    profiler->start_event(profiling, &collective, &d);
    Descriptor7 o{};
    o.type = kEventProxyOp;
    o.parent = collective;
    o.rank = 1;
    o.proxy_op = {getpid(), 5, 3, 1, 4096, 1};
    profiler->start_event(profiling, &operation, &o);
    Descriptor7 s{};
    s.type = kEventProxyStep;
    s.parent = operation;
    profiler->start_event(profiling, &step, &s);
    memset(out, i, sizeof(out));
    if (const char* what = loop.move(net, out, in, sizeof(out), step)) return failed(what);
    if (memcmp(in, out, sizeof(in)) != 0) return failed("other data");
    for (void* event : {step, operation, collective}) profiler->stop_event(event);
  }
  attributes.operations = 8;
  net->set_attributes(context, &attributes);
  void* last = nullptr;
  while (last == nullptr)
    if (net->isend(loop.sending, out, 1, 0, nullptr, nullptr, &last) != kSuccess) return failed("isend");
  printf("played %d\n", asked);
  fflush(stdout);
  int signal = 0;
  sigwait(&stop, &signal);
  loop.close(net);
  if (net->finalize(context) != kSuccess || profiler->finalize(profiling) != kSuccess)
    return failed("finalize");
  return 0;
}
