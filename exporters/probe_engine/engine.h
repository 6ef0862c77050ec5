// The probe engine: one native thread that sends trains, takes in what arrives, and judges.
//
// Theory of operation. The thread wakes on an absolute, jittered schedule (a tick, 20 ms by default) and does
// all its work then: TX stamps of the last tick, packets that have arrived, verdicts, trains that are due.
// Draining late costs nothing, because the stamps are the kernel's, and is what makes 1,500 packets a second
// each way cheap: one wake-up and half a dozen system calls serve 30 packets each way. The trains of a tick
// are sent interleaved (all first packets, all second, all third), so that the spacing of a train comes from
// useful work and not from spinning.
//
// A packet's way out: engine_send.cc (schedule, fill_packet) -> wire.cc (encode) -> probe_socket.cc -> back
// to engine_send.cc with its TX stamp. Its way in: probe_socket.cc -> engine_receive.cc -> wire.cc (decode)
// -> session.h (fresh or not) -> edge_trains.cc (which train, which stamps, what was lost) -> ring_writer.cc.
// What is made of it all: verdict.h, driven by engine_verdicts.cc; engine_snapshot.cc tells Python. Who the
// peers are: engine_membership.cc; sockets and links: engine_nics.cc. engine.cc is the thread.
//
// Threads: everything is owned by the engine thread under `mutex_`; Python calls configure(), snapshot() and
// take_events() from its own thread and holds the mutex only for copies. The mutex inherits priority, because
// the engine thread may run at a real-time priority and must never wait for an ordinary thread that has been
// preempted.
#ifndef FABRICPULSE_EXPORTERS_ENGINE_H_
#define FABRICPULSE_EXPORTERS_ENGINE_H_

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "edge_trains.h"
#include "fabricpulse/clock_page.h"
#include "owd_window.h"
#include "probe_socket.h"
#include "ring_writer.h"
#include "session.h"
#include "snapshot.h"
#include "verdict.h"
#include "wire.h"

namespace fabricpulse {

struct Settings {
  std::string host;
  std::string ring_path;   // empty: no ring
  std::string clock_path;  // empty: no fleet time
  std::uint16_t port = 9620;
  std::uint8_t dscp = 0;
  std::uint8_t paths = 8;   // source ports: port, port + 1, ...
  std::uint8_t sweep = 10;  // every sweep-th train takes a path other than the main flow
  bool bind_device = true;
  bool hardware = false;
  double rate = 50;  // trains a second to each peer
  std::int64_t interval_ns = 1'000'000'000;
  std::int64_t grace_ns = 10'000'000'000;
  std::int64_t tick_ns = 20'000'000;  // at most, on average; the engine takes the next part of a period
  std::int64_t spacing_ns = 20'000;   // between the packets of a train, at least
  std::int64_t window_ns = 15'000'000'000;
  std::int64_t latency_ceiling_ns = 10'000'000;
  double latency_factor = 3;
  std::int64_t latency_slack_ns = 20'000;
  double receive_rate = 2'000;  // packets a second taken from one peer
  int priority = 1;             // SCHED_FIFO; 0 = ordinary
  std::uint32_t ring_capacity = 16'384;
  std::uint32_t edge_capacity = 1'024;
};

struct NicSpec {
  std::string device, network, address;
};

struct EdgeSpec {
  std::uint32_t nic = 0;  // index into the NICs of the same call
  std::string peer, peer_device, peer_network, address;
};

enum class EventKind : std::uint8_t {
  kNicDisconnected,
  kNicConnected,
  kEdgeDown,
  kEdgeUp,
  kStall,
  kClockStep
};

struct Event {
  EventKind kind;
  std::int64_t host_ns;  // when it was found, host clock
  std::int64_t
      duration_ns;     // disconnected: silence so far; connected: length of the outage; stall: its length
  std::uint8_t cause;  // NicCause
  std::uint8_t inbound, outbound;  // State, of an edge
  std::string device, network, peer, peer_device;
};

// A NIC's name on the wire.
std::uint64_t nic_identity(const std::string& host, const std::string& device);
// Whether an error of a socket speaks of the link, the device or its address.
bool is_link_error(int error);

class PriorityMutex {
 public:
  PriorityMutex() {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&mutex_, &attributes);
    pthread_mutexattr_destroy(&attributes);
  }
  ~PriorityMutex() { pthread_mutex_destroy(&mutex_); }
  PriorityMutex(const PriorityMutex&) = delete;
  PriorityMutex& operator=(const PriorityMutex&) = delete;
  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_;
};

class Engine {
 public:
  // Throws std::system_error when the ring cannot be made, std::invalid_argument for settings that make no
  // sense.
  explicit Engine(const Settings& settings);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The first key signs, all are accepted.
  void set_keys(const std::vector<SipKey>& keys);
  // Replaces NICs and edges; those that stay keep their state. Returns the slot of each edge. Throws
  // std::invalid_argument for a bad address or too many edges.
  std::vector<std::uint32_t> configure(const std::vector<NicSpec>& nics, const std::vector<EdgeSpec>& edges);

  void start();  // throws std::system_error
  void stop();
  bool realtime() const { return realtime_; }
  std::uint32_t epoch() const { return epoch_; }
  int event_fd() const { return event_fd_; }

  std::string snapshot();
  std::vector<Event> take_events();

