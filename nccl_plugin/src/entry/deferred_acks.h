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
  void flush() {
    if (count_ == 0) return;
    for (size_t i = 0; i < count_; ++i) {
      if (auto receiver = receivers_[i].lock(); receiver && !receiver->inherited() && receiver->try_lock()) {
        receiver->flush_ack(receiver->clock());
        receiver->unlock();
      }
      receivers_[i].reset();
    }
    count_ = 0;
  }

 private:
  static constexpr size_t kMost = 16;
  RecvConnection* raw_[kMost] = {};
  std::weak_ptr<RecvConnection> receivers_[kMost];
  size_t count_ = 0;
};

}  // namespace fabricpulse::net

#endif  // FABRICPULSE_ENTRY_DEFERRED_ACKS_H_
