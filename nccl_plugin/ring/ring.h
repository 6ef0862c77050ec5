// A verified ring all-reduce over a net plugin.
//
// Content. Element i of rank r in round k is R[i] * a(r, k) + b(r, k) modulo 2^32, with R random, a and b
// drawn anew each round. The sum over ranks is then R[i] * sum(a) + sum(b): every element of every round is
// checked for one multiplication, and a chunk that is lost, doubled, misplaced or left from an earlier round
// shows.
#ifndef FABRICPULSE_RING_RING_H_
#define FABRICPULSE_RING_RING_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "links.h"
#include "net_driver.h"
#include "options.h"
#include "profile.h"
#include "rendezvous.h"
#include "workload.h"

namespace fabricpulse::ring {

class Ring final : public Workload {
 public:
  Ring(const Options& options, Net* net, Rendezvous* rendezvous, Counters* counters);

  void connect(std::atomic<bool>* stop) override;
  void run(std::atomic<bool>* stop) override;
  void close() override;

 private:
  struct Channel {
    void *send_memory = nullptr, *recv_memory = nullptr, *temp_memory = nullptr;
    size_t first = 0, count = 0;  // elements of the buffer
    std::vector<uint32_t> temp;   // depth slices
    // Of the round.
    uint64_t total = 0, recv_posted = 0, recv_done = 0, send_posted = 0, send_done = 0;
    std::vector<void*> recv_requests, send_requests;
  };
  struct Slice {
    size_t first = 0, count = 0;  // elements
  };

  void round(uint64_t number, bool stop);
  bool progress(Channel* channel, const Link& link);
  Slice slice(const Channel& channel, uint64_t index, bool send) const;
  uint64_t steps() const { return 2 * (options_.size - 1); }
  uint32_t a(uint32_t rank, uint64_t round) const;
  uint32_t b(uint32_t rank, uint64_t round) const;

  const Options options_;
  Net* net_;
  Rendezvous* rendezvous_;
  Counters* counters_;
  std::vector<Link> links_;
  std::unique_ptr<Profile> profile_;  // null: the profiler is not called
  std::vector<Channel> channels_;
  std::vector<uint32_t> pattern_, buffer_;
  size_t slice_elements_ = 0;
  uint64_t slices_ = 0;  // of a step
};

}  // namespace fabricpulse::ring

#endif  // FABRICPULSE_RING_RING_H_
