#include "core/owned_fds.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace fabricpulse {

std::atomic<uint32_t> process_forks{0};

namespace {

constexpr int kMost = 1 << 16;  // descriptors with higher numbers stay open in children
std::atomic<uint64_t> owned[kMost / 64];

// In the child: nothing but what may be called in a signal handler.
void close_in_child() {
  process_forks.fetch_add(1, std::memory_order_relaxed);
  for (int word = 0; word < kMost / 64; ++word) {
    uint64_t bits = owned[word].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) ::close(word * 64 + __builtin_ctzll(bits));
  }
}

}  // namespace

int own_fd(int fd) {
  static const int registered = pthread_atfork(nullptr, nullptr, close_in_child);
  (void)registered;
  if (fd >= 0 && fd < kMost) owned[fd / 64].fetch_or(UINT64_C(1) << (fd % 64), std::memory_order_relaxed);
  return fd;
}

// In this order: what another thread opens under the same number right after is not forgotten, and no child
// closes what is not ours.
void close_owned(int fd) {
  if (fd >= 0 && fd < kMost) {
    const uint64_t bit = UINT64_C(1) << (fd % 64);
    if ((owned[fd / 64].fetch_and(~bit, std::memory_order_relaxed) & bit) == 0) return;
  }
  ::close(fd);
}

}  // namespace fabricpulse
