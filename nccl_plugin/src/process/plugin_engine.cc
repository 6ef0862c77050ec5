#include "process/plugin_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "control/server.h"
#include "core/monotonic.h"
#include "process/collectives.h"
#include "process/leftovers.h"
#include "transport/choose_transport.h"

namespace fabricpulse {
namespace {

constexpr int kSuspectTickMs = 4, kBusyTickMs = 10, kIdleTickMs = 50, kEmptyTickMs = 500;
constexpr int kQueuePairTickMs = Connection::kQueuePairTickNs / 1'000'000;
constexpr uint64_t kPublishNs = 100'000'000;
// CLOCK_MONOTONIC gains or loses no more than an eighth on fleet time: a tick that a daemon lengthens or shortens by 10 % at
// most, as chronyd does to correct milliseconds, and 500 ppm of frequency (adjtimex).
constexpr uint64_t kSlewShare = 8;
constexpr uint64_t kMostComparedNs = 100'000;  // from one reading of a clock to the next

void random_bytes(void* out, size_t size) {
  if (getrandom(out, size, 0) == static_cast<ssize_t>(size)) return;
  int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  bool filled = fd >= 0 && read(fd, out, size) == static_cast<ssize_t>(size);
  if (fd >= 0) ::close(fd);
  if (!filled) throw std::bad_alloc();
}

std::mutex instance_lock;
std::weak_ptr<PluginEngine> instance;
std::vector<NicInfo>
    first_scan;  // NCCL asks for the devices once: their numbers must not change when it starts anew
// A NIC that came while the engine served the profiler alone has become a device too.
void keep_devices(const PluginEngine& engine) {
  for (auto i = static_cast<uint32_t>(first_scan.size()); i < engine.device_count(); ++i)
    first_scan.push_back(engine.nic(i));
}
PluginEngine* exit_engine = nullptr;
pid_t exit_pid = 0;

// The job ends without finalize more often than with it: leave no files behind.
__attribute__((destructor)) void at_exit() {
  if (exit_engine != nullptr && exit_pid == getpid()) exit_engine->remove_files();
}

}  // namespace

std::shared_ptr<PluginEngine> PluginEngine::acquire(LogFunction log, Purpose purpose, std::string* error) {
  std::lock_guard<std::mutex> lock(instance_lock);
  if (auto engine = instance.lock(); engine && !engine->inherited()) {
    if (log != nullptr) engine->log_.store(log);
    if (purpose == Purpose::kNet && !engine->open_listeners(error)) return nullptr;
    keep_devices(*engine);
    return engine;
  }
  std::string complaint;
  Config config = Config::from_environment(&complaint);
  // A child that ends its parent's communicators takes down neither its files nor its telemetry.
  std::shared_ptr<PluginEngine> engine(new PluginEngine(log, config), [](PluginEngine* last) {
    if (!last->inherited()) delete last;
  });
  if (!complaint.empty()) engine->warn(complaint);
  if (!engine->start(error)) return nullptr;
  if (purpose == Purpose::kNet && !engine->open_listeners(error)) return nullptr;
  keep_devices(*engine);
  instance = engine;
  exit_engine = engine.get();
  exit_pid = getpid();
  return engine;
}

PluginEngine::PluginEngine(LogFunction log, const Config& config)
    : config_(config), log_(log), fleet_time_(config.run_dir) {
  detail_ = config_.detail;
  if (!config_.last_resort.empty()) config_.max_lanes = std::min(config_.max_lanes, kMostBesideSpares);
  random_bytes(identity_.id, sizeof(identity_.id));
  identity_.pid = static_cast<uint32_t>(getpid());
  identity_.rank = config_.rank;
  snprintf(identity_.host, sizeof(identity_.host), "%s", config_.host.c_str());
}

bool PluginEngine::start(std::string* error) {
  int clock_error = 0;
  virtual_clock_ = fp_virtual_clock_open(&clock_error);
  if (clock_error) {
    *error = std::string("the virtual clock named by ") + FP_VIRTUAL_CLOCK_ENV + " cannot be read";
    return false;
  }
  if (!service_.open(error)) return false;
  std::string complaint;
  transport_ = choose_transport(
      config_, &service_, &handshakes_, [this](uint64_t at) { links_->transport_changed(at); },
      [this](const std::string& text) { warn(text); }, &no_lanes_, &complaint);
  links_ = std::make_unique<LinkMonitor>(this, transport_.get(), &nics_, &connections_, &nics_lock_, &port_);
  handshakes_.start(transport_.get(), &port_);
  if (first_scan.empty()) first_scan = transport_->discover({});
  if (config_.telemetry) remove_leftovers(config_.run_dir + "/plugin");
  telemetry_.open(config_, kPluginVersion, &complaint);
  if (!complaint.empty()) warn(complaint);
  telemetry_.header()->start_host_ns = host_clock();
  for (const NicInfo& info : first_scan) links_->add_nic(info);
  if (int fd = links_->open(); fd >= 0) service_.watch_links(fd);
  control_ = std::make_unique<ControlServer>(this);
  complaint.clear();
  control_->open(&complaint);
  if (!complaint.empty()) warn(complaint);
  telemetry_.header()->clock_status = fleet_time_.refresh(now());
  compare_clocks();
  links_->start();
  service_.start();
  std::string names;
  for (const NicInfo& nic : first_scan) names += (names.empty() ? "" : ", ") + nic.name;
  info("fabricpulse " + std::string(kPluginVersion) + ": NICs " + names + ", lanes over " +
       lanes_over(transport_->kind()) + ", control socket " +
       (control_->path().empty() ? "none" : control_->path()));
  return true;
}

PluginEngine::~PluginEngine() {
  service_.stop();
  if (links_) links_->stop();
  if (exit_engine == this) exit_engine = nullptr;
  control_.reset();
  connections_.clear();
}

// One port on all NICs, so that a handle carries it once. Only when NCCL wants the net plugin: the
// profiler beside NCCL's own transport listens nowhere.
bool PluginEngine::open_listeners(std::string* error) {
  std::lock_guard<std::mutex> lock(nics_lock_);
  if (port_ != 0) return true;
  if (!no_lanes_.empty()) {
    *error = no_lanes_;
    return false;
  }
  uint32_t nics = nic_count();
  if (nics == 0) {
    *error = config_.nics.empty()
                 ? "no NIC of this host is up and has an address; name some by FABRICPULSE_NICS"
                 : "no NIC of this host matches FABRICPULSE_NICS=" + config_.nics;
    return false;
  }
  for (int tries = 0; tries < 20; ++tries) {
    uint16_t port = 0;
    uint32_t listening = 0;
    while (listening < nics) {
      uint16_t bound = transport_->listen(listening, nics_.info(listening), port);
      if (bound == 0) {
        *error = "cannot listen on " + nics_.at(listening).name + ": " + strerror(errno);
        break;
      }
      port = bound;
      ++listening;
    }
    if (listening == nics) {
      device_count_.store(nics_.devices(), std::memory_order_release);
      port_ = port;
      return true;
    }
    for (uint32_t i = 0; i < nics; ++i) transport_->stop_listening(i);
  }
  return false;
}

void PluginEngine::remove_files() {
  if (!telemetry_.path().empty()) unlink(telemetry_.path().c_str());
  if (control_ && !control_->path().empty()) unlink(control_->path().c_str());
}

void PluginEngine::add_communicator(int change) {
  std::lock_guard<std::mutex> lock(lock_);
  communicators_ += change;
  telemetry_.header()->communicators = static_cast<uint32_t>(communicators_);
}

void PluginEngine::called(const char* abi) {
  std::lock_guard<std::mutex> lock(lock_);  // communicators may begin in several threads at once
  fp_plugin_header* header = telemetry_.header();
  if (strncmp(header->abi, abi, sizeof(header->abi)) == 0) return;
  snprintf(header->abi, sizeof(header->abi), "%s", abi);
}

EventTime PluginEngine::event_time(uint64_t now) const {
  EventTime time{host_clock(), now, 0, 0};
  fp_fleet_time fleet;
  if (fleet_time_.read(&fleet)) {
    time.fleet_ns = fleet.fleet_ns;
    time.fleet_bound_ns = static_cast<uint64_t>(std::max<int64_t>(fleet.bound_ns, 0));
  }
  return time;
}

EventTime PluginEngine::past_event_time(uint64_t at) const {
  EventTime time{static_cast<int64_t>(at) + host_ahead_ns_.load(std::memory_order_relaxed), at, 0, 0};
  fp_fleet_time fleet;
  const uint64_t before = now();
  if (fleet_time_.read(&fleet)) {
    // Fleet time was read between two readings of the clock, however long this thread did not run in between.
    const uint64_t reading_ns = elapsed(now(), before), back_ns = elapsed(before, at);
    time.fleet_ns = fleet.fleet_ns - static_cast<int64_t>(back_ns);
    time.fleet_bound_ns =
        static_cast<uint64_t>(std::max<int64_t>(fleet.bound_ns, 0)) + reading_ns + back_ns / kSlewShare + 1;
  }
  return time;
}

void PluginEngine::compare_clocks() {
  const uint64_t before = now();
  const int64_t host_ns = host_clock();
  const uint64_t took = now() - before;
  // This thread did not run in between: the last comparison is better.
  if (took > kMostComparedNs && host_ahead_ns_.load(std::memory_order_relaxed) != INT64_MIN) return;
  host_ahead_ns_.store(host_ns - static_cast<int64_t>(before + took / 2), std::memory_order_relaxed);
}

uint64_t PluginEngine::now() const { return monotonic_ns(); }

void PluginEngine::warn(const std::string& text) {
  if (LogFunction log = log_.load())
    log(static_cast<int>(LogLevel::kWarn), ~0ul, "fabricpulse", 0, "NET/FABRICPULSE: %s", text.c_str());
}

void PluginEngine::info(const std::string& text) {
  if (LogFunction log = log_.load())
    log(static_cast<int>(LogLevel::kInfo), ~0ul, "fabricpulse", 0, "NET/FABRICPULSE: %s", text.c_str());
}

std::shared_ptr<Listener> PluginEngine::listen(uint32_t device, uint64_t communicator, Handle* handle) {
  auto listener = std::make_shared<Listener>();
  random_bytes(listener->token, sizeof(listener->token));
  listener->device = device;
  listener->communicator = communicator;
  *handle = Handle{};
  handle->magic = kHandleMagic;
  memcpy(handle->token, listener->token, sizeof(handle->token));
  handle->port = port_;
  bool v4 = true;
  uint32_t nics = nic_count();
  for (uint32_t i = 0; i < nics; ++i) v4 &= is_mapped_v4(nics_.address(i).data());
  handle->v4 = v4;
  size_t each = v4 ? 4 : 16, room = sizeof(handle->addresses) / each;
  // More NICs than room (IPv6 only): the listening one must be among them.
  uint32_t first = device < room ? 0 : static_cast<uint32_t>(device - room + 1);
  for (uint32_t i = first; i < nics && handle->count < room; ++i) {
    if (nics_.at(i).spare_use == SpareUse::kOnly)
      handle->spare_only |= static_cast<uint16_t>(1u << handle->count);
    memcpy(handle->addresses + each * handle->count++, nics_.address(i).data() + (v4 ? 12 : 0), each);
  }
  handle->device = static_cast<uint8_t>(device - first);
  connections_.add_listener(listener);
  return listener;
}

void PluginEngine::close_listener(const std::shared_ptr<Listener>& listener) {
  for (auto& orphan : connections_.remove_listener(listener)) close(orphan);
}

std::shared_ptr<SendConnection> PluginEngine::connect(uint32_t device, uint64_t communicator, Handle* handle,
                                                      bool* failed) {
  size_t each = handle->v4 ? 4 : 16;
  if (handle->magic != kHandleMagic || handle->count == 0 || handle->device >= handle->count ||
      handle->count * each > sizeof(handle->addresses)) {
    warn("the handle does not come from this plugin; all hosts must use the same version of it");
    *failed = true;
    return nullptr;
  }
  if (handle->cookie == 0) {
    *failed = !start_connection(device, communicator, handle);
    return nullptr;
  }
  auto sender =
      std::dynamic_pointer_cast<SendConnection>(connections_.find(handle->cookie, Direction::kSend));
  if (!sender) {
    warn("the connection that this handle began has ended");
    *failed = true;
    return nullptr;
  }
  ConnectionLock locked(sender.get());
  sender->asked();
  *failed = sender->broken(now());  // which has logged it
  if (*failed || !sender->ready(now())) return nullptr;
  sender->hand_over();
  return sender;
}

// False: it cannot be; the log has the reason.
bool PluginEngine::start_connection(uint32_t device, uint64_t communicator, Handle* handle) {
  size_t each = handle->v4 ? 4 : 16;
  uint32_t local = nic_count(), remote = handle->count;
  PeerRoute route;
  route.nics.resize(remote);
  for (uint32_t i = 0; i < remote; ++i) {
    WireNic& nic = route.nics[i];
    if (handle->v4) nic.address[10] = nic.address[11] = 0xff;
    memcpy(nic.address + (handle->v4 ? 12 : 0), handle->addresses + each * i, each);
    if ((handle->spare_only >> i) & 1) nic.spare_use = static_cast<uint8_t>(SpareUse::kOnly);
  }
  route.port = handle->port;
  memcpy(route.token, handle->token, sizeof(route.token));
  std::vector<NicPair> lanes =
      plan_lanes({local, remote, device, handle->device, config_.max_lanes, config_.paths},
                 [&](NicPair pair) { return nics_.reaches(pair, route.nics); });
  if (lanes.empty()) {
    warn("no NIC of this host has an address of the same family as the peer's");
    return false;
  }
  uint64_t id = 0;
  while (id == 0) random_bytes(&id, sizeof(id));
  auto sender = std::make_shared<SendConnection>(this, id, device, communicator, lanes);
  sender->nics_changed(local, remote);
  connections_.add(sender, std::move(route));
  handle->cookie = id;
  wake();
  return true;
}

void PluginEngine::close(const std::shared_ptr<Connection>& connection) {
  HeldState held;
  bool in_order = false;
  {
    ConnectionLock locked(connection.get());
    connection->close(now());
    in_order = !connection->lost() && connection->held_at_close(&held);
  }
  if (in_order) connections_.remember_closed(*connection, held, now());
  connections_.remove(*connection);
}

void PluginEngine::give_up(uint64_t cookie) {
  auto connection = connections_.find(cookie, Direction::kSend);
  if (connection && !std::static_pointer_cast<SendConnection>(connection)->handed_over()) close(connection);
}

void PluginEngine::set_avoided(uint32_t nic, bool avoided) {
  nics_.mutable_at(nic).avoided = avoided;  // the service thread shows it
  wake();
}

int PluginEngine::tick(uint64_t now, uint64_t since_last) {
  links_->tick(now);
  telemetry_.header()->clock_status = fleet_time_.refresh(now);
  bool any = false, busy = false, soon = false, suspect = false;
  for (auto& connection : connections()) {
    any = true;
    bool forgotten = false;
    {
      ConnectionLock locked(connection.get());
      if (connection->closed()) continue;
      connection->tick(now, since_last);
      forgotten = connection->forgotten(since_last);
    }
    if (forgotten) {
      close(connection);
      continue;
    }
    handshakes_.start_dials(connection, now);
    handshakes_.announce_nics(connection, now);
    handshakes_.check_peer(connection, now);
    handshakes_.watch_process(connection, now);
    ConnectionLock locked(connection.get());
    suspect |= connection->suspects();
    const bool waits = connection->requests() > 0 || connection->lanes_up() == 0;
    busy |= waits && !(connection->watched() && connection->lanes_up() > 0);
    soon |= waits && !connection->on_queue_pairs();
  }
  handshakes_.tick(now);
  transport_->tick(now);
  publish(now);
  if (suspect) return kSuspectTickMs;
  if (soon || transport_->dialling()) return kBusyTickMs;
  return busy ? kQueuePairTickMs : any ? kIdleTickMs : kEmptyTickMs;
}

void PluginEngine::failed(const std::exception& error) {
  warn(std::string("service thread: ") + error.what());
}

void PluginEngine::publish(uint64_t now) {
  fp_plugin_header* header = telemetry_.header();
  __atomic_store_n(&header->heartbeat_mono_ns, now, __ATOMIC_RELEASE);
  if (elapsed(now, published_ns_) < kPublishNs) return;
  published_ns_ = now;
  compare_clocks();
  uint32_t lanes[kMaxNics] = {}, up[kMaxNics] = {};
  for (auto& connection : connections()) {
    ConnectionLock locked(connection.get());
    for (const Lane& lane : connection->lanes()) {
      if (!lane.named || lane.nic >= kMaxNics || lane.spare) continue;
      ++lanes[lane.nic];
      up[lane.nic] += lane.up;
    }
  }
  for (uint32_t i = 0; i < nic_count(); ++i) {
    fp_plugin_device* record = telemetry_.device(i);
    RecordChange<fp_plugin_device> change(record);
    record->avoided = nics_.at(i).avoided;
    record->lanes = lanes[i];
    record->lanes_up = up[i];
  }
}

void PluginEngine::set_detail(uint32_t level) {
  detail_.store(level);
  std::lock_guard<std::mutex> lock(profilers_lock_);
  for (Profiler* profiler : profilers_) profiler->set_level(level);
}

void PluginEngine::add_profiler(Profiler* profiler) {
  std::lock_guard<std::mutex> lock(profilers_lock_);
  profilers_.push_back(profiler);
  profiler->set_level(detail_.load());
}

void PluginEngine::remove_profiler(Profiler* profiler) {
  std::lock_guard<std::mutex> lock(profilers_lock_);
  profilers_.erase(std::remove(profilers_.begin(), profilers_.end(), profiler), profilers_.end());
}

}  // namespace fabricpulse
