// What the net benchmark and NCCL do with a library alike: its table of functions (an exported symbol, or a place in it
// that is given), the log function it is given, the check of what its calls return.
#pragma once
#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "abi/net.h"

namespace net_bench {

using namespace fabricpulse::abi;

constexpr int kDepth = 8;  // NCCL_STEPS

inline void log_line(int level, unsigned long, const char*, int, const char* format, ...) {
  if (level > 2) return;
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
}

[[noreturn]] inline void fail(const char* why) {
  fprintf(stderr, "%s\n", why);
  exit(1);
}

inline void check(Result result, const char* call) {
  if (result == kSuccess) return;
  fprintf(stderr, "%s returned %d\n", call, static_cast<int>(result));
  exit(1);
}

// What lies at an offset, given as 0x text, in a loaded library.
inline void* at_offset(const link_map* map, const char* text) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the linker gives the library's address as a number
  return reinterpret_cast<void*>(map->l_addr + strtoull(text, nullptr, 16));
}

inline const NetV12* table_of(const char* library, const char* table, const char* stub) {
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
    auto* at = static_cast<uint8_t*>(at_offset(map, stub));
    uint8_t* page = at - (reinterpret_cast<uintptr_t>(at) & 4095);
    if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) exit(2);
    memcpy(at, kDeviceZero, sizeof(kDeviceZero));
  }
  if (strncmp(table, "0x", 2) == 0) return static_cast<const NetV12*>(at_offset(map, table));
  auto* found = static_cast<const NetV12*>(dlsym(handle, table));
  if (found == nullptr) exit(2);
  return found;
}

}  // namespace net_bench
