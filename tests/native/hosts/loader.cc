// Lets the real NCCL load plugins, without a GPU: calls its own loader, which exports no symbol (the places
// are given), on a communicator of zeros, and looks what it has put there.
//
// Usage: plugin_loader_host LIBNCCL NET_INIT NET_FINALIZE PROFILER_INIT PROFILER_FINALIZE (0xOFFSET each)
// NCCL says the rest on standard output (NCCL_DEBUG=INFO). Prints `result CALL CODE`, and `table FILE SYMBOL`
// for each table of functions that the loader has chosen; exits with 0.
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

namespace {

// More than any release's struct ncclComm (1.2 MB in 2.32).
constexpr size_t kCommunicatorBytes = 8 << 20;

uintptr_t base;

int call(const char* name, const char* place, void* communicator) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a symbol table holds numbers
  auto function = reinterpret_cast<int (*)(void*)>(base + strtoull(place, nullptr, 16));
  int result = function(communicator);
  printf("result %s %d\n", name, result);
  fflush(stdout);
  return result;
}

// Pointers in the communicator that are symbols of a plugin: that is what NCCL will call.
void show_tables(const std::vector<uint64_t>& communicator) {
  for (uint64_t word : communicator) {
    Dl_info info{};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): any word may be one
    if (word < 4096 || dladdr(reinterpret_cast<void*>(word), &info) == 0 || info.dli_sname == nullptr)
      continue;
    if (reinterpret_cast<uint64_t>(info.dli_saddr) == word &&
        strncmp(info.dli_sname, "ncclNetPlugin_", 14) == 0)
      printf("table %s %s\n", info.dli_fname, info.dli_sname);
  }
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  link_map* map = nullptr;
  dlinfo(library, RTLD_DI_LINKMAP, &map);
  base = map->l_addr;
  std::vector<uint64_t> communicator(kCommunicatorBytes / 8);
  if (call("ncclNetInit", argv[2], communicator.data()) == 0) {
    show_tables(communicator);
    if (call("ncclProfilerPluginInit", argv[4], communicator.data()) == 0)
      call("ncclProfilerPluginFinalize", argv[5], communicator.data());
    call("ncclNetFinalize", argv[3], communicator.data());
  }
  puts("end");
  fflush(stdout);
}
