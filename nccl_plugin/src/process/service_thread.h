// The plugin's own thread: one epoll loop for descriptors and timers. It never holds a lock while it waits.
#ifndef FABRICPULSE_PROCESS_SERVICE_THREAD_H_
#define FABRICPULSE_PROCESS_SERVICE_THREAD_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>

#include "core/transport.h"

namespace fabricpulse {

// What the thread does. An exception ends one round, not the thread.
class ServiceWork {
 public:
  virtual uint64_t now() const = 0;
  virtual void transport_ready(uint64_t id, uint64_t now) = 0;
  virtual void links_changed(uint64_t now) = 0;
  // Timers. Returns in how many milliseconds it should be called again at the latest.
  virtual int tick(uint64_t now, uint64_t since_last) = 0;
  virtual void failed(const std::exception& error) = 0;

 protected:
  ~ServiceWork() = default;
};

class ServiceThread final : public Poller {
 public:
  explicit ServiceThread(ServiceWork* work) : work_(work) {}
  ~ServiceThread();
  ServiceThread(const ServiceThread&) = delete;
  ServiceThread& operator=(const ServiceThread&) = delete;

  bool open(std::string* error);
  void start();
  void stop();
  // Asks for a tick soon. Any thread; no system call if one is asked for already.
  void wake();
  // Descriptor of link events.
  void watch_links(int fd) { add(fd, PollSource::kLinks, 0, 1 /* EPOLLIN */); }

  // ---- Poller ----
  void watch(int fd, uint64_t id, uint32_t events) override { add(fd, PollSource::kTransport, id, events); }
  void unwatch(int fd) override;

 private:
  enum class PollSource : uint8_t { kWake = 1, kLinks, kTransport };
  void add(int fd, PollSource source, uint64_t id, uint32_t events);
  void run();

  ServiceWork* const work_;
  int epoll_ = -1, wake_ = -1;
  std::atomic<bool> stop_{false}, woken_{false};
  std::thread thread_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_PROCESS_SERVICE_THREAD_H_
