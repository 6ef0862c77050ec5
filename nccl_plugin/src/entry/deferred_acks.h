#ifndef FABRICPULSE_ENTRY_DEFERRED_ACKS_H_
#define FABRICPULSE_ENTRY_DEFERRED_ACKS_H_

#include <cstddef>
#include <memory>

#include "core/recv_connection.h"

namespace fabricpulse::net {

// Receive connections with a deferred acknowledgement. It is sent when test() makes no progress, which is
// soon: NCCL polls. Sent at once it would lie between a receive and the send that answers it; left to the
// next call on that connection it may come late, since after the last receive NCCL has no reason to call.
class DeferredAcks {
 public:
  void add(RecvConnection* receiver) {
    for (size_t i = 0; i < count_; ++i)
      if (raw_[i] == receiver) return;
    if (count_ == kMost) {
      receiver->flush_ack(receiver->clock());
      return;
    }
    raw_[count_] = receiver;
    receivers_[count_++] = receiver->weak_from_this();
  }
  size_t count() const { return count_; }
  // Those whose connection is in other hands just now are left for the next time.
  void flush() {
    size_t left = 0;
    for (size_t i = 0; i < count_; ++i) {
      auto receiver = receivers_[i].lock();
      if (receiver && !receiver->inherited() && !receiver->try_lock()) {
        raw_[left] = raw_[i];
        receivers_[left++] = receiver;
        continue;
      }
      if (receiver && !receiver->inherited()) {
        receiver->flush_ack(receiver->clock());
        receiver->unlock();
      }
    }
    while (count_ > left) receivers_[--count_].reset();
  }

 private:
  static constexpr size_t kMost = 16;
  RecvConnection* raw_[kMost] = {};
  std::weak_ptr<RecvConnection> receivers_[kMost];
  size_t count_ = 0;
};

}  // namespace fabricpulse::net

#endif  // FABRICPULSE_ENTRY_DEFERRED_ACKS_H_
