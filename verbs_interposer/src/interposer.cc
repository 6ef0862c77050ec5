#include "interposer.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include "hooks.h"
#include "job/records.h"
#include "roce.h"

namespace fabricpulse::interposer {
namespace {

// The netdev of a GID, from sysfs as the program's own network namespace shows it; "" where that cannot be read.
void read_netdev(const char* device, uint32_t port, uint32_t index, char (&to)[16]) {
  char path[160];
  snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%u/gid_attrs/ndevs/%u", device, port, index);
  memset(to, 0, sizeof(to));
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const ssize_t got = read(fd, to, sizeof(to) - 1);
  close(fd);
  if (got < 0) return;
  to[got] = '\0';
  to[strcspn(to, "\n")] = '\0';
}

class KeepErrno {
 public:
  KeepErrno() = default;
  ~KeepErrno() { errno = saved_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  const int saved_ = errno;
};

}  // namespace

Interposer* Interposer::get() {
  static Interposer* const one = [] {
    const char* wanted = getenv("FABRICPULSE_VERBS");
    if (wanted != nullptr && strcmp(wanted, "0") == 0) return static_cast<Interposer*>(nullptr);
    try {
      auto* made = new Interposer();
      pthread_atfork(before_fork, after_fork_here, after_fork_in_child);
      return made;
    } catch (const std::bad_alloc&) {
      return static_cast<Interposer*>(nullptr);
    }
  }();
  return one;
}

void Interposer::start(const RealLibrary& library, const char* suffix) {
  library_ = library;
  suffix_ = suffix;
}

void Interposer::before_fork() { get()->lock_.lock(); }
void Interposer::after_fork_here() { get()->lock_.unlock(); }

// The file is the parent's, and threads that the child does not have may hold locks of queue pairs: what was made
// before is passed on unseen.
void Interposer::after_fork_in_child() {
  Interposer* one = get();
  one->generation_.fetch_add(1, std::memory_order_relaxed);
  one->file_.leave_to_parent();
  one->published_ = false;
  one->lock_.unlock();
}

void Interposer::finish() {
  std::lock_guard<std::mutex> guard(lock_);
  if (published_) file_.finish();
}

// Contexts.

void Interposer::adopt(ib::Context* context) {
  KeepErrno keep;
  std::lock_guard<std::mutex> guard(lock_);
  if (!published_) {
    std::string complaint;
    const Settings settings = Settings::from_environment(&complaint);
    // To people, as libibverbs does: there is no log. Once, not again in each child of fork().
    if (!complaint.empty() && !complained_) fprintf(stderr, "fabricpulse verbs: %s\n", complaint.c_str());
    complained_ = true;
    file_.publish(settings, suffix_);
    sample_every_ = settings.sample_every;
    published_ = true;
    started_.store(true, std::memory_order_relaxed);
  }
  // The same context again: an old one that was closed behind our back, or handed out twice.
  if (find(context) != nullptr) return;
  ContextEntry* entry = nullptr;
  for (ContextEntry& candidate : contexts_)
    if (candidate.number == 0 && entry == nullptr) entry = &candidate;
  if (entry == nullptr) {
    ++file_.header()->dropped_records;
    return;
  }
  entry->number = next_context_++;
  entry->device = file_.device(library_.get_device_name(context->device));
  entry->poll_cq = context->ops.poll_cq;
  entry->post_send = context->ops.post_send;
  entry->post_recv = context->ops.post_recv;
  if (ib::ContextExtension* extension = ib::extension_of(context)) {
    entry->create_qp_ex = extension->create_qp_ex;
    entry->create_cq_ex = extension->create_cq_ex;
  }
  entry->context.store(context, std::memory_order_release);
  by_context_.put(key_of(context), entry);
  Hooks::patch(context);
}

ContextEntry* Interposer::detach(ib::Context* context) {
  std::lock_guard<std::mutex> guard(lock_);
  ContextEntry* entry = find(context);
  if (entry == nullptr) return nullptr;
  context->ops.poll_cq = entry->poll_cq;
  context->ops.post_send = entry->post_send;
  context->ops.post_recv = entry->post_recv;
  if (ib::ContextExtension* extension = ib::extension_of(context)) {
    extension->create_qp_ex = entry->create_qp_ex;
    extension->create_cq_ex = entry->create_cq_ex;
  }
  by_context_.erase(key_of(context));
  return entry;
}

void Interposer::reattach(ContextEntry* entry) {
  KeepErrno keep;
  std::lock_guard<std::mutex> guard(lock_);
  ib::Context* context = entry->context.load(std::memory_order_relaxed);
  by_context_.put(key_of(context), entry);
  Hooks::patch(context);
}

void Interposer::drop(ContextEntry* entry) {
  std::lock_guard<std::mutex> guard(lock_);
  entry->context.store(nullptr, std::memory_order_relaxed);
  entry->number = 0;
}

// Queue pairs.

void Interposer::adopt(ib::QueuePair* pair, const ib::QueuePairInit* init) {
  KeepErrno keep;
  std::lock_guard<std::mutex> guard(lock_);
  ContextEntry* context = find(pair->context);
  if (context == nullptr || find(*context, pair->number) != nullptr) return;
  fp_verbs_queue_pair* record = file_.take_queue_pair();
  if (record == nullptr) return;
  QueuePairEntry* entry = nullptr;
  for (QueuePairEntry& candidate : pairs_) {
    if (candidate.record != nullptr) continue;
    entry = &candidate;
    break;
  }
  if (entry == nullptr) {  // those of the parent's, in a child
    file_.drop_queue_pair(record, false);
    return;
  }
  const uint32_t room = std::min(std::max(init->capacity.send_requests, 1u), kMostOutstanding);
  try {
    std::lock_guard<std::mutex> own(entry->lock);
    entry->meter.open(record, room, init->signal_all != 0, init->srq != nullptr);
    ib::QueuePairEx* extended = library_.qp_to_qp_ex != nullptr ? library_.qp_to_qp_ex(pair) : nullptr;
    if (extended != nullptr) {
      entry->extended = std::make_unique<ExtendedPosting>();
      entry->extended->begun = std::make_unique<Post[]>(room);
      entry->extended->room = room;
    }
    entry->key = key_of(*context, pair->number);
    entry->generation = generation_.load(std::memory_order_relaxed);
    entry->pair = pair;
    entry->send_cq = init->send_cq;
    entry->recv_cq = init->recv_cq;
    entry->record = record;
    {
      RecordChange<fp_verbs_queue_pair> change(record);
      record->device = context->device;
      record->number = pair->number;
      record->type = init->type;
      record->state = 1;
    }
    by_pair_.put(entry->key, entry);
    if (extended != nullptr) Hooks::patch(extended, &entry->extended->before);
  } catch (const std::bad_alloc&) {
    entry->meter.close();
    entry->extended.reset();
    file_.drop_queue_pair(record, false);
  }
}

QueuePairEntry* Interposer::detach(ib::QueuePair* pair) {
  std::lock_guard<std::mutex> guard(lock_);
  ContextEntry* context = find(pair->context);
  QueuePairEntry* entry = context == nullptr ? nullptr : find(*context, pair->number);
  if (entry == nullptr) return nullptr;
  by_pair_.erase(entry->key);
  return entry;
}

void Interposer::reattach(QueuePairEntry* entry) {
  KeepErrno keep;
  std::lock_guard<std::mutex> guard(lock_);
  by_pair_.put(entry->key, entry);
}

void Interposer::drop(QueuePairEntry* entry) {
  KeepErrno keep;
  std::lock_guard<std::mutex> guard(lock_);
  if (!metered(entry)) {  // a thread of the parent's may have held them
    new (&entry->lock) std::mutex;
    new (&entry->posting) std::mutex;
  }
  std::lock_guard<std::mutex> own(entry->lock);
  entry->meter.close();
  entry->extended.reset();
  entry->key = 0;
  entry->pair = nullptr;
  if (entry->record != nullptr) file_.drop_queue_pair(entry->record, metered(entry));
  entry->record = nullptr;
}

void Interposer::modified(ib::QueuePair* pair, const ib::QueuePairAttributes& attributes, int mask) {
  KeepErrno keep;
  ContextEntry* context = find(pair->context);
  QueuePairEntry* entry = context == nullptr ? nullptr : find(*context, pair->number);
  if (!metered(entry)) return;
  ib::Gid gid{};
  char netdev[16] = {};
  const ib::AddressHandle& address = attributes.address;
  const uint32_t port = mask & ib::kSetAddress && address.port != 0 ? address.port : attributes.port;
  if (mask & ib::kSetAddress && address.is_global) {
    if (library_.query_gid != nullptr)
      (void)library_.query_gid(pair->context, static_cast<uint8_t>(port), address.route.source_gid_index,
                               &gid);
    read_netdev(library_.get_device_name(pair->context->device), port, address.route.source_gid_index,
                netdev);
  }
  std::lock_guard<std::mutex> own(entry->lock);
  fp_verbs_queue_pair* record = entry->record;
  RecordChange<fp_verbs_queue_pair> change(record);
  if (mask & ib::kSetState) {
    if (attributes.state == ib::kReset) entry->meter.reset();
    record->qp_state = attributes.state;
  }
  if (mask & ib::kSetPort) record->port = attributes.port;
  if (mask & ib::kSetPeerNumber) record->peer_number = attributes.peer_number;
  if (mask & ib::kSetSendPsn) record->send_psn = attributes.send_psn & 0xffffff;
  if (mask & ib::kSetRecvPsn) record->recv_psn = attributes.recv_psn & 0xffffff;
  if (mask & ib::kSetAddress) {
    record->port = port;
    record->peer_lid = address.lid;
    memset(record->peer_gid, 0, sizeof(record->peer_gid));
    if (address.is_global) memcpy(record->peer_gid, address.route.destination.raw, sizeof(record->peer_gid));
    memcpy(record->local_gid, gid.raw, sizeof(record->local_gid));
    memcpy(record->netdev, netdev, sizeof(record->netdev));
    // The number of the peer comes with the address, or before.
    record->source_port =
        address.is_global ? roce_source_port(address.route.flow_label, pair->number, record->peer_number) : 0;
    record->traffic_class = address.is_global ? address.route.traffic_class : 0;
  }
}

// Extended completion queues.

void Interposer::adopt(ib::CompletionQueueEx* queue) {
  KeepErrno keep;
  std::lock_guard<std::mutex> guard(lock_);
  for (QueueEntry& entry : queues_) {
    if (entry.queue != nullptr) continue;
    entry.queue = queue;
    entry.start_poll = queue->start_poll;
    entry.next_poll = queue->next_poll;
    by_queue_.put(key_of(queue), &entry);
    Hooks::patch(queue);
    return;
  }
  ++file_.header()->dropped_records;
}

QueueEntry* Interposer::detach(ib::CompletionQueue* queue) {
  std::lock_guard<std::mutex> guard(lock_);
  QueueEntry* entry = by_queue_.find(key_of(queue));
  if (entry != nullptr) by_queue_.erase(key_of(queue));
  return entry;
}

void Interposer::reattach(QueueEntry* entry) {
  KeepErrno keep;
  std::lock_guard<std::mutex> guard(lock_);
  by_queue_.put(key_of(entry->queue), entry);
}

void Interposer::drop(QueueEntry* entry) {
  std::lock_guard<std::mutex> guard(lock_);
  *entry = {};
}

QueueEntry* Interposer::find(ib::CompletionQueueEx* queue) { return by_queue_.find(key_of(queue)); }

void Interposer::bypassed(fp_verbs_bypass how) {
  __atomic_fetch_or(&file_.header()->bypass, static_cast<uint64_t>(how), __ATOMIC_RELAXED);
}

}  // namespace fabricpulse::interposer
