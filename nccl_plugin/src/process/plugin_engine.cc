#include "process/plugin_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "control/server.h"
#include "process/collectives.h"
#include "process/handshakes.h"
#include "process/threads.h"

namespace fabricpulse {
namespace {

constexpr uint64_t kPrimaryGraceNs = 300'000'000;  // connect() waits so long for the lane that NCCL chose

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
  if (auto engine = instance.lock()) {
    if (log != nullptr) engine->log_.store(log);
    if (purpose == Purpose::kNet && !engine->open_listeners(error)) return nullptr;
    keep_devices(*engine);
    return engine;
  }
  std::string complaint;
  Config config = Config::from_environment(&complaint);
  std::shared_ptr<PluginEngine> engine(new PluginEngine(log, config));
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
  if (first_scan.empty()) first_scan = scan_nics(config_);
  std::string complaint;
  telemetry_.open(config_, kPluginVersion, &complaint);
  if (!complaint.empty()) warn(complaint);
  telemetry_.header()->start_host_ns = host_clock();
  for (const NicInfo& info : first_scan) add_nic(info);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  links_ = open_link_events();
  if (epoll_ < 0 || wake_ < 0) {
    *error = std::string("cannot make the service thread's descriptors: ") + strerror(errno);
    return false;
  }
  watch(wake_, PollSource::kWake, 0, EPOLLIN);
  if (links_ >= 0) watch(links_, PollSource::kLinks, 0, EPOLLIN);
  control_ = std::make_unique<ControlServer>(this);
  complaint.clear();
  control_->open(&complaint);
  if (!complaint.empty()) warn(complaint);
  handshakes_ = std::make_unique<Handshakes>(this);
  telemetry_.header()->clock_status = fleet_time_.refresh(now());
  service_thread_ = quiet_thread("fabricpulse", [this] { run(); });
  std::string names;
  for (const NicInfo& nic : first_scan) names += (names.empty() ? "" : ", ") + nic.name;
  info("fabricpulse " + std::string(kPluginVersion) + ": NICs " + names + ", control socket " +
       (control_->path().empty() ? "none" : control_->path()));
  return true;
}

PluginEngine::~PluginEngine() {
  stop_ = true;
  if (service_thread_.joinable()) {
    uint64_t one = 1;
    (void)!write(wake_, &one, sizeof(one));
    service_thread_.join();
  }
  if (exit_engine == this) exit_engine = nullptr;
  control_.reset();
  handshakes_.reset();
  connections_.clear();
  for (auto& nic : nics_)
    if (nic && nic->listen_fd >= 0) ::close(nic->listen_fd);
  for (int fd : {epoll_, wake_, links_})
    if (fd >= 0) ::close(fd);
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

uint64_t PluginEngine::now() const {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(ts.tv_nsec);
}

void PluginEngine::warn(const std::string& text) {
  if (LogFunction log = log_.load())
    log(static_cast<int>(LogLevel::kWarn), ~0ul, "fabricpulse", 0, "NET/FABRICPULSE: %s", text.c_str());
}

void PluginEngine::info(const std::string& text) {
  if (LogFunction log = log_.load())
    log(static_cast<int>(LogLevel::kInfo), ~0ul, "fabricpulse", 0, "NET/FABRICPULSE: %s", text.c_str());
}

void PluginEngine::wake() {
  if (woken_.exchange(true)) return;
  uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
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
  for (uint32_t i = 0; i < nics; ++i) v4 &= is_mapped_v4(nic_address(i).data());
  handle->v4 = v4;
  size_t each = v4 ? 4 : 16, room = sizeof(handle->addresses) / each;
  // More NICs than room (IPv6 only): the listening one must be among them.
  uint32_t first = device < room ? 0 : static_cast<uint32_t>(device - room + 1);
  for (uint32_t i = first; i < nics && handle->count < room; ++i)
    memcpy(handle->addresses + each * handle->count++, nic_address(i).data() + (v4 ? 12 : 0), each);
  handle->device = static_cast<uint8_t>(device - first);
  std::lock_guard<std::mutex> lock(lock_);
  listeners_.erase(std::remove_if(listeners_.begin(), listeners_.end(), [](auto& l) { return l.expired(); }),
                   listeners_.end());
  listeners_.push_back(listener);
  return listener;
}

void PluginEngine::close_listener(const std::shared_ptr<Listener>& listener) {
  std::deque<std::shared_ptr<RecvConnection>> orphans;
  {
    std::lock_guard<std::mutex> lock(lock_);
    orphans.swap(listener->waiting);
    listeners_.erase(std::remove_if(listeners_.begin(), listeners_.end(),
                                    [&](auto& l) { return l.expired() || l.lock() == listener; }),
                     listeners_.end());
  }
  for (auto& orphan : orphans) close(orphan);
}

std::shared_ptr<RecvConnection> PluginEngine::accept(const std::shared_ptr<Listener>& listener) {
  std::lock_guard<std::mutex> lock(lock_);
  auto ready = [](const std::shared_ptr<RecvConnection>& receiver) {
    ConnectionLock locked(receiver.get());
    // One whose peer has said goodbye may hold messages still; one whose peer is lost has an error to tell.
    return receiver->lanes_up() > 0 || receiver->closed_by_peer() || receiver->lost();
  };
  auto found = std::find_if(listener->waiting.begin(), listener->waiting.end(), ready);
  if (found == listener->waiting.end()) return nullptr;
  auto receiver = *found;
  listener->waiting.erase(found);
  return receiver;
}

std::shared_ptr<SendConnection> PluginEngine::connect(uint32_t device, uint64_t communicator, Handle* handle,
                                                      std::string* error) {
  size_t each = handle->v4 ? 4 : 16;
  if (handle->magic != kHandleMagic || handle->count == 0 || handle->device >= handle->count ||
      handle->count * each > sizeof(handle->addresses)) {
    *error = "the handle does not come from this plugin; all hosts must use the same version of it";
    return nullptr;
  }
  if (handle->cookie == 0) {
    uint32_t local = nic_count(), remote = handle->count;
    std::vector<WireNic> peer(remote);
    for (uint32_t i = 0; i < remote; ++i) {
      if (handle->v4) peer[i].address[10] = peer[i].address[11] = 0xff;
      memcpy(peer[i].address + (handle->v4 ? 12 : 0), handle->addresses + each * i, each);
    }
    std::vector<NicPair> lanes =
        plan_lanes({local, remote, device, handle->device, config_.max_lanes, config_.paths},
                   [&](NicPair pair) { return same_family(pair, peer); });
    if (lanes.empty()) {
      *error = "no NIC of this host has an address of the same family as the peer's";
      return nullptr;
    }
    uint64_t id = 0;
    while (id == 0) random_bytes(&id, sizeof(id));
    auto sender = std::make_shared<SendConnection>(this, id, device, communicator, lanes);
    sender->nics_changed(local, remote);
    PeerRoute route;
    route.port = handle->port;
    memcpy(route.token, handle->token, sizeof(route.token));
    route.nics = peer;
    {
      std::lock_guard<std::mutex> lock(lock_);
      connections_[{id, Direction::kSend}] = sender;
      routes_[{id, Direction::kSend}] = std::move(route);
    }
    handle->cookie = id;
    wake();
    return nullptr;
  }
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard<std::mutex> lock(lock_);
    auto found = connections_.find({handle->cookie, Direction::kSend});
    if (found != connections_.end()) connection = found->second;
  }
  auto sender = std::dynamic_pointer_cast<SendConnection>(connection);
  if (!sender) {
    *error = "the connection that this handle began is gone";
    return nullptr;
  }
  ConnectionLock locked(sender.get());
  if (sender->broken(now())) {
    *error = sender->lost_reason();
    return nullptr;
  }
  bool primary = sender->lanes()[0].up;
  bool grace_over = elapsed(now(), sender->lanes()[0].state_since_ns) > kPrimaryGraceNs;
  if (sender->lanes_up() == 0 || (!primary && !grace_over)) return nullptr;
  return sender;
}

bool PluginEngine::find_route(const Connection& connection, PeerRoute* route) {
  std::lock_guard<std::mutex> lock(lock_);
  auto found = routes_.find(key(connection));
  if (found == routes_.end()) return false;
  *route = found->second;
  return true;
}

void PluginEngine::refresh_route(const Connection& connection, const WireNic* nics, uint32_t count) {
  std::lock_guard<std::mutex> lock(lock_);
  auto found = routes_.find(key(connection));
  if (found == routes_.end()) return;
  // The numbers of NICs are the peer's own: a longer list is a newer one of the same if it goes on from it.
  std::vector<WireNic>& known = found->second.nics;
  if (count < known.size()) return;
  for (size_t i = 0; count > known.size() && i < known.size(); ++i)
    if (memcmp(known[i].address, nics[i].address, sizeof(known[i].address)) != 0) return;
  known.assign(nics, nics + count);
}

void PluginEngine::learn_nics(const Hello& hello) {
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard<std::mutex> lock(lock_);
    auto found = connections_.find({hello.connection, Direction::kSend});
    if (found == connections_.end()) return;
    connection = found->second;
  }
  refresh_route(*connection, hello.nics, hello.nic_count);
  ConnectionLock locked(connection.get());
  if (connection->peer_known() && hello.nic_count > connection->peer_nics().size())
    connection->set_peer(hello.process, hello.nics, hello.nic_count);
}

