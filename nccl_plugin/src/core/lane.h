// What the core asks of one lane. TCP's is in transport/tcp/tcp_lane.h. How lanes are made: core/transport.h.
//
// A transport is one incarnation (epoch) of one lane. It moves chunks and state frames in order, or it fails;
// it never decides anything. All calls come with the lock of its connection held, and none blocks.
#ifndef FABRICPULSE_CORE_LANE_H_
#define FABRICPULSE_CORE_LANE_H_

#include <cstddef>
#include <cstdint>

#include "core/wire.h"
#include "fabricpulse/plugin_telemetry.h"

namespace fabricpulse {

// Memory that NCCL has registered, as Transport::register_memory() gave it; lane types add what they need.
struct RegisteredMemory {
  void* data = nullptr;
  size_t size = 0;
};

// A receive that is posted and not complete: where a lane that writes into the peer's memory may write.
struct PostedReceive {
  uint32_t message = 0;   // low 32 bits of its number
  uint32_t capacity = 0;  // bytes
  void* data = nullptr;
  const RegisteredMemory* memory = nullptr;
};

// The same at the sender.
struct PeerReceive {
  uint32_t message = 0;          // low 32 bits of its number
  uint32_t capacity = 0;         // bytes
  uint64_t address = 0;          // in the receiver's process
  uint32_t keys[kMaxNics] = {};  // of the memory, by the receiver's NIC
};

// A chunk that a lane has written to its place in a receive that the peer had named: what its announcement has room
// for.
struct PlacedChunk {
  static constexpr uint32_t kOffsetUnit = 4096;  // of which there are fewer than kOffsets in an offset
  static constexpr uint32_t kOffsets = 1u << 16;
  uint32_t chunk = 0;    // its number, modulo kChunkWindow
  uint32_t message = 0;  // its message's, modulo kMaxRequests
  uint32_t offset = 0;   // place in the message, bytes
  uint32_t length = 0;   // bytes
  bool last = false;     // the message ends with it

  // Whether the announcement has room for such an offset; a chunk beyond 256 MiB goes with a header.
  static bool has_room(uint32_t offset) {
    return offset % kOffsetUnit == 0 && offset / kOffsetUnit < kOffsets;
  }
};

// Receives what a transport has read.
class LaneSink {
 public:
  // First byte of a chunk. Returns where its payload goes, or nullptr to throw it away. `fatal` set: fail the
  // lane.
  virtual uint8_t* chunk_begins(uint32_t lane, const FrameHeader& header, bool* fatal) = 0;
  // The whole payload lies where chunk_begins returned (not called for chunks thrown away).
  virtual void chunk_ends(uint32_t lane, const FrameHeader& header) = 0;
  // Another frame. False: fail the lane.
  virtual bool state_frame(uint32_t lane, const FrameHeader& header, const HeldState& body) = 0;

  // ---- for lanes that write into the peer's memory ----
  // Receiver: the oldest receives that are not complete, from number `*next` on and `most` at most; `*next` is then the
  // number behind them. Returns how many.
  virtual uint32_t posted_receives(PostedReceive*, uint32_t /*most*/, uint64_t* /*next*/) const { return 0; }
  // Receiver: this chunk lies in its receive. False: fail the lane.
  virtual bool chunk_placed(uint32_t /*lane*/, const PlacedChunk&) { return false; }
  // Sender: the peer has named this one; and what is known of one, nullptr if nothing.
  virtual void note_receive(const PeerReceive&) {}
  virtual const PeerReceive* peer_receive(uint32_t) const { return nullptr; }

