// The send queue of one queue pair: requests that are gathered and given to the device with one call, what
// of them is under way, and how long it takes.
#ifndef FABRICPULSE_TRANSPORT_VERBS_SEND_REQUESTS_H_
#define FABRICPULSE_TRANSPORT_VERBS_SEND_REQUESTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/monotonic.h"
#include "transport/verbs/verbs_pair.h"

namespace fabricpulse {

class SendRequests {
 public:
  explicit SendRequests(VerbsPair* pair)
      : pair_(pair->pair()),
        device_under_way_(pair->device_under_way()),
        depth_(pair->send_depth()),
        inline_bytes_(pair->inline_bytes()) {}
  ~SendRequests() { forget(); }
  SendRequests(const SendRequests&) = delete;
  SendRequests& operator=(const SendRequests&) = delete;

  // ---- the batch being made ----
  void begin() { count_ = 0; }
  bool empty() const { return count_ == 0; }
  // Whether so many more may be added to it.
  bool fit(uint32_t more) const { return count_ + more <= kBatch && room() >= more; }
  uint32_t room() const { return depth_ - (posted_ + count_ - completed_); }
  // There may have been more to add.
  bool batch_full() const { return count_ + 1 >= kBatch; }

  // address, key: in the peer's memory. Without set_bytes() it carries none.
  ib::SendRequest* add(uint32_t opcode, uint64_t address, uint32_t key) {
    ib::SendRequest& request = requests_[count_];
    request = {};
    request.opcode = opcode;
    request.remote.address = address;
    request.remote.key = key;
    request.segments = &segments_[count_];
    ++count_;
    return &request;
  }
  void set_bytes(ib::SendRequest* request, const void* data, uint32_t size, uint32_t key) const {
    *request->segments = {reinterpret_cast<uint64_t>(data), size, key};
    request->segment_count = 1;
    if (size <= inline_bytes_) request->flags |= ib::kInline;
  }

  // Gives the batch to the device with one call. The last request of each batch reports its completion, so
  // that what is under way is always known; within it enough do that the stall timer sees a slow path move.
  bool post() {
    uint64_t now = monotonic_ns();
    size_t unsignaled_bytes = 0;
    const uint64_t before = posted_bytes_, others = device_under_way_->load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < count_; ++i) {
      ib::SendRequest& request = requests_[i];
      request.next = i + 1 < count_ ? &requests_[i + 1] : nullptr;
      ++posted_;
      const uint32_t bytes = request.segment_count > 0 ? request.segments->length : 0;
      unsignaled_bytes += bytes;
      posted_bytes_ += bytes;
      if (i + 1 == count_ || i % kSignalEvery == kSignalEvery - 1 || unsignaled_bytes >= kSignalBytes) {
        unsignaled_bytes = 0;
        request.flags |= ib::kSignaled;
        request.id = kSendId | posted_;
        stamps_[posted_ % kStamps] = {now, posted_bytes_, others + posted_bytes_ - before};
      }
    }
    device_under_way_->fetch_add(posted_bytes_ - before, std::memory_order_relaxed);
    ib::SendRequest* bad = nullptr;
    return pair_->context->ops.post_send(pair_, requests_, &bad) == 0;
  }

  // Whether it is of a request posted here.
  static bool sent(const ib::WorkCompletion& completion) { return (completion.id & kSendId) != 0; }
  // The same, and takes it in.
  bool completed(const ib::WorkCompletion& completion) {
    if (!sent(completion)) return false;
    const auto upto = static_cast<uint32_t>(completion.id);
    completed_total_ += upto - completed_;
    completed_ = upto;
    const Stamp& stamp = stamps_[upto % kStamps];
    device_under_way_->fetch_sub(stamp.bytes - completed_bytes_, std::memory_order_relaxed);
    completed_bytes_ = stamp.bytes;
    ahead_ = rtt_ns_ == 0 ? stamp.ahead : ahead_ - ahead_ / 8 + stamp.ahead / 8;
    uint64_t now = monotonic_ns(), since = stamp.at_ns;
    uint64_t took = now > since ? now - since : 0;
    uint64_t off = took > rtt_ns_ ? took - rtt_ns_ : rtt_ns_ - took;
    rtt_deviation_ns_ = rtt_ns_ == 0 ? took / 2 : rtt_deviation_ns_ - rtt_deviation_ns_ / 4 + off / 4;
    rtt_ns_ = rtt_ns_ == 0 ? took : rtt_ns_ - rtt_ns_ / 8 + took / 8;
    return true;
  }

  uint32_t under_way() const { return posted_ - completed_; }
  uint64_t completed_total() const { return completed_total_; }
  // From the post to the completion, smoothed.
  uint64_t rtt_ns() const { return rtt_ns_; }
  uint64_t rtt_deviation_ns() const { return rtt_deviation_ns_; }
  // Bytes that all lanes of the device had given to it by the post, smoothed in the same way.
  uint64_t ahead() const { return ahead_; }

  // Nothing of it is under way any more: the queue pair ends.
  void forget() {
    device_under_way_->fetch_sub(posted_bytes_ - completed_bytes_, std::memory_order_relaxed);
    completed_bytes_ = posted_bytes_;
  }

 private:
  struct Stamp {
    uint64_t at_ns = 0;
    uint64_t bytes = 0;  // posted, up to this request
    uint64_t ahead = 0;  // of the device, this request's own among them
  };
  static constexpr uint32_t kBatch = 64;
  static constexpr uint32_t kSignalEvery = 16;
  static constexpr size_t kSignalBytes = 256 * 1024;
  static constexpr uint64_t kSendId = UINT64_C(1) << 63;
  static constexpr uint32_t kStamps = 1024;  // more than requests can be under way

  ib::QueuePair* const pair_;
  std::atomic<uint64_t>* const device_under_way_;
  const uint32_t depth_, inline_bytes_;
  ib::SendRequest requests_[kBatch];
  ib::Segment segments_[kBatch];
  uint32_t count_ = 0;  // of the batch
  uint32_t posted_ = 0, completed_ = 0;
  uint64_t posted_bytes_ = 0, completed_bytes_ = 0;
  uint64_t completed_total_ = 0, rtt_ns_ = 0, rtt_deviation_ns_ = 0, ahead_ = 0;
  Stamp stamps_[kStamps];
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_VERBS_SEND_REQUESTS_H_
