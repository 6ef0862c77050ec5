#include "core/threads.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace fabricpulse {
namespace {

struct SchedAttributes {  // struct sched_attr of the kernel, first version
  uint32_t size = 48;
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0;  // SCHED_OTHER: the slice
  uint64_t deadline = 0;
  uint64_t period = 0;
};

constexpr uint64_t kSliceNs = 100'000;  // the least that the kernel takes

void ask_for_short_slices() {
  SchedAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != 0) return;  // somebody has chosen for us
  attributes.size = sizeof(attributes);
  attributes.runtime = kSliceNs;
  (void)!syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace

std::thread quiet_thread(const char* name, std::function<void()> body) {
  // The caller is a thread of NCCL's: it gets its signals back, also when no thread can be made.
  struct Blocked {
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  } blocked;
  std::thread thread([body = std::move(body)] {
    ask_for_short_slices();
    body();
  });
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace fabricpulse
