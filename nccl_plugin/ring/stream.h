// Numbered messages from each rank to the next, of sizes and content drawn from the seed.
//
// A message of at least kHead bytes carries its number, its size and the checksum of the random bytes that
// follow; of a smaller one every byte is known. The receiver distinguishes a message that came twice, or never, from
// one with wrong bytes. A receive buffer is overwritten when its message has been verified and rests for `depth`
// messages: nothing may write into it once its receive is done, not even the same bytes again.
#ifndef FABRICPULSE_RING_STREAM_H_
#define FABRICPULSE_RING_STREAM_H_

#include <cstdint>
#include <vector>

#include "links.h"
#include "net_driver.h"
#include "options.h"
#include "rendezvous.h"
#include "workload.h"

namespace fabricpulse::ring {

class Stream final : public Workload {
 public:
  Stream(const Options& options, Net* net, Rendezvous* rendezvous, Counters* counters);
  void connect(std::atomic<bool>* stop) override;
  void run(std::atomic<bool>* stop) override;
  void close() override;

 private:
  static constexpr size_t kHead = 32;
  struct Head {
    uint64_t number, size, checksum;
    uint32_t last;
    uint32_t acknowledged;  // see acknowledged_
  };
  static_assert(sizeof(Head) == kHead);
  struct Channel {
    void *send_memory = nullptr, *recv_memory = nullptr;
    std::vector<uint8_t> send_data, recv_data;  // slots of the greatest size: depth, 2 * depth
    std::vector<size_t> resting;                // bytes of each receive slot that are overwritten
    std::vector<void*> send_requests, recv_requests;
    uint64_t sent = 0, send_done = 0, posted = 0, received = 0;
    bool last_sent = false, last_received = false;
  };

  // What the checksum of a message starts with, so that it covers the head too.
  static uint64_t start_of(const Head& head) { return head.number ^ (uint64_t{head.acknowledged} << 40); }
  uint64_t size_of(uint32_t from, uint32_t channel, uint64_t number) const;
  void fill(uint32_t channel, uint64_t number, bool last, uint8_t* to, uint64_t* size) const;
  // Counts what is not message `number` as it was sent.
  void verify(uint32_t channel, uint64_t number, const uint8_t* data, uint64_t size, bool* last);
  // The receive slot of a message.
  uint8_t* landing(Channel* channel, uint64_t number) const {
    return channel->recv_data.data() + slot_ * (number % (2 * uint64_t{options_.depth}));
  }
  // Counts a slot that is not as it was left.
  void wake(Channel* channel, uint64_t number);
  bool progress(uint32_t channel, bool stop);

  const Options options_;
  Net* net_;
  Rendezvous* rendezvous_;
  Counters* counters_;
  uint32_t before_;  // the rank that sends to us
  size_t slot_;      // bytes
  std::vector<Link> links_;
  std::vector<Channel> channels_;
  std::vector<uint8_t> random_;
  // Ranks, this one and those before it, of which each has received a message: at `size` all have. Each message tells
  // the next rank.
  uint32_t acknowledged_ = 0;
};

}  // namespace fabricpulse::ring

#endif  // FABRICPULSE_RING_STREAM_H_
