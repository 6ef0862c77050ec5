// The plugin in one process: NICs, listeners, connections, and the service thread.
//
// The service thread makes and re-makes lanes, runs the timers, hears link events, and moves a connection's
// data when NCCL has not called for a while. It never holds a lock while it waits. Commands come from the
// control socket's thread.
#ifndef FABRICPULSE_PROCESS_PLUGIN_ENGINE_H_
#define FABRICPULSE_PROCESS_PLUGIN_ENGINE_H_

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/log.h"
#include "core/recv_connection.h"
#include "core/runtime.h"
#include "core/send_connection.h"
#include "core/telemetry.h"
#include "fabricpulse/virtual_clock.h"
#include "process/fleet_time.h"
#include "transport/tcp/nics.h"

namespace fabricpulse {

class ControlServer;
class Handshakes;
class Profiler;

constexpr const char* kPluginVersion = "0.1.0";

// What listen() gives NCCL to carry to the peer; at most 128 bytes. The connecting side keeps its place in
// `cookie`.
struct Handle {
  uint64_t magic = 0;
  uint64_t token[2] = {};
  uint16_t port = 0;
  uint8_t v4 = 0;      // addresses are 4 bytes each, otherwise 16
  uint8_t count = 0;   // of addresses, one a NIC, in NIC order
  uint8_t device = 0;  // the NIC that listens
  uint8_t reserved[3] = {};
  uint8_t addresses[64] = {};
  uint64_t cookie = 0;
};
static_assert(sizeof(Handle) <= 128, "NCCL_NET_HANDLE_MAXSIZE");
constexpr uint64_t kHandleMagic = UINT64_C(0x314c444e48505046);  // "FPPHNDL1"

struct Listener {
  uint64_t token[2] = {};
  uint32_t device = 0;
  uint64_t communicator = 0;
  std::deque<std::shared_ptr<RecvConnection>> waiting;  // under the engine's lock
};

// Where the peer's process of a connection listens.
struct PeerRoute {
  uint16_t port = 0;
  uint64_t token[2] = {};
  std::vector<WireNic> nics;
};

// What a descriptor of the service thread's is.
enum class PollSource : uint8_t { kWake = 1, kLinks, kListener, kIncoming, kDial };

class PluginEngine final : public Runtime {
 public:
  // The engine of this process, started if need be. nullptr: `error` says why.
  // For the profiler alone no NIC is needed and none is listened on.
  enum class Purpose { kProfiler, kNet };
  static std::shared_ptr<PluginEngine> acquire(LogFunction log, Purpose purpose, std::string* error);
  ~PluginEngine() override;

  struct Nic : NicInfo {
    std::atomic<bool> link_up{false};
    std::atomic<bool> avoided{false};
    std::atomic<int> listen_fd{-1};
    uint64_t guid = 0;  // differs between the NICs of a host, and stays when one comes back as another
    uint64_t link_downs = 0;
  };

  // ---- NCCL's threads ----
  // Grows when a NIC comes while the job runs; none ever leaves, nor changes its number.
  uint32_t nic_count() const { return nic_count_.load(std::memory_order_acquire); }
  // Those that NCCL sees as devices: it asks once. The others carry lanes only.
  uint32_t device_count() const { return device_count_.load(std::memory_order_acquire); }
  const Nic& nic(uint32_t index) const { return *nics_[index]; }
  std::array<uint8_t, 16> nic_address(uint32_t index) const;
  void add_communicator(int change);
  void called(const char* abi);

  std::shared_ptr<Listener> listen(uint32_t device, uint64_t communicator, Handle* handle);
  void close_listener(const std::shared_ptr<Listener>& listener);
  std::shared_ptr<RecvConnection> accept(const std::shared_ptr<Listener>& listener);
  // First call with a handle starts the connection, later ones ask for it. nullptr and no error: not yet.
  std::shared_ptr<SendConnection> connect(uint32_t device, uint64_t communicator, Handle* handle,
                                          std::string* error);
  void close(const std::shared_ptr<Connection>& connection);

  // ---- control socket's thread and service thread ----
  std::vector<std::shared_ptr<Connection>> connections();
  Nic* find_nic(const std::string& name, uint32_t* index);
  void set_avoided(uint32_t nic, bool avoided);
  // How much the profiler asks of NCCL: 0 nothing, 1 collectives, 2 and proxy steps.
  uint32_t detail() const { return detail_.load(); }
  void set_detail(uint32_t level);
  void add_profiler(Profiler* profiler);
  void remove_profiler(Profiler* profiler);

