// The plugin in one process: what NCCL's calls do, and the parts that do it.
//
//   NicTable, LinkMonitor   the NICs, and what happens to them
//   ConnectionTable         connections, listeners, routes to peers
//   Transport               how lanes are dialled and accepted (one lane type)
//   Handshakes              which lanes are dialled, what hellos are answered
//   ServiceThread           the thread that runs all of this and the timers; it moves a connection's data
//                           when NCCL has not called for a while
//   ControlServer           commands, in a thread of its own
#ifndef FABRICPULSE_PROCESS_PLUGIN_ENGINE_H_
#define FABRICPULSE_PROCESS_PLUGIN_ENGINE_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "control/controlled_plugin.h"
#include "core/log.h"
#include "core/owned_fds.h"
#include "core/runtime.h"
#include "core/telemetry.h"
#include "core/transport.h"
#include "core/version.h"
#include "fabricpulse/virtual_clock.h"
#include "process/connection_table.h"
#include "process/fleet_time.h"
#include "process/handshakes.h"
#include "process/link_monitor.h"
#include "process/nic_table.h"
#include "process/service_thread.h"

namespace fabricpulse {

class ControlServer;
class Profiler;

// What listen() gives NCCL to carry to the peer; at most 128 bytes. The connecting side keeps its place in
// `cookie`.
struct Handle {
  uint64_t magic = 0;
  uint64_t token[2] = {};
  uint16_t port = 0;
  uint8_t v4 = 0;      // addresses are 4 bytes each, otherwise 16
  uint8_t count = 0;   // of addresses, one a NIC, in NIC order
  uint8_t device = 0;  // the NIC that listens
  uint8_t reserved = 0;
  uint16_t spare_only = 0;  // which of them have spare lanes alone: bit 0 is the first
  uint8_t addresses[64] = {};
  uint64_t cookie = 0;
};
static_assert(sizeof(Handle) <= 128, "NCCL_NET_HANDLE_MAXSIZE");
constexpr uint64_t kHandleMagic = UINT64_C(0x314c444e48505046);  // "FPPHNDL1"

class PluginEngine final : public ControlledPlugin, private ServiceWork {
 public:
  // The engine of this process, started if need be. nullptr: `error` has the reason.
  // For the profiler alone no NIC is needed and none is listened on.
  enum class Purpose { kProfiler, kNet };
  static std::shared_ptr<PluginEngine> acquire(LogFunction log, Purpose purpose, std::string* error);
  // This process is a child, made by fork(), of the one whose engine it is.
  bool inherited() const { return forks_ != fork_count(); }
  ~PluginEngine() override;

  // ---- NCCL's threads ----
  uint32_t nic_count() const override { return nics_.count(); }
  // Those that NCCL sees as devices: it asks once. The others carry lanes only.
  uint32_t device_count() const { return device_count_.load(std::memory_order_acquire); }
  const Nic& nic(uint32_t index) const { return nics_.at(index); }
  Transport* transport() { return transport_.get(); }
  fp_lane_transport lane_kind(bool spare) const override {
    return spare ? transport_->spare_kind() : transport_->kind();
  }
  void add_communicator(int change);
  void called(const char* abi);

  std::shared_ptr<Listener> listen(uint32_t device, uint64_t communicator, Handle* handle);
  void close_listener(const std::shared_ptr<Listener>& listener);
  // nullptr: no peer has connected yet.
  std::shared_ptr<RecvConnection> accept(const std::shared_ptr<Listener>& listener) {
    return connections_.accept(listener.get());
  }
  // First call with a handle starts the connection, later ones ask for it. nullptr: not yet, or never if `failed` is
  // set; the log then has the reason.
  std::shared_ptr<SendConnection> connect(uint32_t device, uint64_t communicator, Handle* handle,
                                          bool* failed);
  void close(const std::shared_ptr<Connection>& connection);
  // NCCL will not ask any more for the connection that a handle with this cookie began.
  void give_up(uint64_t cookie);

