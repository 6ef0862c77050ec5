// What one queue pair does, from the calls that the program makes. Pure: takes calls and the time, does no I/O,
// reads no clock, allocates nothing after open(). The caller holds the lock of the queue pair.
//
// Completions are matched with posts by the rules of a send queue: work completes in the order of posting; work
// that is not signaled is done when a later one completes, or has a completion of its own if it fails.
#ifndef FABRICPULSE_INTERPOSER_METER_H_
#define FABRICPULSE_INTERPOSER_METER_H_

#include <cstdint>
#include <memory>

#include "fabricpulse/verbs_telemetry.h"

namespace fabricpulse::interposer {

constexpr uint64_t kNoMessage = UINT64_MAX;
// A list of outstanding work is never longer, whatever a program asks for: 24 bytes each.
constexpr uint32_t kMostOutstanding = 1u << 16;

struct Post {
  uint64_t id;
  uint64_t bytes;
  uint32_t opcode;
  bool signaled;
};

struct Completion {
  uint64_t id;
  uint32_t status;
  uint32_t opcode;  // only without error
  uint32_t bytes;   // of a receive
};

enum class CompletionQueueKind { kSends, kReceives, kBoth };

// A message that ended, for the samples.
struct Message {
  uint64_t index = kNoMessage;
  uint64_t bytes = 0;
};

class Meter {
 public:
  // record : of the queue pair, zeroed but for its identity. capacity : most sends that are outstanding at a time.
  void open(fp_verbs_queue_pair* record, uint32_t capacity, bool signals_all, bool shared_receives);
  void close();

  // A work request that is about to be handed to the provider, who may complete it before it returns. False: the list
  // is full, and it has no time of completion.
  bool begin(const Post& post, uint64_t now);
  // The oldest of those that confirm() has not had yet: the provider took it. The message that it ended, if any.
  Message confirm(const Post& post, uint64_t now, bool tracked);
  // The newest `count` of begin(): the provider did not take them.
  void withdraw(uint32_t count);
  // A call that returned an error, whatever of it was taken before.
  void refused();
  // Receives are counted before the provider has them, and taken back if it did not take them.
  void receives_posted(uint64_t count);
  void receives_withdrawn(uint64_t count);
  // A completion that was polled. The message that it is the arrival of, if it is.
  Message completed(const Completion& completion, CompletionQueueKind kind, uint64_t now);
  // The program took the queue pair to RESET: nothing is outstanding, both ends count messages anew.
  void reset();

 private:
  struct Outstanding {
    uint64_t id;
    uint64_t posted_ns;
    bool signaled;
  };
  Outstanding& at(uint64_t number) { return sends_[number & mask_]; }
  bool find_send(uint64_t id, uint64_t* number);
  void send_completed(const Completion& completion, uint64_t now);
  void retire(uint64_t end);
  void progress(uint64_t now);

  fp_verbs_queue_pair* record_ = nullptr;
  std::unique_ptr<Outstanding[]> sends_;
  uint64_t mask_ = 0;
  uint64_t head_ = 0, tail_ = 0;  // outstanding: numbers from head_ on, before tail_
  uint64_t run_bytes_ = 0;        // written since the last message
  bool signals_all_ = false, shared_receives_ = false;
  bool flushing_ = false;  // after an error each send has a completion: the oldest one is meant
};

uint32_t delay_bucket_of(uint64_t delay_ns);
extern const uint64_t kVerbsDelayBounds[FP_VERBS_DELAY_BOUNDS];

// Adds all counters of one to the other.
void add_counters(fp_verbs_counters* to, const fp_verbs_counters& from);

}  // namespace fabricpulse::interposer

#endif  // FABRICPULSE_INTERPOSER_METER_H_
