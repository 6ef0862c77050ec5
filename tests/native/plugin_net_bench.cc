// Two processes and one NCCL net: throughput, processor time and latency through the net v12 interface, for
// this project's plugin and, in the same way, for the transports inside libnccl (which export no symbol:
// their place is given).
//
// Usage: plugin_net_bench ROLE HOST:PORT MODE BYTES SECONDS LIBRARY TABLE [STUB]
//   ROLE   receive (listens at HOST:PORT) or send       MODE   bandwidth or latency
//   TABLE  name of an exported symbol, or 0xOFFSET of the table in the library
//   STUB   0xOFFSET of cudaGetDevice in the library: replaced by one that answers device 0
// Prints one JSON line.
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
#include <string>
#include <vector>

#include "abi/net.h"

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

double cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
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
    auto* at = reinterpret_cast<uint8_t*>(map->l_addr + strtoull(stub, nullptr, 16));
    auto page = reinterpret_cast<uintptr_t>(at) & ~uintptr_t{4095};
    if (mprotect(reinterpret_cast<void*>(page), 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) exit(2);
    memcpy(at, kDeviceZero, sizeof(kDeviceZero));
  }
  if (strncmp(table, "0x", 2) == 0)
    return reinterpret_cast<const NetV12*>(map->l_addr + strtoull(table, nullptr, 16));
  auto* found = static_cast<const NetV12*>(dlsym(handle, table));
  if (found == nullptr) exit(2);
  return found;
}

struct End {
  const NetV12* net = nullptr;
  void *send = nullptr, *recv = nullptr, *send_memory = nullptr, *recv_memory = nullptr;
  std::vector<uint8_t> send_data, recv_data;
};

