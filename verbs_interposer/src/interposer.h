// Which contexts, queue pairs and completion queues there are, what their functions were before, and their meters.
//
// A program calls post_send, post_recv and poll_cq through pointers in its context, and the extended calls through
// pointers in the queue pair or completion queue. They are replaced when the object is made; the hooks find the
// object in a table without a lock, call what was there before, and then call the object's meter under its lock.
// Nothing that the provider returns is changed, and errno is left as it was.
#ifndef FABRICPULSE_INTERPOSER_INTERPOSER_H_
#define FABRICPULSE_INTERPOSER_INTERPOSER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "abi_ex.h"
#include "meter.h"
#include "table.h"
#include "verbs_file.h"

namespace fabricpulse::interposer {

// Of the real library; what it lacks is nullptr.
struct RealLibrary {
  ib::Context* (*open_device)(ib::Device*) = nullptr;
  ib::Context* (*import_device)(int command_fd) = nullptr;
  int (*close_device)(ib::Context*) = nullptr;
  const char* (*get_device_name)(ib::Device*) = nullptr;
  int (*query_gid)(ib::Context*, uint8_t port, int index, ib::Gid*) = nullptr;
  ib::QueuePair* (*create_qp)(ib::ProtectionDomain*, ib::QueuePairInit*) = nullptr;
  int (*modify_qp)(ib::QueuePair*, ib::QueuePairAttributes*, int mask) = nullptr;
  int (*destroy_qp)(ib::QueuePair*) = nullptr;
  int (*destroy_cq)(ib::CompletionQueue*) = nullptr;
  ib::QueuePairEx* (*qp_to_qp_ex)(ib::QueuePair*) = nullptr;
};

struct ContextEntry {
  std::atomic<ib::Context*> context{nullptr};  // nullptr: not in use
  uint64_t number = 0;  // distinguishes queue pairs of several contexts; never used again
  uint32_t device = UINT32_MAX;
  decltype(ib::ContextOps::poll_cq) poll_cq = nullptr;
  decltype(ib::ContextOps::post_send) post_send = nullptr;
  decltype(ib::ContextOps::post_recv) post_recv = nullptr;
  decltype(ib::ContextExtension::create_qp_ex) create_qp_ex = nullptr;
  decltype(ib::ContextExtension::create_cq_ex) create_cq_ex = nullptr;
};

// Work posted by ibv_wr_*: the provider's functions, and what has been begun and not completed. The provider lets one
// thread at a time do that.
struct ExtendedPosting {
  ib::QueuePairEx before;  // only its functions
  std::unique_ptr<Post[]> begun;
  uint32_t count = 0, room = 0, lost = 0;
  bool locked = false;  // `posting`, by start()
};

// Locks, in this order: `posting`, then what the provider locks while it takes work, then `lock`, over which nothing
// is called. A provider holds its own from ibv_wr_start() to ibv_wr_complete(), and so is `posting` held.
struct QueuePairEntry {
  std::mutex posting;
  std::mutex lock;          // of the meter and the record
  uint64_t key = 0;         // 0: not in use
  uint32_t generation = 0;  // of the process that made it
  ib::QueuePair* pair = nullptr;
  ib::CompletionQueue* send_cq = nullptr;
  ib::CompletionQueue* recv_cq = nullptr;
  fp_verbs_queue_pair* record = nullptr;
  Meter meter;
  std::unique_ptr<ExtendedPosting> extended;
};

struct QueueEntry {
  ib::CompletionQueueEx* queue = nullptr;  // nullptr: not in use
  decltype(ib::CompletionQueueEx::start_poll) start_poll = nullptr;
  decltype(ib::CompletionQueueEx::next_poll) next_poll = nullptr;
};

// By what the tables below find an object.
inline uint64_t key_of(const ContextEntry& context, uint32_t number) {
  return context.number << 24 | (number & 0xffffff);
}
inline uint64_t key_of(const void* object) { return reinterpret_cast<uint64_t>(object); }

class Interposer {
 public:
  // The one of this process. nullptr: no memory for it; then everything is passed on.
  static Interposer* get();
  // Whether a device has been opened.
  static bool started() { return started_.load(std::memory_order_relaxed); }