  // ---- control socket's thread and service thread ----
  std::vector<std::shared_ptr<Connection>> connections() const override { return connections_.all(); }
  bool find_nic(const std::string& name, uint32_t* index) const override {
    return nics_.find(name, index) != nullptr;
  }
  void set_avoided(uint32_t nic, bool avoided) override;
  uint32_t detail() const override { return detail_.load(); }
  void set_detail(uint32_t level) override;
  void add_profiler(Profiler* profiler);
  void remove_profiler(Profiler* profiler);
  std::shared_ptr<RecvConnection> receiver_for(const Hello& hello) { return handshakes_.receiver_for(hello); }

  // ---- Runtime ----
  const Config& config() const override { return config_; }
  Telemetry* telemetry() override { return &telemetry_; }
  uint64_t now() const override;
  int64_t host_clock() const override { return fp_host_clock_now(virtual_clock_); }
  bool fleet_clock(int64_t* fleet_ns) const override { return fleet_time_.read(fleet_ns); }
  EventTime event_time(uint64_t now) const override;
  // The same of what was over at `at`. On the host's clock as it last stood beside now(): both run alike, so that only a
  // step of the host's clock since then, a tick ago or so, is missed.
  EventTime past_event_time(uint64_t at) const;
  bool nic_up(uint32_t nic) const override { return nics_.usable(nic); }
  bool link_up(uint32_t nic) const override { return nics_.at(nic).link_up.load(); }
  bool nic_avoided(uint32_t nic) const override {
    return nics_.at(nic).avoided.load(std::memory_order_relaxed);
  }
  const char* nic_name(uint32_t nic) const override { return nics_.at(nic).name.c_str(); }
  uint64_t nic_bytes_per_second(uint32_t nic) const override {
    return uint64_t{nics_.at(nic).speed_mbps} * 125'000;
  }
  SpareUse nic_spare_use(uint32_t nic) const override { return nics_.at(nic).spare_use; }
  PathTable::Path* path(uint32_t nic, const uint8_t* address, uint64_t now) override {
    return paths_.at(nic, address, now);
  }
  PeerEnded peer_ended(const uint64_t (&process)[2]) override { return peer_ends_.of(process); }
  void wake() override { service_.wake(); }
  void warn(const std::string& text) override;
  void info(const std::string& text) override;

  // For the exit handler: removes what a reader would find, touches nothing else.
  void remove_files();

 private:
  PluginEngine(LogFunction log, const Config& config);
  bool start(std::string* error);
  bool open_listeners(std::string* error);
  bool start_connection(uint32_t device, uint64_t communicator, Handle* handle);
  void publish(uint64_t now);
  void compare_clocks();

  // ---- ServiceWork ----
  void transport_ready(uint64_t id, uint64_t now) override { transport_->serve(id, now); }
  void links_changed(uint64_t now) override { links_->events(now); }
  int tick(uint64_t now, uint64_t since_last) override;
  void failed(const std::exception& error) override;

  const uint32_t forks_ = fork_count();
  Config config_;
  Telemetry telemetry_;
  std::atomic<LogFunction> log_;
  ProcessIdentity identity_;
  std::atomic<uint16_t> port_{0};  // 0: no listener
  std::mutex nics_lock_;           // held to add one, or to make the listeners of all
  NicTable nics_;
  std::atomic<uint32_t> device_count_{0};
  const fp_virtual_clock* virtual_clock_ = nullptr;
  FleetTime fleet_time_;
  ConnectionTable connections_;
  std::mutex lock_;  // of communicators_ and of what NCCL calls this interface
  int communicators_ = 0;

  ServiceThread service_{this};
  Handshakes handshakes_{this, &identity_, &nics_, &connections_};
  std::unique_ptr<Transport> transport_;
  std::string no_lanes_;  // why there can be none; the profiler alone needs none
  std::unique_ptr<LinkMonitor> links_;
  std::unique_ptr<ControlServer> control_;
  PathTable paths_;
  PeerEnds peer_ends_;
  std::atomic<int64_t> host_ahead_ns_{INT64_MIN};  // of now(); INT64_MIN: not compared yet
  uint64_t published_ns_ = 0;
  std::atomic<uint32_t> detail_{0};
  std::mutex profilers_lock_;
  std::vector<Profiler*> profilers_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_PROCESS_PLUGIN_ENGINE_H_
