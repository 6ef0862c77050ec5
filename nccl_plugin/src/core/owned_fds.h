// Descriptors that a child made by fork() must not keep. A PyTorch DataLoader forks without exec: with the
// sockets of its parent it would keep a dead rank's lanes and listeners open for as long as it lives, and
// no peer would see that the rank has ended. What such a child still has of its parent's is a copy without the threads
// that belong to it, beside files and telemetry that both share: it is not used, and not taken down either.
#ifndef FABRICPULSE_CORE_OWNED_FDS_H_
#define FABRICPULSE_CORE_OWNED_FDS_H_

#include <atomic>
#include <cstdint>

namespace fabricpulse {

// The descriptor is closed in children from now on. Returns it; -1 is ignored. Any thread.
int own_fd(int fd);
// Closes a descriptor that was owned. Where it was closed by a fork, nothing: another file may have its number.
void close_owned(int fd);
extern std::atomic<uint32_t> process_forks;
// Grows in each child: what was made at another count is the parent's. Any thread. Each call of NCCL asks.
inline uint32_t fork_count() { return process_forks.load(std::memory_order_relaxed); }

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_OWNED_FDS_H_
