#include "hooks.h"

#include "interposer.h"

namespace fabricpulse::interposer {
namespace {

int post_send(ib::QueuePair* pair, ib::SendRequest* first, ib::SendRequest** bad) {
  return Interposer::get()->post_send(pair, first, bad);
}
int post_recv(ib::QueuePair* pair, ib::RecvRequest* first, ib::RecvRequest** bad) {
  return Interposer::get()->post_recv(pair, first, bad);
}
int poll_cq(ib::CompletionQueue* queue, int most, ib::WorkCompletion* out) {
  return Interposer::get()->poll_cq(queue, most, out);
}

ib::QueuePair* create_qp_ex(ib::Context* context, ib::QueuePairInit* init) {
  Interposer* one = Interposer::get();
  ib::QueuePair* made = one->find(context)->create_qp_ex(context, init);
  if (made != nullptr) one->adopt(made, init);
  return made;
}
ib::CompletionQueueEx* create_cq_ex(ib::Context* context, void* attributes) {
  Interposer* one = Interposer::get();
  ib::CompletionQueueEx* made = one->find(context)->create_cq_ex(context, attributes);
  if (made != nullptr) one->adopt(made);
  return made;
}

int start_poll(ib::CompletionQueueEx* queue, void* attributes) {
  Interposer* one = Interposer::get();
  const int result = one->find(queue)->start_poll(queue, attributes);
  if (result == 0) one->polled(queue);
  return result;
}
int next_poll(ib::CompletionQueueEx* queue) {
  Interposer* one = Interposer::get();
  const int result = one->find(queue)->next_poll(queue);
  if (result == 0) one->polled(queue);
  return result;
}

QueuePairEntry& entry_of(ib::QueuePairEx* pair) {
  Interposer* one = Interposer::get();
  return *one->find(*one->find(pair->pair.context), pair->pair.number);
}
ExtendedPosting& posting_of(ib::QueuePairEx* pair) { return *entry_of(pair).extended; }

void begun(ExtendedPosting& posting, const ib::QueuePairEx* pair, uint32_t opcode) {
  if (posting.count == posting.room) {
    ++posting.lost;
  } else {
    posting.begun[posting.count++] = {pair->id, 0, opcode, (pair->flags & ib::kSignaled) != 0};
  }
}
void add_bytes(ExtendedPosting& posting, uint64_t bytes) {
  if (posting.count > 0 && posting.lost == 0) posting.begun[posting.count - 1].bytes += bytes;
}

// A call that begins a work request: `member` of the queue pair, with its opcode.
template <auto kMember, uint32_t kOpcode>
struct Begin;
template <typename... Arguments, void (*ib::QueuePairEx::*kMember)(ib::QueuePairEx*, Arguments...),
          uint32_t kOpcode>
struct Begin<kMember, kOpcode> {
  static void call(ib::QueuePairEx* pair, Arguments... arguments) {
    ExtendedPosting& posting = posting_of(pair);
    (posting.before.*kMember)(pair, arguments...);
    begun(posting, pair, kOpcode);
  }
};

void set_inline_data(ib::QueuePairEx* pair, void* data, size_t length) {
  ExtendedPosting& posting = posting_of(pair);
  posting.before.set_inline_data(pair, data, length);
  add_bytes(posting, length);
}
void set_inline_data_list(ib::QueuePairEx* pair, size_t count, const ib::DataBuffer* list) {
  ExtendedPosting& posting = posting_of(pair);
  posting.before.set_inline_data_list(pair, count, list);
  for (size_t i = 0; i < count; ++i) add_bytes(posting, list[i].length);
}
void set_sge(ib::QueuePairEx* pair, uint32_t key, uint64_t address, uint32_t length) {
  ExtendedPosting& posting = posting_of(pair);
  posting.before.set_sge(pair, key, address, length);
  add_bytes(posting, length);
}
void set_sge_list(ib::QueuePairEx* pair, size_t count, const ib::Segment* list) {
  ExtendedPosting& posting = posting_of(pair);
  posting.before.set_sge_list(pair, count, list);
  for (size_t i = 0; i < count; ++i) add_bytes(posting, list[i].length);
}
void start(ib::QueuePairEx* pair) {
  QueuePairEntry& entry = entry_of(pair);
  ExtendedPosting& posting = *entry.extended;
  const bool metered = Interposer::get()->metered(&entry);
  if (metered) entry.posting.lock();
  posting.before.start(pair);
  posting.locked = metered;
  posting.count = posting.lost = 0;
}
int complete(ib::QueuePairEx* pair) {
  QueuePairEntry& entry = entry_of(pair);
  if (!entry.extended->locked) return entry.extended->before.complete(pair);
  const int result = Interposer::get()->complete(entry, pair);
  entry.posting.unlock();
  return result;
}
void abort(ib::QueuePairEx* pair) {
  QueuePairEntry& entry = entry_of(pair);
  const bool locked = entry.extended->locked;
  entry.extended->before.abort(pair);
  if (locked) entry.posting.unlock();
}

// What the provider does not have stays missing.
template <typename Function>
void replace(Function*& there, Function*& before, Function* with) {
  before = there;
  if (there != nullptr) there = with;
}

}  // namespace

void Hooks::patch(ib::Context* context) {
  context->ops.poll_cq = poll_cq;
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  if (ib::ContextExtension* extension = ib::extension_of(context)) {
    if (extension->create_qp_ex != nullptr) extension->create_qp_ex = create_qp_ex;
    if (extension->create_cq_ex != nullptr) extension->create_cq_ex = create_cq_ex;
  }
}

void Hooks::patch(ib::CompletionQueueEx* queue) {
  if (queue->start_poll != nullptr) queue->start_poll = start_poll;
  if (queue->next_poll != nullptr) queue->next_poll = next_poll;
}

void Hooks::patch(ib::QueuePairEx* pair, ib::QueuePairEx* before) {
  using Pair = ib::QueuePairEx;
#define FP_BEGINS(member, opcode) replace(pair->member, before->member, Begin<&Pair::member, opcode>::call)
  FP_BEGINS(atomic_cmp_swp, ib::kCompareSwap);
  FP_BEGINS(atomic_fetch_add, ib::kFetchAdd);
  FP_BEGINS(bind_mw, ib::kBindWindow);
  FP_BEGINS(local_inv, ib::kLocalInvalidate);
  FP_BEGINS(rdma_read, ib::kRead);
  FP_BEGINS(rdma_write, ib::kWrite);
  FP_BEGINS(rdma_write_imm, ib::kWriteWithImmediate);
  FP_BEGINS(send, ib::kSend);
  FP_BEGINS(send_imm, ib::kSendWithImmediate);
  FP_BEGINS(send_inv, ib::kSendWithInvalidate);
  FP_BEGINS(send_tso, ib::kSegmentation);
#undef FP_BEGINS
  replace(pair->set_inline_data, before->set_inline_data, set_inline_data);
  replace(pair->set_inline_data_list, before->set_inline_data_list, set_inline_data_list);
  replace(pair->set_sge, before->set_sge, set_sge);
  replace(pair->set_sge_list, before->set_sge_list, set_sge_list);
  replace(pair->start, before->start, start);
  replace(pair->complete, before->complete, complete);
  replace(pair->abort, before->abort, abort);
}

}  // namespace fabricpulse::interposer
