// What a lane type is: its NICs, how its lanes are dialled and accepted, what memory it can send from. What a
// lane does once it is there is in core/lane.h. TCP is transport/tcp, queue pairs are transport/verbs.
//
// One instance a process. All calls come from the service thread, but where stated otherwise; none blocks.
//
// Where queue pairs put what TCP does not have:
//  - A NIC's protection domain, completion queue and registrations belong to the Transport, by NIC number. A
//    lane's poll() polls the completion queue of its NIC, hands on what belongs to other lanes, and lets the
//    lanes of a NIC share one poll.
//  - register_memory() registers with every NIC; the handle comes back with post_chunk(), which picks its
//    NIC's key.
//
//  - WRITE_WITH_IMM announces a chunk: FrameHeader is what the immediate data leads to at the receiver.
//
//  - What the ends of a queue pair have to know of one another (QP number, PSN, GID, MTU) is `setup` of Hello
//    and HelloReply; a third message of the handshake is the transport's own, between PendingLane::reply() and
//    the first chunk.
#ifndef FABRICPULSE_CORE_TRANSPORT_H_
#define FABRICPULSE_CORE_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/lane.h"
#include "core/nic.h"
#include "core/wire.h"
#include "fabricpulse/plugin_telemetry.h"

namespace fabricpulse {

// Waits for descriptors on behalf of a transport: the service thread's epoll set. `id`: 56 bits, handed back
// to Transport::serve().
class Poller {
 public:
  virtual void watch(int fd, uint64_t id, uint32_t epoll_events) = 0;
  virtual void unwatch(int fd) = 0;

 protected:
  ~Poller() = default;
};

// The end of a lane that is being accepted. Valid during TransportEvents::hello_received().
class PendingLane {
 public:
  // Answers the hello, once. With kOk the lane, unless the answer could not be sent; else nullptr, and the
  // connection that brought the hello ends.
  virtual std::unique_ptr<LaneTransport> reply(const HelloReply& reply) = 0;
  // Descriptors (or what else a lane of this type takes) are scarce: only for a connection that has none.
  virtual bool scarce() const = 0;

 protected:
  ~PendingLane() = default;
};

// Who decides about lanes (process/handshakes.h).
class TransportEvents {
 public:
  // A plausible hello has arrived on this NIC. No reply refuses it silently.
  virtual void hello_received(const Hello& hello, uint32_t nic, PendingLane* pending, uint64_t now) = 0;
  // The kernel of the peer's host has taken the connection of dial `id`: a socket listens there. Not always reported.
  virtual void dial_connected(uint64_t id) = 0;
  // The end of dial `id`. error: errno; 0: `reply` holds the answer, and `lane` is there if it was kOk to a
  // kLane.
  virtual void dial_ended(uint64_t id, int error, const HelloReply* reply,
                          std::unique_ptr<LaneTransport> lane, uint64_t now) = 0;
  // A process that is watched has ended, as far as its host's kernel reports.
  virtual void process_ended(const uint64_t (&process)[2]) = 0;
  // This process has no descriptor left.
  virtual void descriptors_exhausted(uint64_t now) = 0;

 protected:
  ~TransportEvents() = default;
};

struct DialRequest {
  uint64_t id = 0;
  uint32_t nic = 0;                  // local
  NicAddress address{};              // remote
  uint16_t port = 0;                 // remote
  uint16_t source_port = 0;          // the path; 0: any
  uint64_t connect_deadline_ns = 0;  // without any answer by then it ends with ETIMEDOUT
  uint64_t answer_ns = 0;            // how long the reply may take from then on
  bool optional = false;             // EMFILE if descriptors are scarce
  Hello hello;
};

// What kinds of memory a lane type can send from and receive into (NCCL_PTR_*).
enum MemoryKinds : int { kMemoryHost = 1, kMemoryCuda = 2, kMemoryDmaBuf = 4 };

class Transport {
 public:
  virtual ~Transport() = default;
  virtual fp_lane_transport kind() const = 0;
  // Of spare lanes (core/spare_lanes.h).
  virtual fp_lane_transport spare_kind() const { return kind(); }
  virtual int memory_kinds() const = 0;

  // ---- NICs ----
  // Those that pass the configuration's patterns and can carry lanes, in the order in which the n-th of one
  // host faces the n-th of another; without those in `known`. Any thread.
  virtual std::vector<NicInfo> discover(const std::vector<std::string>& known) const = 0;
  // Whether discover() would take a NIC of that name if it were up and had an address.
  virtual bool wants(const std::string& name) const = 0;
  // What there is now of a NIC of that name: index and address. False: it is away, or has no address now. No value,
  // here and below: the kernel cannot be asked, since this process has no descriptor left perhaps.
  virtual std::optional<bool> look_up(NicInfo* nic) const = 0;
  virtual std::optional<bool> link_up(const std::string& name) const = 0;

  // ---- accepting ----
  // Listens on a NIC, on `port` or, if that is 0, on one that is free. Returns the port, 0 if that fails
  // (errno). A NIC that listens already does so anew. Not at the same time as another call.
  virtual uint16_t listen(uint32_t nic, const NicInfo& info, uint16_t port) = 0;
  virtual bool listens(uint32_t nic) const = 0;
  virtual void stop_listening(uint32_t nic) = 0;

  // ---- dialling ----
  // Ends in TransportEvents::dial_ended(), perhaps before this returns.
  virtual void dial(const NicInfo& from, const DialRequest& request, uint64_t now) = 0;
  virtual bool dialling() const = 0;
  // What a dial with HelloKind::kWatch has made: whether there is such a connection, and its end. A transport whose
  // lanes say all that it could say always has one.
  virtual bool watches(const uint64_t (&/*process*/)[2]) const { return true; }
  virtual void stop_watching(const uint64_t (&/*process*/)[2]) {}

  // A watched descriptor is ready.
  virtual void serve(uint64_t id, uint64_t now) = 0;
  // Ends what has passed its deadline.
  virtual void tick(uint64_t now) = 0;

  // ---- memory; NCCL's threads ----
  // nullptr: it cannot be; `why` has the reason.
  virtual RegisteredMemory* register_memory(void* data, size_t size, int kind, std::string* why) = 0;
  virtual void deregister_memory(RegisteredMemory* memory) = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_TRANSPORT_H_
