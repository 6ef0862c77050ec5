// The probe engine: one native thread that sends trains, takes in what arrives, and keeps the health of NICs
// and edges.
//
// Theory of operation. The thread wakes on an absolute, jittered schedule (a tick, 20 ms by default) and does
// all its work then: TX stamps of the last tick, packets that have arrived, health, trains that are due. Late
// draining does not affect the stamps, which the kernel takes, and is what makes 1,500 packets a second each
// way cheap: one wake-up and half a dozen system calls serve 30 packets each way. The trains of a tick are
// sent interleaved (all first packets, all second, all third), so that the spacing of a train comes from
// useful work and not from spinning.
//
// Parts, each with its own state:
//   TickClock         monotonic, real and unstalled time of the tick; clock steps
//   FleetClockReader  <run>/clock
//   EdgeTable         NICs and edges, as the membership says
//     NicSockets      sockets of a NIC, its link, pending TX stamps      NicHealth   its state machine
//     Session, EdgeTrains, EdgeDelays, EdgeHealth                        of an edge
//   SendPath          schedule -> wire.cc (encode) -> probe_socket.cc -> TX stamp
//   ReceivePath       probe_socket.cc -> wire.cc (decode) -> session -> trains, delays -> RingWriter
//   HealthMonitor     evidence -> NicHealth, EdgeHealth -> EventQueue
//   snapshot.cc       records for Python
//
// Threads: everything is owned by the engine's thread under `mutex_`; Python calls configure(), snapshot()
// and take_events() from its own thread and holds the mutex only for copies. The mutex inherits priority,
// because the engine's thread may run at a real-time priority and must never wait for an ordinary thread that
// has been preempted.
#ifndef FABRICPULSE_EXPORTERS_PROBE_ENGINE_H_
#define FABRICPULSE_EXPORTERS_PROBE_ENGINE_H_

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "clocks/fleet_clock_reader.h"
#include "clocks/tick_clock.h"
#include "edge_table.h"
#include "event_queue.h"
#include "health_monitor.h"
#include "path_tracer.h"
#include "priority_mutex.h"
#include "receive_path.h"
#include "ring_writer.h"
#include "send_path.h"
#include "settings.h"
#include "snapshot.h"

namespace fabricpulse {

class ProbeEngine {
 public:
  // Throws std::system_error when the ring cannot be made, std::invalid_argument for settings that make no
  // sense.
  explicit ProbeEngine(const Settings& settings);
  ~ProbeEngine();
  ProbeEngine(const ProbeEngine&) = delete;
  ProbeEngine& operator=(const ProbeEngine&) = delete;

  // The first key signs, all are accepted.
  void set_keys(const std::vector<SipKey>& keys);
  // See EdgeTable::configure.
  std::vector<std::uint32_t> configure(const std::vector<NicSpec>& nics, const std::vector<EdgeSpec>& edges);

  void start();  // throws std::system_error
  void stop();
  bool realtime() const { return realtime_; }
  std::uint32_t epoch() const { return epoch_; }
  int event_fd() const { return events_.fd(); }

  // SnapshotHeader, NicRecords, EdgeRecords, in the order of the configuration.
  std::string snapshot();
  std::vector<Event> take_events();

  // See PathTracer.
  bool trace(std::uint32_t edge, std::uint8_t path);
  std::vector<Trace> take_traces();

 private:
  void run();
  void tick(std::int64_t planned);
  void emit(EventKind kind, std::int64_t duration);

  const Settings settings_;  // tick_ns: of this engine, a whole part of the period
  const std::uint32_t epoch_;
  PriorityMutex mutex_;
  std::mutex api_mutex_;  // configure() and snapshot() never run at once
  pthread_t thread_{};
  bool running_ = false;
  bool realtime_ = false;
  std::atomic<bool> stop_{false};

  std::vector<FleetKey> keys_;
  static constexpr std::int64_t kHiddenJumpNs = 50'000'000;  // between two answers
  std::int64_t hidden_jump_mono_ = 0;
  static constexpr std::int64_t kDoubtNs = 50'000'000;  // between two doubts
  std::int64_t doubted_mono_ = 0;

  TickClock clock_;
  std::unique_ptr<RingWriter> ring_;
  FleetClockReader fleet_clock_;
  EventQueue events_;
  EdgeTable table_;
  SendPath send_;
  ReceivePath receive_;
  HealthMonitor health_;
  PathTracer tracer_;
  SnapshotHeader header_{};  // ticks, stalls, lateness; the rest is filled in by snapshot()
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_PROBE_ENGINE_H_
