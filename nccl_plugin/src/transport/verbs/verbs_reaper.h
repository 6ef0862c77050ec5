// The end of queue pairs, away from the threads that carry traffic.
#ifndef FABRICPULSE_TRANSPORT_VERBS_VERBS_REAPER_H_
#define FABRICPULSE_TRANSPORT_VERBS_VERBS_REAPER_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "transport/verbs/verbs_pair.h"

namespace fabricpulse {

// Destroys queue pairs where that may take its time: while a driver waits for one, lanes live on.
class VerbsReaper {
 public:
  // fd: the socket over which the ends have met; -1: none. linger: what is posted may still go out.
  void take(std::unique_ptr<VerbsPair> pair, int fd, bool linger);
  // A thread that calls tick(). Without it the owner does.
  void start();
  // Destroys what is due.
  void tick();
  // Ends the thread and destroys all.
  void end_all();
  ~VerbsReaper() { end_all(); }

 private:
  struct Ending {
    std::unique_ptr<VerbsPair> pair;
    int fd;
    bool linger;
    uint64_t since_ns;
  };
  void run();

  std::mutex lock_;  // of all below but the thread
  std::condition_variable changed_;
  std::vector<Ending> endings_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_VERBS_VERBS_REAPER_H_