void* start_send(End* end, size_t bytes, int slot) {
  void* request = nullptr;
  check(end->net->isend(end->send, end->send_data.data() + bytes * static_cast<size_t>(slot), bytes, 0,
                        end->send_memory, nullptr, &request),
        "isend");
  return request;
}
void* start_recv(End* end, size_t bytes, int slot) {
  void* request = nullptr;
  void* data = end->recv_data.data() + bytes * static_cast<size_t>(slot);
  int tag = 0;
  check(end->net->irecv(end->recv, 1, &data, &bytes, &tag, &end->recv_memory, nullptr, &request), "irecv");
  return request;
}
bool done(End* end, void* request) {
  int finished = 0, size = 0;
  check(end->net->test(request, &finished, &size), "test");
  return finished != 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 8) return 2;
  bool receives = strcmp(argv[1], "receive") == 0, latency = strcmp(argv[3], "latency") == 0;
  size_t bytes = strtoull(argv[4], nullptr, 10);
  double seconds = atof(argv[5]);
  int peer = meet(receives, argv[2]);
  int on = 1;
  setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  End end;
  end.net = table_of(argv[6], argv[7], argc > 8 ? argv[8] : nullptr);
  void* context = nullptr;
  Config config{-1};
  check(end.net->init(&context, 1, &config, log_line, nullptr), "init");
  int devices = 0;
  check(end.net->devices(&devices), "devices");
  if (devices < 1) return 1;
  // Both directions, so that latency can go back and forth.
  alignas(8) uint8_t mine[kHandleBytes] = {}, theirs[kHandleBytes] = {};
  void* listener = nullptr;
  check(end.net->listen(context, 0, mine, &listener), "listen");
  swap_bytes(peer, mine, theirs, sizeof(mine));
  for (double start = now_s(); end.send == nullptr || end.recv == nullptr;) {
    void* unused = nullptr;
    if (end.send == nullptr) check(end.net->connect(context, 0, theirs, &end.send, &unused), "connect");
    if (end.recv == nullptr) check(end.net->accept(listener, &end.recv, &unused), "accept");
    if (now_s() - start > 20) return 1;
  }
  end.send_data.assign(std::max<size_t>(bytes, 1) * kDepth, 7);
  end.recv_data.assign(std::max<size_t>(bytes, 1) * kDepth, 0);
  check(end.net->reg_mr(end.send, end.send_data.data(), end.send_data.size(), kPointerHost, &end.send_memory),
        "regMr");
  check(end.net->reg_mr(end.recv, end.recv_data.data(), end.recv_data.size(), kPointerHost, &end.recv_memory),
        "regMr");
  char word = 0;
  swap_bytes(peer, "x", &word, 1);

  double start = now_s(), cpu = cpu_s();
  uint64_t count = 0;
  std::vector<double> rounds;
  if (latency) {
    // The sender's first byte says whether another round follows.
    for (bool more = true; more; ++count) {
      // As NCCL's progress thread: whatever is under way is asked about in turn (some transports send only
      // then).
      auto wait_both = [&](void* in, void* out, double* in_at) {
        bool in_done = in == nullptr, out_done = out == nullptr;
        while (!in_done || !out_done) {
          if (!out_done) out_done = done(&end, out);
          if (!in_done && done(&end, in)) {
            in_done = true;
            if (in_at != nullptr) *in_at = now_s();
          }
        }
      };
      void *in = nullptr, *out = nullptr;
      while (in == nullptr) in = start_recv(&end, bytes, 0);
      double before = now_s(), arrived = 0;
      if (!receives) {
        more = before - start < seconds;
        end.send_data[0] = more ? 1 : 2;
        while (out == nullptr) out = start_send(&end, bytes, 0);
        wait_both(in, out, &arrived);
        rounds.push_back((arrived - before) / 2);
      } else {
        wait_both(in, nullptr, nullptr);
        more = end.recv_data[0] == 1;
        while (out == nullptr) out = start_send(&end, bytes, 0);
        wait_both(nullptr, out, nullptr);
      }
    }
  } else {
    std::vector<void*> requests(kDepth, nullptr);
    uint64_t posted = 0;
    bool last_posted = false;
    while (true) {
      bool idle = true;
      while (!last_posted && posted - count < kDepth) {
        int slot = static_cast<int>(posted % kDepth);
        if (!receives) {
          bool last = now_s() - start >= seconds;
          end.send_data[bytes * static_cast<size_t>(slot)] = last ? 2 : 1;
          void* request = start_send(&end, bytes, slot);
          if (request == nullptr) break;
          requests[static_cast<size_t>(slot)] = request;
          last_posted = last;
        } else {
          void* request = start_recv(&end, bytes, slot);
          if (request == nullptr) break;
          requests[static_cast<size_t>(slot)] = request;
        }
        ++posted;
        idle = false;
      }
      if (count < posted && done(&end, requests[count % kDepth])) {
        bool last =
            receives ? end.recv_data[bytes * (count % kDepth)] == 2 : last_posted && count + 1 == posted;
        ++count;
        idle = false;
        if (last) break;
      }
      if (idle) sched_yield();  // as NCCL's progress thread
    }
  }
  double took = now_s() - start;
  double used = cpu_s() - cpu;
  double gigabytes = static_cast<double>(count) * static_cast<double>(bytes) / 1e9;
  double p50 = 0;
  if (!rounds.empty()) {
    std::nth_element(rounds.begin(), rounds.begin() + static_cast<long>(rounds.size() / 2), rounds.end());
    p50 = rounds[rounds.size() / 2];
  }
  printf(
      "{\"role\": \"%s\", \"messages\": %llu, \"seconds\": %.6f, \"gb_per_s\": %.6f, \"cpu_s_per_gb\": %.6f, "
      "\"half_round_trip_us\": %.3f}\n",
      argv[1], static_cast<unsigned long long>(count), took, gigabytes / took,
      gigabytes > 0 ? used / gigabytes : 0, p50 * 1e6);
  fflush(stdout);
  swap_bytes(peer, "y", &word, 1);
  // Receives that were posted ahead are given up with the process.
  _exit(0);
}
