// Several communicators, each in a thread of its own, in a process that loads the plugin, unloads it and
// loads it again: every thread makes a context, connects to itself, sends messages and compares them, and
// ends the context, over and over, while the others are anywhere in that.
//
// Usage: plugin_reload_host LIBRARY THREADS ROUNDS LOADS; FABRICPULSE_RUN_DIR must be set. Prints, before the
// first load and after each, one line: `threads T descriptors D files F` of this process and its telemetry.
#include <dirent.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "abi/net.h"

using namespace fabricpulse::abi;

namespace {

constexpr int kMessages = 8;
constexpr size_t kMost = 300'000;

std::atomic<int> failures{0};

void log_line(int level, unsigned long, const char*, int, const char* format, ...) {
  if (level <= 2) fprintf(stderr, "%s\n", format);
}

bool good(Result result, const char* call) {
  if (result == kSuccess) return true;
  fprintf(stderr, "%s returned %d\n", call, static_cast<int>(result));
  ++failures;
  return false;
}

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
  return value ^ (value >> 31);
}

struct Ends {
  void *context = nullptr, *listener = nullptr, *send = nullptr, *recv = nullptr;
};

bool connect(const NetV12* net, uint64_t seed, Ends* ends) {
  int devices = 0;
  if (!good(net->devices(&devices), "devices") || devices < 1) return false;
  int device = static_cast<int>(seed % static_cast<uint64_t>(devices));
  PropertiesV12 properties{};
  if (!good(net->get_properties(device, &properties), "getProperties")) return false;
  alignas(8) char handle[kHandleBytes] = {};
  if (!good(net->listen(ends->context, device, handle, &ends->listener), "listen")) return false;
  while (ends->send == nullptr || ends->recv == nullptr) {
    void* unused = nullptr;
    if (ends->send == nullptr &&
        !good(net->connect(ends->context, device, handle, &ends->send, &unused), "connect"))
      return false;
    if (ends->recv == nullptr && !good(net->accept(ends->listener, &ends->recv, &unused), "accept"))
      return false;
    usleep(200);  // as NCCL's proxy: asked again and again
  }
  return true;
}

