// A job that makes a connection, of the process to itself, only on request: what of the NICs that
// have come since it asked for the devices? Usage: plugin_late_nic_host LIBRARY. Prints `devices N`, waits
// for SIGUSR1, connects, moves a message, prints `connected N` (the devices, asked again) and waits for
// SIGUSR1.
#include <vector>

#include "nccl_host.h"

using namespace fabricpulse::abi;
using namespace nccl_host;

namespace {

void say(const char* what, int number) {
  printf("%s %d\n", what, number);
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const sigset_t go = blocked(SIGUSR1);
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return failed(dlerror());
  auto* net = static_cast<const NetV12*>(dlsym(library, "ncclNetPlugin_v12"));
  if (net == nullptr) return failed("no ncclNetPlugin_v12");
  void* context = nullptr;
  Config config{-1};
  if (net->init(&context, 1, &config, log_line, nullptr) != kSuccess) return failed("init");
  int devices = 0;
  if (net->devices(&devices) != kSuccess) return failed("devices");
  say("devices", devices);
  int signal = 0;
  sigwait(&go, &signal);
  Loop loop;
  if (const char* what = loop.connect(net, context)) return failed(what);
  std::vector<char> out(4 << 20, 7), in(out.size());
  if (const char* what = loop.move(net, out.data(), in.data(), in.size(), nullptr)) return failed(what);
  if (in != out) return failed("other data");
  if (net->devices(&devices) != kSuccess) return failed("devices");
  say("connected", devices);
  sigwait(&go, &signal);
  loop.close(net);
  return net->finalize(context) == kSuccess ? 0 : failed("finalize");
}