  // ---- handshakes (service thread) ----
  const ProcessIdentity& identity() const { return identity_; }
  uint16_t port() const { return port_; }
  void fill_nics(WireNic* nics, uint32_t* count) const;
  // The peer's NICs as it has just said.
  void refresh_route(const Connection& connection, const WireNic* nics, uint32_t count);
  // The same, of the sender of a connection whose receiver has said it.
  void learn_nics(const Hello& hello);
  // Gives the sender lanes over NICs that have come since it was last looked at.
  void extend_lanes(SendConnection* sender, const PeerRoute& route, uint64_t now);
  bool find_route(const Connection& connection, PeerRoute* route);
  bool has_send_connection(uint64_t connection);
  // The receiving end that a hello is for, made if its listener is here; nullptr: not ours.
  std::shared_ptr<RecvConnection> receiver_for(const Hello& hello);
  void watch(int fd, PollSource kind, uint64_t id, uint32_t events);
  void unwatch(int fd);

  // ---- Runtime ----
  const Config& config() const override { return config_; }
  Telemetry* telemetry() override { return &telemetry_; }
  uint64_t now() const override;
  int64_t host_clock() const override { return fp_host_clock_now(virtual_clock_); }
  bool fleet_clock(int64_t* fleet_ns) const override { return fleet_time_.read(fleet_ns); }
  bool nic_up(uint32_t nic) const override { return nics_[nic]->link_up.load(std::memory_order_relaxed); }
  bool nic_avoided(uint32_t nic) const override {
    return nics_[nic]->avoided.load(std::memory_order_relaxed);
  }
  const char* nic_name(uint32_t nic) const override { return nics_[nic]->name.c_str(); }
  uint64_t nic_bytes_per_second(uint32_t nic) const override {
    return uint64_t{nics_[nic]->speed_mbps} * 125'000;
  }
  void wake() override;
  void warn(const std::string& text) override;
  void info(const std::string& text) override;

  // For the exit handler: removes what a reader would find, touches nothing else.
  void remove_files();

 private:
  PluginEngine(LogFunction log, const Config& config);
  bool start(std::string* error);
  bool open_listeners(std::string* error);
  bool open_nic_listener(uint32_t index, uint16_t port);
  void add_nic(const NicInfo& info);
  void add_new_nics(uint64_t now);
  // Whether both ends of a pair have addresses of one family.
  bool same_family(NicPair pair, const std::vector<WireNic>& peer) const;
  void check_nic(uint32_t index, uint64_t now);
  void run();
  void tick(uint64_t now, uint64_t since_last);
  void poll_links(uint64_t now);
  void publish(uint64_t now);

  Config config_;
  Telemetry telemetry_;
  std::atomic<LogFunction> log_;
  ProcessIdentity identity_;
  std::atomic<uint16_t> port_{0};  // 0: nobody listens
  std::mutex nics_lock_;           // held by whoever adds one, or makes the listeners of all
  std::array<std::unique_ptr<Nic>, kMaxNics> nics_;
  std::atomic<uint32_t> nic_count_{0}, device_count_{0};
  mutable std::mutex addresses_lock_;  // addresses of nics_: a NIC may come back with another
  const fp_virtual_clock* virtual_clock_ = nullptr;

  FleetTime fleet_time_;

  std::mutex lock_;  // tables below; taken before the lock of a connection, never after
  // A process may be connected to itself (several ranks in it), so that both ends of a connection are here.
  using Key = std::pair<uint64_t, Direction>;
  static Key key(const Connection& connection) { return {connection.id(), connection.direction()}; }
  std::map<Key, std::shared_ptr<Connection>> connections_;
  std::map<Key, PeerRoute> routes_;  // by connection: where the peer's process listens
  std::vector<std::weak_ptr<Listener>> listeners_;
  int communicators_ = 0;

  int epoll_ = -1, wake_ = -1, links_ = -1;
  std::unique_ptr<Handshakes> handshakes_;  // service thread only
  bool nics_full_ = false;                  // said already
  uint64_t links_polled_ns_ = 0, published_ns_ = 0;
  std::unique_ptr<ControlServer> control_;
  std::atomic<uint32_t> detail_{0};
  std::mutex profilers_lock_;
  std::vector<Profiler*> profilers_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> woken_{false};
  std::thread service_thread_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_PROCESS_PLUGIN_ENGINE_H_
