// What the programs that load the plugin as NCCL does have in common: loading it, and a connection of this process
// to itself.
#ifndef FABRICPULSE_TESTS_NATIVE_NCCL_HOST_H_
#define FABRICPULSE_TESTS_NATIVE_NCCL_HOST_H_

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <initializer_list>

#include "abi/net.h"

namespace nccl_host {

using namespace fabricpulse::abi;

inline void log_line(int, unsigned long, const char*, int, const char* format, ...) {
  fprintf(stderr, "%s\n", format);
}

// The exit status of a program that has failed; says where.
inline int failed(const char* what) {
  fprintf(stderr, "%s\n", what);
  return 1;
}

// For sigwait(): from here on no thread is interrupted by it.
inline sigset_t blocked(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

// A connection of this process to itself over the first device. The functions below return nullptr, or what failed.
struct Loop {
  void *listening = nullptr, *sending = nullptr, *receiving = nullptr;

  const char* connect(const NetV12* net, void* context) {
    char handle[kHandleBytes];
    if (net->listen(context, 0, handle, &listening) != kSuccess) return "listen";
    while (sending == nullptr || receiving == nullptr) {
      if (sending == nullptr && net->connect(context, 0, handle, &sending, nullptr) != kSuccess)
        return "connect";
      if (receiving == nullptr && net->accept(listening, &receiving, nullptr) != kSuccess) return "accept";
      usleep(1000);  // as NCCL, asks again and again
    }
    return nullptr;
  }

  // One message. event : the profiler's, of both operations.
  const char* move(const NetV12* net, void* out, void* in, size_t size, void* event) {
    void *sent = nullptr, *received = nullptr;
    int tag = 0;
    while (received == nullptr)
      if (net->irecv(receiving, 1, &in, &size, &tag, nullptr, &event, &received) != kSuccess) return "irecv";
    while (sent == nullptr)
      if (net->isend(sending, out, size, tag, nullptr, event, &sent) != kSuccess) return "isend";
    for (void* request : {received, sent})
      for (int done = 0; !done;)
        if (net->test(request, &done, nullptr) != kSuccess) return "test";
    return nullptr;
  }

  void close(const NetV12* net) {
    net->close_send(sending);
    net->close_recv(receiving);
    net->close_listen(listening);
  }
};

}  // namespace nccl_host

#endif  // FABRICPULSE_TESTS_NATIVE_NCCL_HOST_H_