 private:
  // Delays of the last trains of one source port.
  struct PathDelays {
    std::int64_t recent[8] = {};
    std::uint8_t count = 0, next = 0;
  };
  struct Edge {
    std::uint32_t nic = 0;
    std::string device;
    EdgeSpec spec;
    std::uint64_t peer_id = 0;
    std::uint64_t peer_host = 0;  // identity of its host
    SocketAddress to{};           // port set
    Session session;
    Presence presence;
    EdgeVerdict verdict;
    std::int64_t heard_mono = 0, heard_by_mono = 0;  // for people; verdicts use `presence`
    std::uint64_t next_due = 0, period_start = 0;    // number of a tick
    EdgeTrains trains;
    std::uint64_t sent = 0, send_errors = 0, received = 0;
    std::uint32_t session_received = 0;
    double tokens = 0;
    std::int64_t tokens_at = 0;
    OwdWindow window;
    std::uint64_t owd_count = 0;
    std::int64_t owd_sum = 0, owd_bound = 0;
    LatencyVerdict latency;
    PathDelays delays[kMaxPaths];
  };

  static constexpr std::size_t kPendingStamps = 1'024;  // a power of two; a tick of one port sends far fewer
  struct PendingStamp {
    std::uint32_t id = 0;
    std::uint32_t edge = 0;
    std::uint32_t train = 0;
    std::uint8_t position = 0;
    bool waiting = false;
    bool hardware = false;  // what has come is the NIC's; the kernel's may follow
  };
  struct Port {
    ProbeSocket socket;
    std::vector<PendingStamp> pending;  // ring indexed by id, a power of two
    int waiting = 0;
    int idle = 0;  // ticks since the last stamp that was waited for
  };
  struct Nic {
    NicSpec spec;
    std::uint64_t id = 0;
    unsigned ifindex = 0;
    std::vector<Port> ports;
    bool open = false;
    int open_errno = 0;
    bool link = true;
    std::int64_t next_check = 0;
    std::unordered_map<std::uint64_t, std::uint32_t> edges;  // peer id -> slot
    NicVerdict verdict;
    NicRecord record{};
    std::int64_t down_since = 0;  // monotonic; 0 = is not down
    bool down_counted = false;    // the outage is in disconnects
    std::uint64_t overflows_closed = 0;

    // No carrier, or the device or its address is gone; not: our own trouble with the socket.
    bool link_down() const { return !link || (!open && is_link_error(open_errno)); }
  };

  // Ticks are 3/4 to 5/4 of tick_ns apart.
  std::int64_t longest_tick() const { return settings_.tick_ns * 5 / 4; }
  void run();
  void tick(std::int64_t planned);
  void read_clock_page(std::int64_t now);
  void check_link(Nic& nic, std::int64_t now, bool force);
  void open_nic(Nic& nic);
  void close_nic(Nic& nic);
  void drain_stamps(Nic& nic);
  void give_up_stamps(Nic& nic);
  void drain_packets(std::uint32_t index);
  void forget_stamps();
  void take_packet(std::uint32_t nic_index, const Received& received);
  void take_sent_report(std::uint32_t slot, Edge& edge, const Packet& packet);
  void take_reception_report(std::uint32_t slot, Edge& edge, const Packet& packet);
  void judge(std::int64_t now);
  NicEvidence evidence_of(const Nic& nic) const;
  void disconnected(Nic& nic, bool seen, std::int64_t now);
  void connected(Nic& nic, std::int64_t now);
  void emit_nic(const Nic& nic, EventKind kind, std::int64_t duration);
  void send_due();
  void send_trains(const std::uint32_t* slots, std::size_t count);
  void fill_packet(Edge& edge, Packet* packet, int position, std::int64_t now_mono);
  void rotate_windows(std::int64_t now);
  void emit(Event event);

  Settings settings_;
  PriorityMutex mutex_;
  std::mutex api_mutex_;  // configure() and snapshot() never run at once
  pthread_t thread_{};
  bool running_ = false;
  bool realtime_ = false;
  std::atomic<bool> stop_{false};
  int event_fd_ = -1, control_fd_ = -1;
  std::uint32_t epoch_ = 0;
  std::uint32_t generation_ = 0;

  std::vector<FleetKey> keys_;
  std::vector<Nic> nics_;
  std::vector<std::unique_ptr<Edge>> edges_;  // by slot
  std::vector<std::uint32_t> order_;          // slots as configured
  std::unique_ptr<RingWriter> ring_;
  const fp_virtual_clock* virtual_clock_ = nullptr;
  fp_clock_page* clock_map_ = nullptr;
  std::uint64_t clock_inode_ = 0;
  fp_clock_page clock_{};
  bool clock_ok_ = false;
  std::int64_t next_clock_look_ = 0;

  AttendedClock attended_;
  std::int64_t period_ticks_ = 1;  // from train to train
  std::int64_t edge_interval_ = 0;
  std::int64_t next_rotation_ = 0;
  std::int64_t realtime_offset_ = 0;  // CLOCK_REALTIME - CLOCK_MONOTONIC
  std::int64_t tick_mono_ = 0, tick_real_ = 0;
  std::int64_t attended_before_ = 0;  // at the tick before this
  std::mt19937_64 random_;
  std::deque<Event> events_;
  SnapshotHeader header_{};
  std::vector<std::uint32_t> due_;  // scratch of send_due
  std::vector<Outgoing> outgoing_;  // scratch of send_trains
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_ENGINE_H_
