#include "transport/verbs/verbs_reaper.h"

#include <chrono>
#include <utility>

#include "core/monotonic.h"
#include "core/owned_fds.h"
#include "core/threads.h"
#include "transport/tcp/lane_sockets.h"

namespace fabricpulse {
namespace {

constexpr uint64_t kLingerNs = 200'000'000;

}  // namespace

void VerbsReaper::take(std::unique_ptr<VerbsPair> pair, int fd, bool linger) {
  // At once, which waits for nothing: the peer need not wait until this host's driver has destroyed another queue pair.
  if (!linger && fd >= 0) reset_owned(std::exchange(fd, -1));
  {
    std::lock_guard<std::mutex> held(lock_);
    endings_.push_back({std::move(pair), fd, linger, monotonic_ns()});
  }
  changed_.notify_one();
}

void VerbsReaper::start() {
  thread_ = quiet_thread("fabricpulse-qp", [this] { run(); });
}

void VerbsReaper::run() {
  std::unique_lock<std::mutex> held(lock_);
  while (!stopping_) {
    if (endings_.empty()) {
      changed_.wait(held);
      continue;
    }
    held.unlock();
    tick();
    held.lock();
    if (!stopping_ && !endings_.empty()) changed_.wait_for(held, std::chrono::nanoseconds(kLingerNs / 4));
  }
}

void VerbsReaper::tick() {
  std::vector<Ending> due;
  uint64_t now = monotonic_ns();
  {
    std::lock_guard<std::mutex> held(lock_);
    for (size_t i = 0; i < endings_.size();) {
      if (endings_[i].linger && now - endings_[i].since_ns < kLingerNs) {
        ++i;
        continue;
      }
      due.push_back(std::move(endings_[i]));
      endings_[i] = std::move(endings_.back());
      endings_.pop_back();
    }
  }
  // The sockets first: the peer need not wait for this host's driver.
  for (Ending& ending : due)
    if (ending.fd >= 0) close_owned(ending.fd);
}

void VerbsReaper::end_all() {
  {
    std::lock_guard<std::mutex> held(lock_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  std::lock_guard<std::mutex> held(lock_);
  for (Ending& ending : endings_)
    if (ending.fd >= 0) close_owned(ending.fd);
  endings_.clear();
}

}  // namespace fabricpulse