// Asked by a receiver that has lost all its lanes.
bool PluginEngine::has_send_connection(uint64_t connection) {
  std::lock_guard<std::mutex> lock(lock_);
  return connections_.count({connection, Direction::kSend}) > 0;
}

std::shared_ptr<RecvConnection> PluginEngine::receiver_for(const Hello& hello) {
  std::lock_guard<std::mutex> lock(lock_);
  auto known = connections_.find({hello.connection, Direction::kReceive});
  if (known != connections_.end()) {
    PeerRoute& known_route = routes_[{hello.connection, Direction::kReceive}];
    if (memcmp(known_route.token, hello.token, sizeof(hello.token)) != 0) return nullptr;
    known_route.nics.assign(hello.nics, hello.nics + hello.nic_count);
    return std::dynamic_pointer_cast<RecvConnection>(known->second);
  }
  for (auto& weak : listeners_) {
    auto listener = weak.lock();
    if (!listener || memcmp(listener->token, hello.token, sizeof(hello.token)) != 0) continue;
    auto receiver = std::make_shared<RecvConnection>(
        this, hello.connection, listener->device, listener->communicator, std::max<uint32_t>(hello.lanes, 1));
    PeerRoute route;
    route.port = hello.listen_port;
    memcpy(route.token, hello.token, sizeof(route.token));
    route.nics.assign(hello.nics, hello.nics + hello.nic_count);
    connections_[{hello.connection, Direction::kReceive}] = receiver;
    routes_[{hello.connection, Direction::kReceive}] = std::move(route);
    listener->waiting.push_back(receiver);
    receiver->lock();
    receiver->set_peer(hello.process, hello.nics, hello.nic_count);
    receiver->unlock();
    return receiver;
  }
  return nullptr;
}

void PluginEngine::close(const std::shared_ptr<Connection>& connection) {
  {
    ConnectionLock locked(connection.get());
    connection->close(now());
  }
  std::lock_guard<std::mutex> lock(lock_);
  connections_.erase(key(*connection));
  routes_.erase(key(*connection));
}

std::vector<std::shared_ptr<Connection>> PluginEngine::connections() {
  std::lock_guard<std::mutex> lock(lock_);
  std::vector<std::shared_ptr<Connection>> all;
  all.reserve(connections_.size());
  for (auto& entry : connections_) all.push_back(entry.second);
  return all;
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
