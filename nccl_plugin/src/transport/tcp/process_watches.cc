#include "transport/tcp/process_watches.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "core/owned_fds.h"
#include "transport/tcp/lane_sockets.h"

namespace fabricpulse {

// In order: this process has no plugin any more.
ProcessWatches::~ProcessWatches() {
  for (auto* watches : {&mine_, &theirs_})
    for (auto& entry : *watches) close_owned(entry.second.fd);
}

void ProcessWatches::add(int fd, const Process& process, bool mine) {
  auto* watches = mine ? &mine_ : &theirs_;
  forget(watches, process);
  const uint64_t id = next_id_++;
  (*watches)[process] = {fd, id};
  places_[id] = {process, mine};
  poller_->watch(fd, kind_ | id, EPOLLIN);
}

void ProcessWatches::forget(std::map<Process, Watch>* watches, const Process& process) {
  auto found = watches->find(process);
  if (found == watches->end()) return;
  poller_->unwatch(found->second.fd);
  reset_owned(found->second.fd);
  places_.erase(found->second.id);
  watches->erase(found);
}

void ProcessWatches::drop_mine(const Process& process) { forget(&mine_, process); }

ProcessWatches::End ProcessWatches::serve(uint64_t id, Process* process) {
  auto found = places_.find(id);
  if (found == places_.end()) return End::kNone;
  const Place place = found->second;
  auto* watches = place.mine ? &mine_ : &theirs_;
  char byte;
  const ssize_t got = recv(watches->at(place.process).fd, &byte, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return End::kNone;
  *process = place.process;
  forget(watches, place.process);
  return got == 0 ? End::kInOrder : End::kOtherwise;
}

}  // namespace fabricpulse
