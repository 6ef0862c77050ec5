#include "meter.h"

#include <algorithm>

#include "abi_ex.h"

namespace fabricpulse::interposer {
namespace {

// How far a completion with error is searched for; before the first one only.
constexpr uint64_t kSearched = 1024;

bool ends_message(uint32_t opcode) {
  return opcode == ib::kSend || opcode == ib::kSendWithImmediate || opcode == ib::kSendWithInvalidate ||
         opcode == ib::kWriteWithImmediate;
}

uint32_t capped(uint32_t value, uint32_t slots) { return std::min(value, slots - 1); }

}  // namespace

const uint64_t kVerbsDelayBounds[FP_VERBS_DELAY_BOUNDS] = {
    2'000,       5'000,       10'000,      20'000,        50'000,        100'000,      200'000,
    500'000,     1'000'000,   2'000'000,   5'000'000,     10'000'000,    20'000'000,   50'000'000,
    100'000'000, 200'000'000, 500'000'000, 1'000'000'000, 2'000'000'000, 5'000'000'000};

uint32_t delay_bucket_of(uint64_t delay_ns) {
  return static_cast<uint32_t>(
      std::lower_bound(kVerbsDelayBounds, kVerbsDelayBounds + FP_VERBS_DELAY_BOUNDS, delay_ns) -
      kVerbsDelayBounds);
}

void add_counters(fp_verbs_counters* to, const fp_verbs_counters& from) {
  for (int i = 0; i < FP_VERBS_OPCODES; ++i) {
    to->posts[i] += from.posts[i];
    to->bytes[i] += from.bytes[i];
  }
  to->refused_posts += from.refused_posts;
  to->receives_posted += from.receives_posted;
  to->completions += from.completions;
  to->receives += from.receives;
  to->received_bytes += from.received_bytes;
  to->messages_sent += from.messages_sent;
  to->messages_received += from.messages_received;
  for (int i = 0; i < FP_VERBS_STATUSES; ++i) to->errors[i] += from.errors[i];
  to->untracked_posts += from.untracked_posts;
  to->delay.count += from.delay.count;
  to->delay.sum_ns += from.delay.sum_ns;
  for (int i = 0; i < FP_VERBS_DELAY_BUCKETS; ++i) to->delay.buckets[i] += from.delay.buckets[i];
}

void Meter::open(fp_verbs_queue_pair* record, uint32_t capacity, bool signals_all, bool shared_receives) {
  uint64_t room = 1;
  while (room < std::min(std::max(capacity, 1u), kMostOutstanding)) room *= 2;
  sends_ = std::make_unique<Outstanding[]>(room);
  mask_ = room - 1;
  record_ = record;
  head_ = tail_ = run_bytes_ = 0;
  signals_all_ = signals_all;
  shared_receives_ = shared_receives;
  flushing_ = false;
}

void Meter::close() {
  sends_.reset();
  record_ = nullptr;
}

bool Meter::begin(const Post& post, uint64_t now) {
  if (tail_ - head_ > mask_) return false;
  const bool signaled = post.signaled || signals_all_;
  at(tail_++) = {post.id, now, signaled};
  ++record_->outstanding;
  if (signaled && ++record_->outstanding_signaled == 1) record_->oldest_post_raw_ns = now;
  return true;
}

Message Meter::confirm(const Post& post, uint64_t now, bool tracked) {
  fp_verbs_counters& counters = record_->counters;
  const uint32_t slot = capped(post.opcode, FP_VERBS_OPCODES);
  ++counters.posts[slot];
  counters.bytes[slot] += post.bytes;
  if (!tracked) ++counters.untracked_posts;
  record_->last_post_raw_ns = now;
  if (post.opcode == ib::kWrite) run_bytes_ += post.bytes;
  if (!ends_message(post.opcode)) return {};
  ++counters.messages_sent;
  Message message{record_->message_index++, run_bytes_ + post.bytes};
  run_bytes_ = 0;
  return message;
}

void Meter::withdraw(uint32_t count) {
  for (; count > 0 && tail_ != head_; --count) {
    --tail_;
    --record_->outstanding;
    if (at(tail_).signaled) --record_->outstanding_signaled;
  }
  if (record_->outstanding_signaled == 0) record_->oldest_post_raw_ns = 0;
}

void Meter::refused() { ++record_->counters.refused_posts; }

void Meter::receives_posted(uint64_t count) {
  record_->counters.receives_posted += count;
  if (!shared_receives_) record_->outstanding_receives += count;
}

void Meter::receives_withdrawn(uint64_t count) {
  record_->counters.receives_posted -= count;
  if (!shared_receives_) record_->outstanding_receives -= std::min(count, record_->outstanding_receives);
}

Message Meter::completed(const Completion& completion, CompletionQueueKind kind, uint64_t now) {
  fp_verbs_counters& counters = record_->counters;
  if (completion.status == ib::kSuccess) {
    if (!(completion.opcode & ib::kReceived)) {
      send_completed(completion, now);
      return {};
    }
    ++counters.receives;
    counters.received_bytes += completion.bytes;
    if (record_->outstanding_receives > 0) --record_->outstanding_receives;
    progress(now);
    ++counters.messages_received;
    return {record_->receive_index++, completion.bytes};
  }
  ++counters.errors[capped(completion.status, FP_VERBS_STATUSES)];
  // The opcode of a completion with error is undefined. Where one completion queue takes both kinds, it is a send's
  // if a send with this id is outstanding.
  uint64_t number = 0;
  if (kind != CompletionQueueKind::kReceives && find_send(completion.id, &number)) {
    flushing_ = true;
    ++counters.completions;
    retire(number + 1);
  } else if (kind == CompletionQueueKind::kSends) {
    ++counters.completions;
  } else if (record_->outstanding_receives > 0) {
    --record_->outstanding_receives;
  }
  return {};
}

void Meter::send_completed(const Completion& completion, uint64_t now) {
  ++record_->counters.completions;
  // The oldest signaled one; posts that found the list full leave completions without one.
  uint64_t number = head_;
  while (number != tail_ && !at(number).signaled) ++number;
  if (number != tail_ && at(number).id == completion.id) {
    const uint64_t took = now > at(number).posted_ns ? now - at(number).posted_ns : 0;
    fp_verbs_histogram& delay = record_->counters.delay;
    ++delay.count;
    delay.sum_ns += took;
    ++delay.buckets[delay_bucket_of(took)];
    progress(now);
    retire(number + 1);
  } else {
    progress(now);
  }
}

bool Meter::find_send(uint64_t id, uint64_t* number) {
  const uint64_t end = std::min(tail_, head_ + (flushing_ ? 1 : kSearched));
  for (uint64_t n = head_; n != end; ++n) {
    if (at(n).id != id) continue;
    *number = n;
    return true;
  }
  return false;
}

// All before `end` are done.
void Meter::retire(uint64_t end) {
  for (; head_ != end; ++head_) {
    --record_->outstanding;
    if (at(head_).signaled) --record_->outstanding_signaled;
  }
  record_->oldest_post_raw_ns = 0;
  if (record_->outstanding_signaled == 0) return;
  uint64_t next = head_;
  while (!at(next).signaled) ++next;
  record_->oldest_post_raw_ns = at(next).posted_ns;
}

void Meter::progress(uint64_t now) {
  if (record_->outstanding_signaled > 0) {
    const uint64_t since = std::max(record_->oldest_post_raw_ns, record_->last_progress_raw_ns);
    if (now > since) record_->stall_ns_max = std::max(record_->stall_ns_max, now - since);
  }
  record_->last_progress_raw_ns = now;
}

void Meter::reset() {
  head_ = tail_;
  run_bytes_ = 0;
  flushing_ = false;
  record_->outstanding = record_->outstanding_signaled = record_->outstanding_receives = 0;
  record_->oldest_post_raw_ns = 0;
  record_->message_index = record_->receive_index = 0;
  ++record_->incarnation;
}

}  // namespace fabricpulse::interposer