 protected:
  ~LaneSink() = default;
};

enum class LaneStatus : uint8_t {
  kIdle,      // nothing to do
  kProgress,  // bytes have moved
  kFailed,    // error; no further call but close(false)
  kEnded,     // the peer's end was closed in order; no further call but close(false)
  kProtocol,  // the peer sent what is no frame
  kCorrupt,   // a checksum was wrong: what arrived is not what was sent
};

// In the log.
inline const char* lanes_over(fp_lane_transport kind) {
  return kind == FP_LANE_VERBS ? "queue pairs" : "TCP";
}

// The transport's own sample of its path.
struct PathSample {
  bool valid = false;
  uint32_t unacknowledged = 0;  // units under way that the peer's transport has not acknowledged
  // So little is under way that the peer's transport may put its acknowledgement off.
  bool few = false;
  uint64_t acknowledged = 0;  // bytes acknowledged, cumulative: any change is a sign of progress
  uint64_t unsent = 0;        // bytes that the transport has never sent
  bool window_open = true;    // the peer's transport would take more
  uint32_t probes = 0;        // unanswered probes of a closed window
  uint64_t sent = 0;          // segments sent, first and again, cumulative
  uint64_t answers = 0;       // segments of the peer's that only acknowledge, cumulative, duplicate ones too
  uint64_t rtt_ns = 0, rtt_deviation_ns = 0;
  // Bytes of this process in the NIC's queue, ahead of those whose round trips these are and with them; 0 where a round
  // trip does not wait for them.
  uint64_t ahead = 0;
  uint64_t retransmits = 0;
  uint64_t ecn_marked = 0;
};

class LaneTransport {
 public:
  virtual ~LaneTransport() = default;
  virtual fp_lane_transport kind() const = 0;
  // Its connection, before any other call.
  virtual void attach(LaneSink*) {}

  // Queues a chunk. `payload`, within `memory`, stays valid until the chunk is acknowledged or the transport
  // is closed. False when the queue is full.
  virtual bool post_chunk(const FrameHeader& header, const void* payload, const RegisteredMemory* memory) = 0;
  // Whether the chunk that is posted next shall have a stamp: one costs a clock reading, and more where it is a frame's.
  virtual bool stamp_due(uint64_t /*now*/) { return true; }
  // Queues a state frame behind what is queued. False when there is no room (queue it again later).
  virtual bool post_state(const FrameHeader& header, const HeldState* body) = 0;
  // How many chunks of those that were posted the transport has taken whole: this process does not read their payload
  // again. A device that was given one may, until its peer has acknowledged it, but only from registered memory, and
  // what the peer holds it drops.
  virtual uint32_t chunks_taken() const = 0;
  // True if something is queued that the transport has not taken yet.
  virtual bool backlog() const = 0;
  // Whether state frames queue behind the data of the other direction; and their delay, ns. The window then covers
  // that too.
  virtual bool state_frames_wait() const { return false; }
  virtual void note_way_back(uint64_t) {}
  // Pushes the queue into the transport as far as it goes.
  virtual LaneStatus flush() = 0;
  // Whether poll() might find something. True where to know costs as much as poll() does.
  virtual bool may_have_arrived() { return true; }
  // Reads what has arrived, bounded, so that one lane cannot starve the others.
  virtual LaneStatus poll(uint32_t lane, LaneSink* sink) = 0;
  virtual PathSample sample() const = 0;
  // Of the sample, without a system call: units under way, and what is acknowledged. False: the sample alone knows.
  virtual bool peek(uint32_t* /*unacknowledged*/, uint64_t* /*acknowledged*/) const { return false; }
  // Whether the path has carried something of this incarnation. A lane whose ends have met over another protocol is up
  // before that; it is given no chunk.
  virtual bool proven() const { return true; }
  // For poll(2): readable when there may be something to read. -1: none.
  virtual int wait_fd() const = 0;
  // While no other lane of the connection is up, chunks may be this many times longer; above 1 the window is then the
  // largest one too. There is nothing to balance with, and each chunk costs a post, a completion and a state frame.
  virtual uint32_t stretch_alone() const { return 1; }
  virtual uint64_t queue_pair() const = 0;
  virtual uint32_t entropy() const = 0;
  // Nothing lands in memory after this, but see lands_after_close(). Orderly: what is queued in the transport
  // may still go out (a farewell); otherwise nothing more goes out either.
  virtual void close(bool orderly) = 0;
  // Closed, but the peer may still write into this host's memory until quiesce(), which may block for some
  // milliseconds: not on NCCL's progress thread. Only then may the peer learn that the lane is closed.
  virtual bool lands_after_close() const { return false; }
  virtual void quiesce() {}
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_LANE_H_
