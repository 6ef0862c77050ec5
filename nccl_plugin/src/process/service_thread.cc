#include "process/service_thread.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/owned_fds.h"
#include "core/threads.h"

namespace fabricpulse {
namespace {

constexpr int kSourceShift = 56;  // of the descriptor's source, within its epoll data

}  // namespace

ServiceThread::~ServiceThread() {
  stop();
  for (int fd : {epoll_, wake_})
    if (fd >= 0) close_owned(fd);
}

bool ServiceThread::open(std::string* error) {
  epoll_ = own_fd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = own_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (epoll_ < 0 || wake_ < 0) {
    *error = std::string("cannot make the service thread's descriptors: ") + strerror(errno);
    return false;
  }
  add(wake_, PollSource::kWake, 0, EPOLLIN);
  return true;
}

void ServiceThread::start() {
  thread_ = quiet_thread("fabricpulse", [this] { run(); });
}

void ServiceThread::stop() {
  stop_ = true;
  if (!thread_.joinable()) return;
  uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
  thread_.join();
}

void ServiceThread::wake() {
  if (woken_.exchange(true)) return;
  uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
}

void ServiceThread::add(int fd, PollSource source, uint64_t id, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = (static_cast<uint64_t>(source) << kSourceShift) | id;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
}

void ServiceThread::unwatch(int fd) { epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr); }

void ServiceThread::run() {
  uint64_t last = work_->now(), next_tick = 0;
  while (!stop_) {
    try {
      epoll_event events[64];
      uint64_t before = work_->now();
      int wait = before >= next_tick ? 0 : static_cast<int>((next_tick - before + 999'999) / 1'000'000);
      int count = epoll_wait(epoll_, events, 64, wait);
      uint64_t at = work_->now();
      bool tick_now = at >= next_tick;
      for (int i = 0; i < count; ++i) {
        uint64_t id = events[i].data.u64 & ((UINT64_C(1) << kSourceShift) - 1);
        switch (static_cast<PollSource>(events[i].data.u64 >> kSourceShift)) {
          case PollSource::kWake: {
            uint64_t drained;
            (void)!read(wake_, &drained, sizeof(drained));
            woken_ = false;
            tick_now = true;
            break;
          }
          case PollSource::kLinks:
            work_->links_changed(at);
            break;
          case PollSource::kTransport:
            work_->transport_ready(id, at);
            break;
        }
      }
      if (!tick_now) continue;
      at = work_->now();
      int period_ms = work_->tick(at, at - last);
      last = at;
      next_tick = work_->now() + static_cast<uint64_t>(period_ms) * 1'000'000;
    } catch (const std::exception& error) {
      work_->failed(error);  // out of memory: the next round may have some
    }
  }
}

}  // namespace fabricpulse