  // library : what to call. suffix : of the name of the file, which distinguishes two copies in one process. Before the
  // first adopt().
  void start(const RealLibrary& library, const char* suffix);
  const RealLibrary& library() const { return library_; }
  // At the end of the process.
  void finish();

  // A context that has been opened: from now on its calls are seen.
  void adopt(ib::Context* context);
  // An object that is about to go: the program's calls pass by until reattach(), if that fails, or drop().
  ContextEntry* detach(ib::Context* context);
  QueuePairEntry* detach(ib::QueuePair* pair);
  QueueEntry* detach(ib::CompletionQueue* queue);
  void reattach(ContextEntry* entry);
  void reattach(QueuePairEntry* entry);
  void reattach(QueueEntry* entry);
  void drop(ContextEntry* entry);
  void drop(QueuePairEntry* entry);
  void drop(QueueEntry* entry);
  void adopt(ib::QueuePair* pair, const ib::QueuePairInit* init);
  void modified(ib::QueuePair* pair, const ib::QueuePairAttributes& attributes, int mask);
  void adopt(ib::CompletionQueueEx* queue);
  void bypassed(fp_verbs_bypass how);

  // What hooks need. nullptr for what was not seen made.
  ContextEntry* find(ib::Context* context) {
    ContextEntry* entry = by_context_.find(key_of(context));
    return entry != nullptr && entry->context.load(std::memory_order_relaxed) == context ? entry : nullptr;
  }
  QueuePairEntry* find(const ContextEntry& context, uint32_t number) {
    return by_pair_.find(key_of(context, number));
  }
  QueueEntry* find(ib::CompletionQueueEx* queue);

  // The data path (data_path.cc).
  int post_send(ib::QueuePair* pair, ib::SendRequest* first, ib::SendRequest** bad);
  int post_recv(ib::QueuePair* pair, ib::RecvRequest* first, ib::RecvRequest** bad);
  int poll_cq(ib::CompletionQueue* queue, int most, ib::WorkCompletion* out);
  void polled(ib::CompletionQueueEx* queue);
  int complete(QueuePairEntry& entry, ib::QueuePairEx* pair);
  bool metered(const QueuePairEntry* entry) const {
    return entry != nullptr && entry->generation == generation_.load(std::memory_order_relaxed);
  }

 private:
  static constexpr size_t kContexts = 256, kQueues = 4096;
  Interposer() = default;
  static void before_fork();
  static void after_fork_here();
  static void after_fork_in_child();
  void account(ContextEntry& context, ib::CompletionQueue* queue, uint32_t number,
               const Completion& completion, uint64_t now);
  void sample(const QueuePairEntry& entry, const Message& message, fp_verbs_direction direction,
              uint64_t now);

  inline static std::atomic<bool> started_{false};
  RealLibrary library_;
  const char* suffix_ = "";
  VerbsFile file_;
  std::mutex lock_;  // what is made and goes; never held over a call of the provider
  bool published_ = false;
  bool complained_ = false;  // of the environment; a child of fork() inherits it
  uint64_t sample_every_ = 0;
  std::atomic<uint32_t> generation_{1};  // counts forks on the way here
  uint64_t next_context_ = 2;
  ContextEntry contexts_[kContexts];
  QueuePairEntry pairs_[VerbsFile::kQueuePairs];
  QueueEntry queues_[kQueues];
  Table<ContextEntry, 4 * kContexts> by_context_;
  Table<QueuePairEntry, 4 * VerbsFile::kQueuePairs> by_pair_;
  Table<QueueEntry, 4 * kQueues> by_queue_;
};

}  // namespace fabricpulse::interposer

#endif  // FABRICPULSE_INTERPOSER_INTERPOSER_H_
