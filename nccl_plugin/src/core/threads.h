// Threads of the plugin within a job that keeps all processors busy.
#ifndef FABRICPULSE_CORE_THREADS_H_
#define FABRICPULSE_CORE_THREADS_H_

#include <functional>
#include <thread>

namespace fabricpulse {

// Starts a thread that gets no signals (NCCL's signals are for NCCL's threads) and asks the scheduler for
// short slices (Linux 6.12 and newer): it works little and seldom, but then at once. It gets no more
// processor time by that, only sooner. Throws std::system_error if no thread can be made.
std::thread quiet_thread(const char* name, std::function<void()> body);

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_THREADS_H_
