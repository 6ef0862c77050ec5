// Descriptors that a child made by fork() must not keep. A PyTorch DataLoader forks without exec: with the
// sockets of its parent it would keep a dead rank's lanes and listeners open for as long as it lives, and
// no peer would see that the rank has ended.
#ifndef FABRICPULSE_CORE_OWNED_FDS_H_
#define FABRICPULSE_CORE_OWNED_FDS_H_

namespace fabricpulse {

// The descriptor is closed in children from now on. Returns it; -1 is ignored. Any thread.
int own_fd(int fd);
// Closes a descriptor that was owned.
void close_owned(int fd);

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_OWNED_FDS_H_
