// Events for Python: a bounded queue and an eventfd that is readable while something is in it.
#ifndef FABRICPULSE_EXPORTERS_EVENT_QUEUE_H_
#define FABRICPULSE_EXPORTERS_EVENT_QUEUE_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace fabricpulse {

enum class EventKind : std::uint8_t {
  kNicDisconnected,
  kNicConnected,
  kEdgeDown,
  kEdgeUp,
  kStall,
  kClockStep
};

struct Event {
  EventKind kind;
  std::int64_t host_ns = 0;  // when it was found, host clock
  // disconnected: silence so far; connected: length of the outage; stall: its length; clock step: how far,
  // signed
  std::int64_t duration_ns = 0;
  std::uint8_t cause = 0;                  // NicCause
  std::uint8_t inbound = 0, outbound = 0;  // HealthState, of an edge
  std::string device, network, peer, peer_device;
};

// Not thread-safe: the engine's mutex guards it. Only `fd` and `clear_fd` may be used without.
class EventQueue {
 public:
  EventQueue();  // throws std::system_error
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // When the queue is full the oldest event is dropped and counted.
  void push(Event event);
  std::vector<Event> take();
  std::uint64_t dropped() const { return dropped_; }
  int fd() const { return fd_; }
  void clear_fd();

 private:
  int fd_ = -1;
  std::uint64_t dropped_ = 0;
  std::deque<Event> events_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_EVENT_QUEUE_H_