// A sender that connects, sends a small message and leaves before the other end has accepted it: accept()
// gives the connection all the same, and the message is there.
bool hasty(const NetV12* net, uint64_t seed, Ends* ends) {
  alignas(8) char handle[kHandleBytes] = {};
  void *unused = nullptr, *memory = nullptr, *request = nullptr;
  std::vector<uint8_t> out(1000, static_cast<uint8_t>(seed)), in(out.size());
  if (!good(net->listen(ends->context, 0, handle, &ends->listener), "listen")) return false;
  while (ends->send == nullptr) {
    if (!good(net->connect(ends->context, 0, handle, &ends->send, &unused), "connect")) return false;
    usleep(200);
  }
  if (!good(net->reg_mr(ends->send, out.data(), out.size(), kPointerHost, &memory), "regMr")) return false;
  auto finish = [&](const std::function<Result()>& begin, const char* call) {
    for (int done = 0, size = 0; done == 0; usleep(200)) {
      if (request == nullptr && !good(begin(), call)) return false;
      if (request != nullptr && !good(net->test(request, &done, &size), "test")) return false;
    }
    request = nullptr;
    return true;
  };
  if (!finish([&] { return net->isend(ends->send, out.data(), out.size(), 0, memory, nullptr, &request); },
              "isend"))
    return false;
  good(net->close_send(ends->send), "closeSend");
  ends->send = nullptr;
  usleep(100'000);  // the BYE arrives: longer than the service thread leaves a connection alone
  for (int tries = 0; ends->recv == nullptr; ++tries) {
    if (!good(net->accept(ends->listener, &ends->recv, &unused), "accept")) return false;
    if (tries > 10'000) {
      fprintf(stderr, "accept does not give a connection whose sender has left\n");
      ++failures;
      return false;
    }
    usleep(200);
  }
  void* data = in.data();
  size_t room = in.size();
  int tag = 0;
  if (!finish([&] { return net->irecv(ends->recv, 1, &data, &room, &tag, &memory, nullptr, &request); },
              "irecv"))
    return false;
  if (in == out) return true;
  fprintf(stderr, "the message of a sender that has left is not what was sent\n");
  ++failures;
  return false;
}

// A handle that this plugin has not made is refused, whichever part of it is wrong; nothing is read beyond
// it.
bool refuses(const NetV12* net, Ends* ends) {
  alignas(8) char handle[kHandleBytes] = {}, wrong[kHandleBytes];
  if (!good(net->listen(ends->context, 0, handle, &ends->listener), "listen")) return false;
  constexpr size_t kMagic = 0, kV4 = 26, kCount = 27, kDevice = 28;
  const struct {
    size_t place;
    unsigned char value;
  } changes[] = {{kMagic, 'x'}, {kCount, 0}, {kCount, 17}, {kCount, 255}, {kDevice, 16}, {kV4, 0}};
  for (const auto& change : changes) {
    memcpy(wrong, handle, sizeof(wrong));
    wrong[change.place] = static_cast<char>(change.value);
    if (change.place == kV4) wrong[kCount] = 5;  // of 16 bytes each, where 4 have room
    void *made = nullptr, *unused = nullptr;
    if (net->connect(ends->context, 0, wrong, &made, &unused) != kSuccess && made == nullptr) continue;
    fprintf(stderr, "a handle with byte %zu changed to %d is taken\n", change.place, change.value);
    ++failures;
    return false;
  }
  return good(net->close_listen(std::exchange(ends->listener, nullptr)), "closeListen");
}

// kMessages messages, all under way at once; with `leave` they are given up in the middle.
bool exchange(const NetV12* net, uint64_t seed, bool leave, const Ends& ends) {
  static thread_local std::vector<uint8_t> out(kMessages * kMost), in(kMessages * kMost);
  void *sent[kMessages] = {}, *received[kMessages] = {}, *memory[2] = {};
  if (!good(net->reg_mr(ends.send, out.data(), out.size(), kPointerHost, &memory[0]), "regMr") ||
      !good(net->reg_mr(ends.recv, in.data(), in.size(), kPointerHost, &memory[1]), "regMr"))
    return false;
  bool over[2][kMessages] = {};
  size_t sizes[kMessages];
  for (int i = 0; i < kMessages; ++i) {
    sizes[i] = mix(seed * kMessages + static_cast<uint64_t>(i)) % kMost;
    for (size_t at = 0; at < sizes[i]; ++at)
      out[kMost * static_cast<size_t>(i) + at] =
          static_cast<uint8_t>((seed + at) * 31 + static_cast<size_t>(i));
  }
  for (int at = 0, left = 2 * kMessages; left > 0; at = (at + 1) % kMessages) {
    size_t offset = kMost * static_cast<size_t>(at);
    void* data = in.data() + offset;
    size_t room = kMost;
    int tag = 0, done = 0, size = 0;
    // In order, as NCCL posts them.
    bool before = at == 0 || (received[at - 1] != nullptr && sent[at - 1] != nullptr);
    if (received[at] == nullptr && before &&
        !good(net->irecv(ends.recv, 1, &data, &room, &tag, &memory[1], nullptr, &received[at]), "irecv"))
      return false;
    if (sent[at] == nullptr && before && received[at] != nullptr &&
        !good(net->isend(ends.send, out.data() + offset, sizes[at], 0, memory[0], nullptr, &sent[at]),
              "isend"))
      return false;
    if (leave && sent[kMessages - 1] != nullptr) return true;
    void* requests[2] = {sent[at], received[at]};
    for (int way = 0; way < 2; ++way) {
      if (requests[way] == nullptr || over[way][at]) continue;
      if (!good(net->test(requests[way], &done, &size), "test")) return false;
      if (done == 0) continue;
      over[way][at] = true;
      --left;
      if (way == 1 && (static_cast<size_t>(size) != sizes[at] ||
                       memcmp(out.data() + offset, in.data() + offset, sizes[at]) != 0)) {
        fprintf(stderr, "message %d is not what was sent\n", at);
        ++failures;
        return false;
      }
    }
  }
  return good(net->dereg_mr(ends.send, memory[0]), "deregMr") &&
         good(net->dereg_mr(ends.recv, memory[1]), "deregMr");
}

void communicator(const NetV12* net, uint64_t number) {
  Ends ends;
  Config config{-1};
  if (!good(net->init(&ends.context, number, &config, log_line, nullptr), "init")) return;
  if (number % 5 == 4) {
    if (refuses(net, &ends)) hasty(net, number, &ends);
  } else if (connect(net, number, &ends)) {
    exchange(net, number, number % 3 == 2, ends);
  }
  if (ends.send != nullptr) good(net->close_send(ends.send), "closeSend");
  if (ends.recv != nullptr) good(net->close_recv(ends.recv), "closeRecv");
  if (ends.listener != nullptr) good(net->close_listen(ends.listener), "closeListen");
  good(net->finalize(ends.context), "finalize");
}

int entries(const std::string& folder) {
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return 0;
  int count = 0;
  while (dirent* entry = readdir(dir)) count += entry->d_name[0] != '.';
  closedir(dir);
  return count;
}

void show(const std::string& plugin) {
  // A thread that was joined may be seen in /proc a moment longer: the least of a few looks counts.
  int threads = entries("/proc/self/task");
  for (int look = 0; look < 20; ++look) {
    usleep(1000);
    threads = std::min(threads, entries("/proc/self/task"));
  }
  // The folder that is being read is a descriptor itself.
  printf("threads %d descriptors %d files %d\n", threads, entries("/proc/self/fd") - 1, entries(plugin));
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const char* run_dir = getenv("FABRICPULSE_RUN_DIR");
  if (argc != 5 || run_dir == nullptr) return 2;
  const std::string plugin = std::string(run_dir) + "/plugin";
  long threads = strtol(argv[2], nullptr, 10), rounds = strtol(argv[3], nullptr, 10);
  long loads = strtol(argv[4], nullptr, 10);
  std::thread([] {}).join();  // ThreadSanitizer has a thread of its own from the first one on
  show(plugin);
  for (long load = 0; load < loads; ++load) {
    void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      fprintf(stderr, "%s\n", dlerror());
      return 2;
    }
    auto* net = static_cast<const NetV12*>(dlsym(library, "ncclNetPlugin_v12"));
    if (net == nullptr) return 2;
    std::vector<std::thread> running;
    running.reserve(static_cast<size_t>(threads));
    for (long thread = 0; thread < threads; ++thread)
      running.emplace_back([=] {
        for (long round = 0; round < rounds; ++round)
          communicator(net, static_cast<uint64_t>((load * threads + thread) * rounds + round + 1));
      });
    for (std::thread& thread : running) thread.join();
    dlclose(library);
    show(plugin);
  }
  return failures == 0 ? 0 : 1;
}
