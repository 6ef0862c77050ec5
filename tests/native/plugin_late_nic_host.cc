// A job that makes a connection, of the process to itself, only when it is told to: what of the NICs that
// have come since it asked for the devices? Usage: plugin_late_nic_host LIBRARY. Prints `devices N`, waits
// for SIGUSR1, connects, moves a message, prints `connected N` (the devices, asked again) and waits for
// SIGUSR1.
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <vector>

#include "abi/net.h"

using namespace fabricpulse::abi;

namespace {

void log_line(int, unsigned long, const char*, int, const char* format, ...) {
  fprintf(stderr, "%s\n", format);
}

int failed(const char* what) {
  fprintf(stderr, "%s\n", what);
  return 1;
}

void say(const char* what, int number) {
  printf("%s %d\n", what, number);
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  sigset_t go;
  sigemptyset(&go);
  sigaddset(&go, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &go, nullptr);
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return failed(dlerror());
  auto* net = static_cast<const NetV12*>(dlsym(library, "ncclNetPlugin_v12"));
  if (net == nullptr) return failed("no ncclNetPlugin_v12");
  void *context = nullptr, *listening = nullptr, *sending = nullptr, *receiving = nullptr;
  Config config{-1};
  if (net->init(&context, 1, &config, log_line, nullptr) != kSuccess) return failed("init");
  int devices = 0;
  if (net->devices(&devices) != kSuccess) return failed("devices");
  say("devices", devices);
  int signal = 0;
  sigwait(&go, &signal);
  char handle[kHandleBytes];
  if (net->listen(context, 0, handle, &listening) != kSuccess) return failed("listen");
  while (sending == nullptr || receiving == nullptr) {
    if (sending == nullptr && net->connect(context, 0, handle, &sending, nullptr) != kSuccess)
      return failed("connect");
    if (receiving == nullptr && net->accept(listening, &receiving, nullptr) != kSuccess)
      return failed("accept");
    usleep(1000);
  }
  std::vector<char> out(4 << 20, 7), in(out.size());
  void *data = in.data(), *sent = nullptr, *received = nullptr;
  size_t size = in.size();
  int tag = 0;
  while (received == nullptr)
    if (net->irecv(receiving, 1, &data, &size, &tag, nullptr, nullptr, &received) != kSuccess)
      return failed("irecv");
  while (sent == nullptr)
    if (net->isend(sending, out.data(), out.size(), tag, nullptr, nullptr, &sent) != kSuccess)
      return failed("isend");
  for (void* request : {received, sent})
    for (int done = 0; !done;)
      if (net->test(request, &done, nullptr) != kSuccess) return failed("test");
  if (in != out) return failed("other data");
  if (net->devices(&devices) != kSuccess) return failed("devices");
  say("connected", devices);
  sigwait(&go, &signal);
  net->close_send(sending);
  net->close_recv(receiving);
  net->close_listen(listening);
  return net->finalize(context) == kSuccess ? 0 : failed("finalize");
}
