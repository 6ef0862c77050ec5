// A verified all-to-all over a net plugin: each rank sends each other one a block in each round.
//
// What goes to the hot rank may be several times as much, as the tokens of an expert that many choose. A connection is up
// to `depth` rounds ahead of the slowest one of its rank, so that small blocks fill a NIC.
//
// Content. Word i from rank s to rank t in round k is R[i] * a(s, t, k) + b(s, t, k) modulo 2^32, with R random, so that
// a chunk that is lost, doubled, misplaced or left from an earlier round shows.
#ifndef FABRICPULSE_RING_ALL_TO_ALL_H_
#define FABRICPULSE_RING_ALL_TO_ALL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "net_driver.h"
#include "options.h"
#include "profile.h"
#include "rendezvous.h"
#include "workload.h"

namespace fabricpulse::ring {

class AllToAll final : public Workload {
 public:
  AllToAll(const Options& options, Net* net, Rendezvous* rendezvous, Counters* counters);

  void connect(std::atomic<bool>* stop) override;
  void run(std::atomic<bool>* stop) override;
  void close() override;

 private:
  struct Connection {
    uint32_t peer = 0, channel = 0;
    void *send = nullptr, *recv = nullptr, *send_memory = nullptr, *recv_memory = nullptr;
    std::vector<uint32_t> out, in;  // a slot for each round under way
    std::vector<void*> sending, receiving;
    uint64_t send_posted = 0, send_done = 0, recv_posted = 0, recv_done = 0;  // rounds
  };

  // Of a peer, in a round: factor and offset of its words.
  uint64_t key(uint32_t from, uint32_t to, uint64_t number) const;
  // Bytes that go to a peer.
  size_t size_for(uint32_t peer) const;
  // Whether a round may be under way: not too far ahead, and not after the last one.
  bool open(uint64_t number) const { return number < completed_ + depth_ && number <= final_; }
  // This rank has enough: it says so from the first round on that it has sent on no connection.
  void end_soon();
  bool progress(Connection* one);
  size_t fill(Connection* one, uint64_t number);
  void verify(const Connection& one, uint64_t number, size_t bytes);
  // Rounds that all connections have done.
  uint64_t done() const;

  const Options options_;
  Net* net_;
  Rendezvous* rendezvous_;
  Counters* counters_;
  uint64_t depth_;
  size_t block_, slot_;  // words
  std::vector<uint32_t> random_;
  std::vector<Connection> connections_;
  std::unique_ptr<Profile> profile_;  // null: the profiler is not called
  uint64_t completed_ = 0;            // rounds
  // All ranks end after the same round: a rank says from one round on, on all its connections, that it has enough, and
  // no other is so far that it would not know of `depth_` rounds before the last one.
  uint64_t stop_from_ = UINT64_MAX, final_ = UINT64_MAX;
};

}  // namespace fabricpulse::ring

#endif  // FABRICPULSE_RING_ALL_TO_ALL_H_
