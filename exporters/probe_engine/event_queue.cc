#include "event_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <system_error>
#include <utility>

namespace fabricpulse {
namespace {

constexpr std::size_t kEventsKept = 4'096;

}  // namespace

EventQueue::EventQueue() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "probe engine");
}

EventQueue::~EventQueue() {
  if (fd_ >= 0) close(fd_);
}

void EventQueue::push(Event event) {
  if (events_.size() >= kEventsKept) {
    events_.pop_front();
    ++dropped_;
  }
  events_.push_back(std::move(event));
  const std::uint64_t one = 1;
  if (write(fd_, &one, sizeof(one)) < 0) return;  // EAGAIN: the counter is full, Python knows already
}

std::vector<Event> EventQueue::take() {
  std::vector<Event> out(std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
  events_.clear();
  return out;
}

void EventQueue::clear_fd() {
  std::uint64_t count;
  if (read(fd_, &count, sizeof(count)) < 0) return;
}

}  // namespace fabricpulse
