// What a program posts and polls: passed on to the provider, and reported to the meter of its queue pair.
#include <cstring>
#include <mutex>

#include "fabricpulse/clock_page.h"
#include "interposer.h"
#include "job/records.h"

namespace fabricpulse::interposer {
namespace {

uint64_t raw_now() { return static_cast<uint64_t>(fp_raw_clock_now()); }

uint64_t bytes_of(const ib::SendRequest& request) {
  uint64_t bytes = 0;
  for (int i = 0; i < request.segment_count; ++i) bytes += request.segments[i].length;
  return bytes;
}

}  // namespace

int Interposer::post_send(ib::QueuePair* pair, ib::SendRequest* first, ib::SendRequest** bad) {
  ContextEntry* context = find(pair->context);
  QueuePairEntry* entry = find(*context, pair->number);
  if (!metered(entry)) {
    if (entry == nullptr) __atomic_fetch_add(&file_.header()->unseen_posts, 1, __ATOMIC_RELAXED);
    return context->post_send(pair, first, bad);
  }
  std::lock_guard<std::mutex> posting(entry->posting);
  const uint64_t now = raw_now();
  auto post_of = [](const ib::SendRequest& request) -> Post {
    return {request.id, bytes_of(request), request.opcode, (request.flags & ib::kSignaled) != 0};
  };
  uint32_t tracked = 0;
  {
    // Before the provider has it: another thread may poll its completion before post_send returns.
    std::lock_guard<std::mutex> own(entry->lock);
    RecordChange<fp_verbs_queue_pair> change(entry->record);
    for (const ib::SendRequest* request = first; request != nullptr; request = request->next)
      if (entry->meter.begin(post_of(*request), now)) ++tracked;
  }
  const int result = context->post_send(pair, first, bad);
  const ib::SendRequest* end = result == 0 ? nullptr : *bad;
  std::lock_guard<std::mutex> own(entry->lock);
  RecordChange<fp_verbs_queue_pair> change(entry->record);
  uint32_t taken = 0;
  for (const ib::SendRequest* request = first; request != nullptr && request != end; request = request->next)
    sample(*entry, entry->meter.confirm(post_of(*request), now, taken++ < tracked), FP_VERBS_SENT, now);
  if (result != 0) {
    entry->meter.refused();
    if (tracked > taken) entry->meter.withdraw(tracked - taken);
  }
  return result;
}

// `posting` is held since start().
int Interposer::complete(QueuePairEntry& entry, ib::QueuePairEx* pair) {
  ExtendedPosting& extended = *entry.extended;
  const uint64_t now = raw_now();
  uint32_t tracked = 0;
  {
    std::lock_guard<std::mutex> own(entry.lock);
    RecordChange<fp_verbs_queue_pair> change(entry.record);
    for (uint32_t i = 0; i < extended.count; ++i)
      if (entry.meter.begin(extended.begun[i], now)) ++tracked;
  }
  const int result = extended.before.complete(pair);
  std::lock_guard<std::mutex> own(entry.lock);
  RecordChange<fp_verbs_queue_pair> change(entry.record);
  if (result != 0) {
    entry.meter.refused();
    entry.meter.withdraw(tracked);
  } else {
    for (uint32_t i = 0; i < extended.count; ++i)
      sample(entry, entry.meter.confirm(extended.begun[i], now, i < tracked), FP_VERBS_SENT, now);
    if (extended.lost > 0) __atomic_fetch_add(&file_.header()->unseen_posts, extended.lost, __ATOMIC_RELAXED);
  }
  return result;
}

int Interposer::post_recv(ib::QueuePair* pair, ib::RecvRequest* first, ib::RecvRequest** bad) {
  ContextEntry* context = find(pair->context);
  QueuePairEntry* entry = find(*context, pair->number);
  if (!metered(entry)) {
    if (entry == nullptr) __atomic_fetch_add(&file_.header()->unseen_posts, 1, __ATOMIC_RELAXED);
    return context->post_recv(pair, first, bad);
  }
  uint64_t count = 0;
  for (const ib::RecvRequest* request = first; request != nullptr; request = request->next) ++count;
  {
    std::lock_guard<std::mutex> own(entry->lock);
    RecordChange<fp_verbs_queue_pair> change(entry->record);
    entry->meter.receives_posted(count);
  }
  const int result = context->post_recv(pair, first, bad);
  if (result == 0) return result;
  for (const ib::RecvRequest* request = first; request != nullptr && request != *bad; request = request->next)
    --count;
  std::lock_guard<std::mutex> own(entry->lock);
  RecordChange<fp_verbs_queue_pair> change(entry->record);
  entry->meter.refused();
  entry->meter.receives_withdrawn(count);
  return result;
}

int Interposer::poll_cq(ib::CompletionQueue* queue, int most, ib::WorkCompletion* out) {
  ContextEntry* context = find(queue->context);
  const int count = context->poll_cq(queue, most, out);
  if (count <= 0) return count;
  const uint64_t now = raw_now();
  for (int i = 0; i < count; ++i)
    account(*context, queue, out[i].queue_pair, {out[i].id, out[i].status, out[i].opcode, out[i].bytes}, now);
  return count;
}

void Interposer::polled(ib::CompletionQueueEx* queue) {
  ContextEntry* context = find(queue->context);
  if (context == nullptr) return;
  Completion completion{queue->id, queue->status, 0, 0};
  if (queue->read_queue_pair == nullptr || queue->read_opcode == nullptr) {
    __atomic_fetch_add(&file_.header()->unseen_completions, 1, __ATOMIC_RELAXED);
    return;
  }
  if (completion.status == ib::kSuccess) {
    completion.opcode = queue->read_opcode(queue);
    if (completion.opcode & ib::kReceived && queue->read_bytes != nullptr)
      completion.bytes = queue->read_bytes(queue);
  }
  account(*context, reinterpret_cast<ib::CompletionQueue*>(queue), queue->read_queue_pair(queue), completion,
          raw_now());
}

void Interposer::account(ContextEntry& context, ib::CompletionQueue* queue, uint32_t number,
                         const Completion& completion, uint64_t now) {
  QueuePairEntry* entry = find(context, number);
  if (!metered(entry)) {
    if (entry == nullptr) __atomic_fetch_add(&file_.header()->unseen_completions, 1, __ATOMIC_RELAXED);
    return;
  }
  std::lock_guard<std::mutex> own(entry->lock);
  if (entry->key != key_of(context, number)) return;  // was destroyed meanwhile
  const CompletionQueueKind kind = queue != entry->send_cq            ? CompletionQueueKind::kReceives
                                   : entry->send_cq == entry->recv_cq ? CompletionQueueKind::kBoth
                                                                      : CompletionQueueKind::kSends;
  RecordChange<fp_verbs_queue_pair> change(entry->record);
  sample(*entry, entry->meter.completed(completion, kind, now), FP_VERBS_RECEIVED, now);
}

// Only of reliable connections: elsewhere messages are lost, and the ends count differently.
void Interposer::sample(const QueuePairEntry& entry, const Message& message, fp_verbs_direction direction,
                        uint64_t now) {
  const fp_verbs_queue_pair& record = *entry.record;
  if (message.index == kNoMessage || sample_every_ == 0 || message.index % sample_every_ != 0 ||
      record.type != ib::kReliableConnected)
    return;
  fp_verbs_sample sample{};
  sample.raw_ns = static_cast<int64_t>(now);
  sample.message = message.index;
  sample.bytes = message.bytes;
  sample.direction = direction;
  sample.number = record.number;
  sample.peer_number = record.peer_number;
  sample.psn = direction == FP_VERBS_SENT ? record.send_psn : record.recv_psn;
  memcpy(sample.local_gid, record.local_gid, sizeof(sample.local_gid));
  memcpy(sample.peer_gid, record.peer_gid, sizeof(sample.peer_gid));
  memcpy(sample.netdev, record.netdev, sizeof(sample.netdev));
  sample.incarnation = record.incarnation;
  sample.device = record.device;
  file_.sample(sample);
}

}  // namespace fabricpulse::interposer
