// NCCL's profiler events of its collectives, summed up for the telemetry.
//
// A collective's event ends when it is enqueued; it has run when the last of its children (kernel channels,
// proxy operations) has ended. NCCL starts those on its proxy's thread, mostly after the collective's own end
// (seen with 2.28.9): so an operation stays open until as many kernel channels have ended as its descriptor
// says. It lasts from the first kernel channel's start to the last one's end, by the GPU's own clock where the
// events have its time: NCCL's proxy may see start and end at once, long after both. Those events may be of an
// earlier operation (of a captured graph, and after sends and receives over NCCL's own sockets, seen with 2.28.9):
// where the GPU says that a kernel ran for longer than its operation has existed, it lasts, as without kernel
// channels, from the first other child's start to the last child's end. Without such children that is not known, and no
// time is counted. (Outside graphs NCCL starts an operation's event after the kernel's launch, so one of its own that
// began before the event may be left out too.) Objects come from a fixed pool, the one that is free for longest first,
// since a late child may name its parent still; when it is empty events are not followed, and counted.
//
// A send or receive may have fewer kernel channels than its descriptor says (NVIDIA/nccl#2056: those that move nothing
// are never started). A communicator's kernels run one after the other, and operations of one kernel begin together. So
// operations have generations: one that begins after a kernel channel of the present generation has ended begins a new
// one, and a kernel channel that ends shows that kernels of earlier generations are over, whatever NCCL has reported
// of them. Some generations are left between, as NCCL's threads that begin and report are different ones. What a send
// or receive had reported by then is its time.
//
// These calls come between messages, with cold caches, and NCCL waits for them: the clock is read only where a time is
// kept, and a communicator remembers its few records in place of searching the table of all.
#ifndef FABRICPULSE_PROCESS_COLLECTIVES_H_
#define FABRICPULSE_PROCESS_COLLECTIVES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "process/plugin_engine.h"

namespace fabricpulse {

// Type of the events that our net plugin gives to the profiler by NCCL's callback; the data is a Connection.
// NCCL's own types are small numbers in the upper half.
constexpr int64_t kNetEventId = INT64_C(0x46500001);

class Profiler {
 public:
  enum class Kind : uint8_t { kOperation, kKernel, kChild, kStep };

  struct Event {
    Kind kind = Kind::kOperation;
    Profiler* owner = nullptr;
    Event* parent = nullptr;
    Event* next_free = nullptr;
    fp_plugin_collective* record = nullptr;  // kOperation
    uint64_t bytes = 0;
    uint64_t number = 0;                              // NCCL's, of a collective
    uint64_t started_ns = 0;                          // kOperation
    uint64_t first_ns = 0;                            // kOperation: first child but kernels
    uint64_t kernel_start_ns = 0, kernel_end_ns = 0;  // kOperation: first, last
    uint64_t gpu_start_ns = 0, gpu_end_ns = 0;        // kKernel; kOperation: first, last
    bool gpu_known = true;                            // kOperation: of all of its kernel channels
    uint64_t serial = 0;                              // kOperation: as they come
    uint64_t generation = 0;                          // kOperation
    uint32_t kernels_left = 0;                        // kOperation: not ended yet
    uint32_t kernels_running = 0;                     // kOperation: begun, not ended
    bool p2p = false;                                 // kOperation: a send or receive
    bool measured = true;                             // kOperation: all children are known
    Event *earlier = nullptr, *later = nullptr;       // kOperation: of those awaited
    uint64_t waiting_since_ns = 0;                    // kStep: in the network's hands
    uint32_t rank = UINT32_MAX, peer = UINT32_MAX, channel = UINT32_MAX;  // proxy operation
    uint32_t open = 0;  // itself and its children that have not ended
  };

  // mask: NCCL's live activation mask of this communicator; follows the control socket's `detail`.
  Profiler(std::shared_ptr<PluginEngine> engine, uint64_t communicator, uint32_t ranks, uint32_t rank,
           int* mask);
  ~Profiler();

  // channels: how many kernel channels will be reported; 0: not known. nullptr: not followed.
  Event* operation(const char* function, const char* algorithm, const char* protocol, uint64_t bytes,
                   uint64_t number, uint32_t channels);
  // A send or receive: some of its kernel channels may never be reported.
  Event* transfer(const char* function, uint64_t bytes, uint32_t channels);
  // Parts of an event. nullptr: not followed.
  // gpu_ns: the GPU's time.
  Event* kernel(Event* parent, uint64_t gpu_ns);
  // Whom a proxy operation connects: ranks of the communicator.
  Event* proxy(Event* parent, int rank, int peer, uint32_t channel);
  Event* step(Event* parent);
  void stop(Event* event);
  void step_waits(Event* event, bool waits);
  // At the end of a kernel channel, the GPU's time.
  void kernel_stopped(Event* kernel, uint64_t gpu_ns);
  // A step of a proxy operation goes over this connection, whose lock is held.
  void name_flow(const Event* step, Connection* connection);
  // Whether an event of this process, by the number it had when the communicator was made: getpid() asks the kernel.
  bool here(int pid) const { return pid == pid_; }
  bool inherited() const { return engine_->inherited(); }
  bool owns(const Event* event) const { return event >= pool_.get() && event < pool_.get() + kPool; }
  void set_level(uint32_t level);

 private:
  static constexpr uint32_t kPool = 8192;
  // Operations whose kernel channels are awaited: no more than these, and none that is so many older than one
  // that has run. NCCL has then left out some, as it may where its proxy ends.
  static constexpr uint32_t kMostAwaited = 3072, kGroup = 2048;
  static constexpr uint64_t kGenerations = 3;  // so many older than what runs: over
  Event* take(Kind kind);
  Event* child(Event* parent, Kind kind);
  Event* begin(const char* function, const char* algorithm, const char* protocol, uint64_t bytes,
               uint32_t channels);
  void await_kernels(Event* operation);
  void kernel_ended(Event* operation);
  void await_no_more(Event* operation);
  void note_run(const Event& operation);
  fp_plugin_collective* record_of(const char* function, const char* algorithm, const char* protocol);
  static void end_wait(Event* step, uint64_t now);
  // now : 0, if it is not known yet.
  void release(Event* event, uint64_t now = 0);
  void finish(const Event& operation, uint64_t now);

  std::shared_ptr<PluginEngine> engine_;
  const uint64_t communicator_;
  const uint32_t ranks_, rank_;
  const int pid_;
  int* mask_;
  QuickLock lock_;
  std::unique_ptr<Event[]> pool_;
  Event *free_ = nullptr, *last_free_ = nullptr;
  Event *first_awaited_ = nullptr, *last_awaited_ = nullptr;
  uint32_t awaited_ = 0;
  uint64_t serial_ = 0, generation_ = 0;
  bool generation_runs_ = false;                // a kernel channel of it has ended
  std::vector<fp_plugin_collective*> records_;  // of this communicator
};

// Bytes of an element of a NCCL type by its name ("ncclFloat32"); 1 for names unknown.
uint32_t type_bytes(const char* type);

}  // namespace fabricpulse

#endif  // FABRICPULSE_PROCESS_COLLECTIVES_H_
