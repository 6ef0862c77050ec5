// A lock that is free nearly always, on paths that are counted in instructions: to take and to give back a free one is
// one atomic operation each, inlined. Who finds it taken sleeps in the kernel, as with std::mutex.
#ifndef FABRICPULSE_CORE_QUICK_LOCK_H_
#define FABRICPULSE_CORE_QUICK_LOCK_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace fabricpulse {

class QuickLock {
 public:
  QuickLock() = default;
  QuickLock(const QuickLock&) = delete;
  QuickLock& operator=(const QuickLock&) = delete;

  bool try_lock() {
    uint32_t expected = kFree;
    return state_.compare_exchange_strong(expected, kTaken, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  void lock() {
    if (try_lock()) return;
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree)
      syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, kAwaited, nullptr, nullptr, 0);
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited)
      syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

 private:
  // Awaited: taken, and perhaps somebody sleeps.
  static constexpr uint32_t kFree = 0, kTaken = 1, kAwaited = 2;
  std::atomic<uint32_t> state_{kFree};
  static_assert(sizeof(state_) == sizeof(uint32_t), "the kernel reads it");
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_QUICK_LOCK_H_
