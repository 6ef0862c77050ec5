#include "engine.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "collectives.h"
#include "control/server.h"
#include "tcp/tcp_lane.h"

namespace fabricpulse {
namespace {

constexpr uint64_t kHandshakeNs =
    1'000'000'000;  // a lane that is not made by then is given up, and tried again
constexpr int kBusyTickMs = 10, kIdleTickMs = 50, kEmptyTickMs = 250;
constexpr uint64_t kLookNs = 1'000'000'000;  // links and clock page are looked at this often without an event
constexpr uint64_t kPrimaryGraceNs = 300'000'000;  // connect() waits so long for the lane that NCCL chose
constexpr uint32_t kRefusalsDead = 3;  // in a row, without any lane: nobody listens there any more
constexpr uint64_t kProbeAfterNs = 300'000'000, kProbeEveryNs = 200'000'000;
constexpr size_t kMaxIncoming = 1024;

enum Tag : uint64_t { kTagWake = 1, kTagLinks, kTagListener, kTagIncoming, kTagDial, kTagControl };
constexpr uint64_t tag(Tag kind, uint64_t id) { return (static_cast<uint64_t>(kind) << 56) | id; }

void random_bytes(void* out, size_t size) {
  if (getrandom(out, size, 0) == static_cast<ssize_t>(size)) return;
  int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  bool filled = fd >= 0 && read(fd, out, size) == static_cast<ssize_t>(size);
  if (fd >= 0) ::close(fd);
  if (!filled) throw std::bad_alloc();
}

std::mutex instance_lock;
std::weak_ptr<Engine> instance;
std::vector<NicInfo>
    first_scan;  // NCCL asks for the devices once: their numbers must not change when it starts anew
Engine* exit_engine = nullptr;
pid_t exit_pid = 0;

// The job ends without finalize more often than with it: leave no files behind.
__attribute__((destructor)) void at_exit() {
  if (exit_engine != nullptr && exit_pid == getpid()) exit_engine->remove_files();
}

}  // namespace

struct Engine::Dial {
  std::shared_ptr<Connection> connection;
  bool probe = false;
  uint32_t lane = 0, epoch = 0;
  int fd = -1;
  uint64_t deadline_ns = 0;
  bool connected = false;
  Hello hello;
  HelloReply reply;
  size_t received = 0;
};

struct Engine::Incoming {
  int fd = -1;
  uint32_t nic = 0;
  uint64_t deadline_ns = 0;
  Hello hello;
  size_t received = 0;
};

std::shared_ptr<Engine> Engine::acquire(LogFunction log, std::string* error) {
  std::lock_guard<std::mutex> lock(instance_lock);
  if (auto engine = instance.lock()) {
    if (log != nullptr) engine->log_.store(log);
    return engine;
  }
  std::string complaint;
  Config config = Config::from_environment(&complaint);
  std::shared_ptr<Engine> engine(new Engine(log, config));
  if (!complaint.empty()) engine->warn(complaint);
  if (!engine->start(error)) return nullptr;
  instance = engine;
  exit_engine = engine.get();
  exit_pid = getpid();
  return engine;
}

Engine::Engine(LogFunction log, const Config& config) : config_(config), log_(log) {
  detail_ = config_.detail;
  random_bytes(identity_.id, sizeof(identity_.id));
  identity_.pid = static_cast<uint32_t>(getpid());
  identity_.rank = config_.rank;
  snprintf(identity_.host, sizeof(identity_.host), "%s", config_.host.c_str());
  for (auto& word : clock_words_) word.store(0, std::memory_order_relaxed);
}

bool Engine::start(std::string* error) {
  int clock_error = 0;
  virtual_clock_ = fp_virtual_clock_open(&clock_error);
  if (clock_error) {
    *error = std::string("the virtual clock named by ") + FP_VIRTUAL_CLOCK_ENV + " cannot be read";
    return false;
  }
  if (first_scan.empty()) first_scan = scan_nics(config_);
  for (const NicInfo& info : first_scan) {
    auto nic = std::make_unique<Nic>();
    static_cast<NicInfo&>(*nic) = info;
    nic->link_up = nic_link_up(info.name);
    nics_.push_back(std::move(nic));
  }
  if (nics_.empty()) {
    *error = config_.nics.empty()
                 ? "no NIC of this host is up and has an address; name some by FABRICPULSE_NICS"
                 : "no NIC of this host matches FABRICPULSE_NICS=" + config_.nics;
    return false;
  }
  std::string complaint;
  telemetry_.open(config_, kPluginVersion, &complaint);
  if (!complaint.empty()) warn(complaint);
  telemetry_.header()->start_host_ns = host_clock();
  for (uint32_t i = 0; i < nics_.size(); ++i) {
    fp_plugin_device* record = telemetry_.device(i);
    RecordChange<fp_plugin_device> change(record);
    record->state = nics_[i]->link_up ? 1 : 2;
    snprintf(record->name, sizeof(record->name), "%s", nics_[i]->name.c_str());
    record->speed_mbps = nics_[i]->speed_mbps;
  }
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  links_ = open_link_events();
  if (epoll_ < 0 || wake_ < 0) {
    *error = std::string("cannot make the keeper's descriptors: ") + strerror(errno);
    return false;
  }
  if (!open_listeners(error)) return false;
  watch(wake_, tag(kTagWake, 0), EPOLLIN);
  if (links_ >= 0) watch(links_, tag(kTagLinks, 0), EPOLLIN);
  control_ = std::make_unique<ControlServer>(this);
  complaint.clear();
  control_->open(&complaint);
  if (!complaint.empty()) warn(complaint);
  if (control_->fd() >= 0) watch(control_->fd(), tag(kTagControl, 0), EPOLLIN);
  refresh_clock(now());
  // NCCL's signals are for NCCL's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  keeper_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(keeper_.native_handle(), "fabricpulse");
  std::string names;
  for (auto& nic : nics_) names += (names.empty() ? "" : ", ") + nic->name;
  info("fabricpulse " + std::string(kPluginVersion) + ": NICs " + names + ", control socket " +
       (control_->path().empty() ? "none" : control_->path()));
  return true;
}

Engine::~Engine() {
  stop_ = true;
  if (keeper_.joinable()) {
    uint64_t one = 1;
    (void)!write(wake_, &one, sizeof(one));
    keeper_.join();
  }
  if (exit_engine == this) exit_engine = nullptr;
  control_.reset();
  for (auto& entry : dials_) ::close(entry.second->fd);
  for (auto& entry : incoming_) ::close(entry.second->fd);
  dials_.clear();
  connections_.clear();
  for (auto& nic : nics_)
    if (nic->listen_fd >= 0) ::close(nic->listen_fd);
  for (int fd : {epoll_, wake_, links_})
    if (fd >= 0) ::close(fd);
  if (clock_page_ != nullptr) munmap(const_cast<fp_clock_page*>(clock_page_), sizeof(fp_clock_page));
}

void Engine::remove_files() {
  if (!telemetry_.path().empty()) unlink(telemetry_.path().c_str());
  if (control_ && !control_->path().empty()) unlink(control_->path().c_str());
}

void Engine::add_communicator(int change) {
  std::lock_guard<std::mutex> lock(lock_);
  communicators_ += change;
  telemetry_.header()->communicators = static_cast<uint32_t>(communicators_);
}

void Engine::called(const char* abi) {
  fp_plugin_header* header = telemetry_.header();
  snprintf(header->abi, sizeof(header->abi), "%s", abi);
}

uint64_t Engine::now() const {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(ts.tv_nsec);
}

void Engine::warn(const std::string& text) {
  if (LogFunction log = log_.load())
    log(static_cast<int>(LogLevel::kWarn), ~0ul, "fabricpulse", 0, "NET/FABRICPULSE: %s", text.c_str());
}

void Engine::info(const std::string& text) {
  if (LogFunction log = log_.load())
    log(static_cast<int>(LogLevel::kInfo), ~0ul, "fabricpulse", 0, "NET/FABRICPULSE: %s", text.c_str());
}

void Engine::wake() {
  if (woken_.exchange(true)) return;
  uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
}

// ---------------------------------------------------------------------------------------------------- clock

void Engine::refresh_clock(uint64_t now) {
  if (elapsed(now, clock_looked_ns_) >= kLookNs || clock_looked_ns_ == 0) {
    clock_looked_ns_ = now;
    std::string path = config_.run_dir + "/clock";
    struct stat status;
    if (stat(path.c_str(), &status) != 0 || static_cast<size_t>(status.st_size) < sizeof(fp_clock_page)) {
      if (clock_page_ != nullptr) munmap(const_cast<fp_clock_page*>(clock_page_), sizeof(fp_clock_page));
      clock_page_ = nullptr;
    } else if (clock_page_ == nullptr || status.st_ino != clock_inode_) {
      if (clock_page_ != nullptr) munmap(const_cast<fp_clock_page*>(clock_page_), sizeof(fp_clock_page));
      clock_page_ = nullptr;
      int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (fd >= 0) {
        void* map = mmap(nullptr, sizeof(fp_clock_page), PROT_READ, MAP_SHARED, fd, 0);
        ::close(fd);
        if (map != MAP_FAILED) {
          auto* page = static_cast<const fp_clock_page*>(map);
          if (page->magic == FP_CLOCK_PAGE_MAGIC && page->version == FP_CLOCK_PAGE_VERSION) {
            clock_page_ = page;
            clock_inode_ = status.st_ino;
          } else {
            munmap(map, sizeof(fp_clock_page));
          }
        }
      }
    }
  }
  fp_clock_page copy;
  bool valid = clock_page_ != nullptr && fp_clock_page_read(clock_page_, &copy, 100) == 0;
  if (valid) {
    fp_fleet_time time = fp_clock_convert(&copy, host_clock());
    telemetry_.header()->clock_status = time.status;
    valid = time.status == FP_CLOCK_SYNCHRONIZED || time.status == FP_CLOCK_HOLDOVER;
  } else {
    telemetry_.header()->clock_status = FP_CLOCK_UNKNOWN;
  }
  if (valid) {
    uint64_t words[kClockWords];
    memcpy(words, &copy, sizeof(words));
    clock_sequence_.fetch_add(1, std::memory_order_acq_rel);
    for (size_t i = 0; i < kClockWords; ++i) clock_words_[i].store(words[i], std::memory_order_release);
    clock_sequence_.fetch_add(1, std::memory_order_release);
  }
  clock_valid_.store(valid, std::memory_order_release);
}

bool Engine::fleet_clock(int64_t* fleet_ns) const {
  if (!clock_valid_.load(std::memory_order_acquire)) return false;
  for (int tries = 0; tries < 4; ++tries) {
    uint32_t before = clock_sequence_.load(std::memory_order_acquire);
    if (before & 1) continue;
    uint64_t words[kClockWords];
    for (size_t i = 0; i < kClockWords; ++i) words[i] = clock_words_[i].load(std::memory_order_acquire);
    if (clock_sequence_.load(std::memory_order_acquire) != before) continue;
    fp_clock_page copy;
    memcpy(&copy, words, sizeof(copy));
    fp_fleet_time time = fp_clock_convert(&copy, host_clock());
    if (time.status != FP_CLOCK_SYNCHRONIZED && time.status != FP_CLOCK_HOLDOVER) return false;
    *fleet_ns = time.fleet_ns;
    return true;
  }
  return false;
}

// ----------------------------------------------------------------------------------------------------
// listening

bool Engine::open_nic_listener(Nic* nic, uint16_t port) {
  sockaddr_storage address;
  socklen_t size = to_sockaddr(nic->address, port, &address);
  int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Answers leave by the NIC they are for, whatever the routing table prefers. Without the right to it, by
  // the table.
  (void)!setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, nic->name.c_str(),
                    static_cast<socklen_t>(nic->name.size() + 1));
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, 512) != 0) {
    ::close(fd);
    return false;
  }
  nic->listen_fd = fd;
  return true;
}

// One port on all NICs, so that a handle needs to say it once.
bool Engine::open_listeners(std::string* error) {
  for (int tries = 0; tries < 20; ++tries) {
    uint16_t port = 0;
    bool all = true;
    for (auto& nic : nics_) {
      if (!open_nic_listener(nic.get(), port)) {
        *error = "cannot listen on " + nic->name + ": " + strerror(errno);
        all = false;
        break;
      }
      if (port == 0) {
        sockaddr_storage bound;
        socklen_t size = sizeof(bound);
        getsockname(nic->listen_fd, reinterpret_cast<sockaddr*>(&bound), &size);
        port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                 : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
      }
    }
    if (all) {
      port_ = port;
      for (uint32_t i = 0; i < nics_.size(); ++i) watch(nics_[i]->listen_fd, tag(kTagListener, i), EPOLLIN);
      return true;
    }
    for (auto& nic : nics_) {
      if (nic->listen_fd >= 0) ::close(nic->listen_fd);
      nic->listen_fd = -1;
    }
  }
  return false;
}

std::shared_ptr<Listener> Engine::listen(uint32_t device, uint64_t communicator, Handle* handle) {
  auto listener = std::make_shared<Listener>();
  random_bytes(listener->token, sizeof(listener->token));
  listener->device = device;
  listener->communicator = communicator;
  *handle = Handle{};
  handle->magic = kHandleMagic;
  memcpy(handle->token, listener->token, sizeof(handle->token));
  handle->port = port_;
  bool v4 =
      std::all_of(nics_.begin(), nics_.end(), [](const auto& nic) { return is_mapped_v4(nic->address); });
  handle->v4 = v4;
  size_t each = v4 ? 4 : 16, room = sizeof(handle->addresses) / each;
  // More NICs than room (IPv6 only): the listening one must be among them.
  uint32_t first = device < room ? 0 : static_cast<uint32_t>(device - room + 1);
  for (uint32_t i = first; i < nics_.size() && handle->count < room; ++i)
    memcpy(handle->addresses + each * handle->count++, nics_[i]->address + (v4 ? 12 : 0), each);
  handle->device = static_cast<uint8_t>(device - first);
  std::lock_guard<std::mutex> lock(lock_);
  listeners_.erase(std::remove_if(listeners_.begin(), listeners_.end(), [](auto& l) { return l.expired(); }),
                   listeners_.end());
  listeners_.push_back(listener);
  return listener;
}

void Engine::close_listener(const std::shared_ptr<Listener>& listener) {
  std::deque<std::shared_ptr<Receiver>> orphans;
  {
    std::lock_guard<std::mutex> lock(lock_);
    orphans.swap(listener->waiting);
    listeners_.erase(std::remove_if(listeners_.begin(), listeners_.end(),
                                    [&](auto& l) { return l.expired() || l.lock() == listener; }),
                     listeners_.end());
  }
  for (auto& orphan : orphans) close(orphan);
}

std::shared_ptr<Receiver> Engine::accept(const std::shared_ptr<Listener>& listener) {
  std::lock_guard<std::mutex> lock(lock_);
  if (listener->waiting.empty()) return nullptr;
  auto receiver = listener->waiting.front();
  receiver->enter();
  bool ready = receiver->lanes_up() > 0;
  receiver->leave();
  if (!ready) return nullptr;
  listener->waiting.pop_front();
  return receiver;
}

std::shared_ptr<Sender> Engine::connect(uint32_t device, uint64_t communicator, Handle* handle,
                                        std::string* error) {
  if (handle->magic != kHandleMagic || handle->count == 0 || handle->device >= handle->count) {
    *error = "the handle does not come from this plugin; all hosts must use the same version of it";
    return nullptr;
  }
  if (handle->cookie == 0) {
    uint32_t local = nic_count(), remote = handle->count;
    std::vector<WireNic> peer(remote);
    size_t each = handle->v4 ? 4 : 16;
    for (uint32_t i = 0; i < remote; ++i) {
      if (handle->v4) peer[i].address[10] = peer[i].address[11] = 0xff;
      memcpy(peer[i].address + (handle->v4 ? 12 : 0), handle->addresses + each * i, each);
    }
    // The pair that NCCL chose, then rail to rail over the other NICs, then across.
    std::vector<std::pair<uint32_t, uint32_t>> lanes;
    uint32_t shift = handle->device + local * remote - device % remote;
    for (uint32_t across = 0; across < remote; ++across)
      for (uint32_t k = 0; k < local; ++k) {
        uint32_t nic = (device + k) % local, peer_nic = (nic + shift + across) % remote;
        if (k == 0 && across == 0) peer_nic = handle->device;
        if (lanes.size() < config_.max_lanes &&
            is_mapped_v4(nics_[nic]->address) == is_mapped_v4(peer[peer_nic].address))
          lanes.emplace_back(nic, peer_nic);
      }
    if (lanes.empty()) {
      *error = "no NIC of this host has an address of the same family as the peer's";
      return nullptr;
    }
    uint64_t id = 0;
    while (id == 0) random_bytes(&id, sizeof(id));
    auto sender = std::make_shared<Sender>(this, id, device, communicator, lanes);
    PeerRoute route;
    route.port = handle->port;
    memcpy(route.token, handle->token, sizeof(route.token));
    route.nics = peer;
    {
      std::lock_guard<std::mutex> lock(lock_);
      connections_[id] = sender;
      routes_[id] = std::move(route);
    }
    handle->cookie = id;
    wake();
    return nullptr;
  }
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard<std::mutex> lock(lock_);
    auto found = connections_.find(handle->cookie);
    if (found != connections_.end()) connection = found->second;
  }
  auto sender = std::dynamic_pointer_cast<Sender>(connection);
  if (!sender) {
    *error = "the connection that this handle began is gone";
    return nullptr;
  }
  Entered entered(sender.get());
  if (sender->broken()) {
    *error = sender->lost_reason();
    return nullptr;
  }
  bool primary = sender->lanes()[0].up;
  bool grace_over = elapsed(now(), sender->lanes()[0].state_since_ns) > kPrimaryGraceNs;
  if (sender->lanes_up() == 0 || (!primary && !grace_over)) return nullptr;
  return sender;
}

void Engine::close(const std::shared_ptr<Connection>& connection) {
  {
    Entered entered(connection.get());
    connection->close(now());
  }
  std::lock_guard<std::mutex> lock(lock_);
  connections_.erase(connection->id());
  routes_.erase(connection->id());
}

std::vector<std::shared_ptr<Connection>> Engine::connections() {
  std::lock_guard<std::mutex> lock(lock_);
  std::vector<std::shared_ptr<Connection>> all;
  all.reserve(connections_.size());
  for (auto& entry : connections_) all.push_back(entry.second);
  return all;
}

Engine::Nic* Engine::find_nic(const std::string& name, uint32_t* index) {
  for (uint32_t i = 0; i < nics_.size(); ++i) {
    if (nics_[i]->name != name) continue;
    *index = i;
    return nics_[i].get();
  }
  return nullptr;
}

void Engine::set_detail(uint32_t level) {
  detail_.store(level);
  std::lock_guard<std::mutex> lock(profilers_lock_);
  for (Profiler* profiler : profilers_) profiler->set_level(level);
}

void Engine::add_profiler(Profiler* profiler) {
  std::lock_guard<std::mutex> lock(profilers_lock_);
  profilers_.push_back(profiler);
  profiler->set_level(detail_.load());
}

void Engine::remove_profiler(Profiler* profiler) {
  std::lock_guard<std::mutex> lock(profilers_lock_);
  profilers_.erase(std::remove(profilers_.begin(), profilers_.end(), profiler), profilers_.end());
}

void Engine::set_avoided(uint32_t nic, bool avoided) {
  nics_[nic]->avoided = avoided;
  fp_plugin_device* record = telemetry_.device(nic);
  RecordChange<fp_plugin_device> change(record);
  record->avoided = avoided;
}

// ---------------------------------------------------------------------------------------------------- keeper

void Engine::watch(int fd, uint64_t data, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
}

void Engine::unwatch(int fd) { epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr); }

void Engine::run() {
  uint64_t last = now(), next_tick = 0;
  int period = kEmptyTickMs;
  while (!stop_) {
    try {
      epoll_event events[64];
      uint64_t before = now();
      int wait = before >= next_tick ? 0 : static_cast<int>((next_tick - before + 999'999) / 1'000'000);
      int count = epoll_wait(epoll_, events, 64, wait);
      uint64_t at = now();
      bool tick_now = at >= next_tick;
      for (int i = 0; i < count; ++i) {
        uint64_t id = events[i].data.u64 & ((UINT64_C(1) << 56) - 1);
        switch (static_cast<Tag>(events[i].data.u64 >> 56)) {
          case kTagWake: {
            uint64_t drained;
            (void)!read(wake_, &drained, sizeof(drained));
            woken_ = false;
            tick_now = true;
            break;
          }
          case kTagLinks:
            if (drain_link_events(links_)) look_at_links(at);
            break;
          case kTagListener:
            accept_peers(static_cast<uint32_t>(id), at);
            break;
          case kTagIncoming:
            serve_incoming(id, at);
            break;
          case kTagDial:
            serve_dial(id, at);
            break;
          case kTagControl:
            control_->serve(
                id, [this](int fd, uint64_t client) { watch(fd, tag(kTagControl, client), EPOLLIN); });
            break;
        }
      }
      if (!tick_now) continue;
      at = now();
      tick(at, at - last);
      last = at;
      bool any = false, busy = false;
      for (auto& connection : connections()) {
        any = true;
        Entered entered(connection.get());
        busy |= connection->requests() > 0 || connection->lanes_up() == 0;
      }
      period = busy || !dials_.empty() ? kBusyTickMs : any ? kIdleTickMs : kEmptyTickMs;
      next_tick = now() + static_cast<uint64_t>(period) * 1'000'000;
    } catch (const std::exception& error) {
      warn(std::string("keeper: ") + error.what());  // out of memory: the next round may have some
    }
  }
}

void Engine::tick(uint64_t now, uint64_t since_last) {
  if (elapsed(now, links_looked_ns_) >= kLookNs) look_at_links(now);
  refresh_clock(now);
  for (auto& connection : connections()) {
    {
      Entered entered(connection.get());
      if (connection->closed()) continue;
      connection->tick(now, since_last);
    }
    start_dials(connection, now);
    judge_peer(connection, now);
  }
  drop_late_handshakes(now);
  publish(now);
}

void Engine::publish(uint64_t now) {
  fp_plugin_header* header = telemetry_.header();
  __atomic_store_n(&header->heartbeat_mono_ns, now, __ATOMIC_RELEASE);
  if (elapsed(now, published_ns_) < 100'000'000) return;
  published_ns_ = now;
  uint32_t lanes[kMaxNics] = {}, up[kMaxNics] = {};
  for (auto& connection : connections()) {
    Entered entered(connection.get());
    for (const Lane& lane : connection->lanes()) {
      if (!lane.named || lane.nic >= kMaxNics) continue;
      ++lanes[lane.nic];
      up[lane.nic] += lane.up;
    }
  }
  for (uint32_t i = 0; i < nics_.size(); ++i) {
    fp_plugin_device* record = telemetry_.device(i);
    RecordChange<fp_plugin_device> change(record);
    record->lanes = lanes[i];
    record->lanes_up = up[i];
  }
}

void Engine::look_at_links(uint64_t now) {
  links_looked_ns_ = now;
  for (uint32_t i = 0; i < nics_.size(); ++i) {
    Nic& nic = *nics_[i];
    bool up = nic_link_up(nic.name);
    if (nic.link_up.exchange(up) == up) continue;
    if (!up) ++nic.link_downs;
    EventFields fields{up ? FP_EVENT_LINK_UP : FP_EVENT_LINK_DOWN};
    fields.device = i;
    telemetry_.event(fields, host_clock(), now);
    {
      fp_plugin_device* record = telemetry_.device(i);
      RecordChange<fp_plugin_device> change(record);
      record->state = up ? 1 : 2;
      record->link_downs = nic.link_downs;
    }
    for (auto& connection : connections()) {
      Entered entered(connection.get());
      if (!up) connection->fail_nic(i, FP_REASON_LINK_DOWN, now);
      if (up && connection->direction() == Direction::kSend)
        static_cast<Sender*>(connection.get())->dial_soon(i, now);
    }
  }
}

void Engine::fill_nics(WireNic* nics, uint32_t* count) const {
  *count = nic_count();
  for (uint32_t i = 0; i < *count; ++i) {
    snprintf(nics[i].device, sizeof(nics[i].device), "%s", nics_[i]->name.c_str());
    memcpy(nics[i].address, nics_[i]->address, 16);
  }
}

// ----------------------------------------------------------------------------------------------------
// handshakes

void Engine::accept_peers(uint32_t nic, uint64_t now) {
  for (int n = 0; n < 64; ++n) {
    int fd = accept4(nics_[nic]->listen_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    if (incoming_.size() >= kMaxIncoming) {
      ::close(fd);
      continue;
    }
    (void)!setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, nics_[nic]->name.c_str(),
                      static_cast<socklen_t>(nics_[nic]->name.size() + 1));
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    uint64_t id = next_id_++;
    auto incoming = std::make_unique<Incoming>();
    incoming->fd = fd;
    incoming->nic = nic;
    incoming->deadline_ns = now + kHandshakeNs;
    incoming_[id] = std::move(incoming);
    watch(fd, tag(kTagIncoming, id), EPOLLIN);
  }
}

void Engine::serve_incoming(uint64_t id, uint64_t now) {
  auto found = incoming_.find(id);
  if (found == incoming_.end()) return;
  Incoming* incoming = found->second.get();
  auto* into = reinterpret_cast<uint8_t*>(&incoming->hello);
  ssize_t got =
      recv(incoming->fd, into + incoming->received, sizeof(Hello) - incoming->received, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got > 0) {
    incoming->received += static_cast<size_t>(got);
    if (incoming->received < sizeof(Hello)) return;
    unwatch(incoming->fd);
    if (hello_plausible(&incoming->hello)) {
      answer(incoming, now);
      incoming_.erase(found);
      return;
    }
  }
  ::close(incoming->fd);
  incoming_.erase(found);
}

// Decides about a hello; takes over or closes its socket.
void Engine::answer(Incoming* incoming, uint64_t now) {
  const Hello& hello = incoming->hello;
  HelloReply reply;
  reply.status = HelloStatus::kUnknown;
  reply.epoch = hello.epoch;
  reply.process = identity_;
  reply.device = incoming->nic;
  fill_nics(reply.nics, &reply.nic_count);
  std::shared_ptr<Receiver> receiver;
  if (hello.version != kWireVersion) {
    reply.status = HelloStatus::kVersion;
  } else if (hello.kind == HelloKind::kProbe) {
    std::lock_guard<std::mutex> lock(lock_);
    bool ours = memcmp(hello.token, identity_.id, sizeof(identity_.id)) == 0;
    if (ours && connections_.count(hello.connection)) reply.status = HelloStatus::kOk;
  } else {
    std::lock_guard<std::mutex> lock(lock_);
    auto known = connections_.find(hello.connection);
    if (known != connections_.end()) {
      auto& route = routes_[hello.connection];
      if (memcmp(route.token, hello.token, sizeof(route.token)) == 0)
        receiver = std::dynamic_pointer_cast<Receiver>(known->second);
    } else {
      for (auto& weak : listeners_) {
        auto listener = weak.lock();
        if (!listener || memcmp(listener->token, hello.token, sizeof(hello.token)) != 0) continue;
        receiver = std::make_shared<Receiver>(this, hello.connection, listener->device,
                                              listener->communicator, std::max<uint32_t>(hello.lanes, 1));
        PeerRoute route;
        route.port = hello.listen_port;
        memcpy(route.token, hello.token, sizeof(route.token));
        route.nics.assign(hello.nics, hello.nics + hello.nic_count);
        connections_[hello.connection] = receiver;
        routes_[hello.connection] = std::move(route);
        listener->waiting.push_back(receiver);
        receiver->enter();
        receiver->set_peer(hello.process, hello.nics, hello.nic_count);
        receiver->leave();
        break;
      }
    }
  }
  if (!receiver) {
    (void)!send(incoming->fd, &reply, sizeof(reply), MSG_DONTWAIT | MSG_NOSIGNAL);
    ::close(incoming->fd);
    return;
  }
  Entered entered(receiver.get());
  reply.status = receiver->hello(hello, incoming->nic, &reply.held, now);
  bool sent = send(incoming->fd, &reply, sizeof(reply), MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(reply);
  if (reply.status != HelloStatus::kOk || !sent) {
    ::close(incoming->fd);
    return;
  }
  receiver->attach(hello.lane, hello.epoch, make_tcp_lane(incoming->fd), now);
}

int Engine::dial_socket(uint32_t nic, const uint8_t address[16], uint16_t port, int* error) {
  sockaddr_storage to, from;
  socklen_t to_size = to_sockaddr(address, port, &to);
  socklen_t from_size = to_sockaddr(nics_[nic]->address, 0, &from);
  int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    *error = errno;
    return -1;
  }
  const std::string& name = nics_[nic]->name;
  (void)!setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name.c_str(), static_cast<socklen_t>(name.size() + 1));
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (bind(fd, reinterpret_cast<sockaddr*>(&from), from_size) != 0 ||
      (::connect(fd, reinterpret_cast<sockaddr*>(&to), to_size) != 0 && errno != EINPROGRESS)) {
    *error = errno;
    ::close(fd);
    return -1;
  }
  return fd;
}

void Engine::start_dials(const std::shared_ptr<Connection>& connection, uint64_t now) {
  if (connection->direction() != Direction::kSend) return;
  auto* sender = static_cast<Sender*>(connection.get());
  PeerRoute route;
  {
    std::lock_guard<std::mutex> lock(lock_);
    auto found = routes_.find(connection->id());
    if (found == routes_.end()) return;
    route = found->second;
  }
  for (uint32_t n = 0; n < kMaxLanes; ++n) {
    uint32_t lane = 0, epoch = 0, nic = 0, remote = 0, lanes = 0;
    bool last_resort = false;
    {
      Entered entered(sender);
      if (!sender->want_dial(now, &lane, &epoch, &last_resort)) return;
      nic = sender->lanes()[lane].nic;
      remote = sender->lanes()[lane].remote_nic;
      lanes = static_cast<uint32_t>(sender->lanes().size());
    }
    int error = 0;
    int fd = dial_socket(nic, route.nics[remote].address, route.port, &error);
    uint64_t id = next_id_++;
    auto dial = std::make_unique<Dial>();
    dial->connection = connection;
    dial->lane = lane;
    dial->epoch = epoch;
    dial->fd = fd;
    dial->deadline_ns = now + kHandshakeNs;
    Hello& hello = dial->hello;
    hello.last_resort = last_resort;
    hello.listen_port = port_;
    memcpy(hello.token, route.token, sizeof(hello.token));
    hello.connection = connection->id();
    hello.lane = lane;
    hello.lanes = lanes;
    hello.epoch = epoch;
    hello.primary_device = connection->device();
    hello.process = identity_;
    hello.device = nic;
    fill_nics(hello.nics, &hello.nic_count);
    dials_[id] = std::move(dial);
    if (fd < 0) {
      end_dial(id, error, now);
    } else {
      watch(fd, tag(kTagDial, id), EPOLLOUT);
    }
  }
}

void Engine::start_probe(const std::shared_ptr<Receiver>& receiver, uint64_t now) {
  PeerRoute route;
  {
    std::lock_guard<std::mutex> lock(lock_);
    auto found = routes_.find(receiver->id());
    if (found == routes_.end() || found->second.nics.empty()) return;
    route = found->second;
  }
  // Another pair of NICs each time.
  uint64_t id = next_id_++;
  uint32_t nic = static_cast<uint32_t>(id % nics_.size());
  uint32_t remote = static_cast<uint32_t>((id / nics_.size()) % route.nics.size());
  auto dial = std::make_unique<Dial>();
  dial->connection = receiver;
  dial->probe = true;
  dial->deadline_ns = now + kHandshakeNs;
  dial->hello.kind = HelloKind::kProbe;
  {
    Entered entered(receiver.get());
    memcpy(dial->hello.token, receiver->peer().id, sizeof(dial->hello.token));
    receiver->probing = true;
  }
  dial->hello.connection = receiver->id();
  dial->hello.process = identity_;
  fill_nics(dial->hello.nics, &dial->hello.nic_count);
  int error = 0;
  int fd = dial->fd = dial_socket(nic, route.nics[remote].address, route.port, &error);
  dials_[id] = std::move(dial);
  if (fd < 0) {
    end_dial(id, error, now);
  } else {
    watch(fd, tag(kTagDial, id), EPOLLOUT);
  }
}

void Engine::serve_dial(uint64_t id, uint64_t now) {
  auto found = dials_.find(id);
  if (found == dials_.end()) return;
  Dial* dial = found->second.get();
  if (!dial->connected) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(dial->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0 &&
        send(dial->fd, &dial->hello, sizeof(Hello), MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof(Hello))
      error = errno ? errno : EPIPE;
    if (error != 0) {
      end_dial(id, error, now);
      return;
    }
    dial->connected = true;
    watch(dial->fd, tag(kTagDial, id), EPOLLIN);
    return;
  }
  auto* into = reinterpret_cast<uint8_t*>(&dial->reply);
  ssize_t got = recv(dial->fd, into + dial->received, sizeof(HelloReply) - dial->received, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    end_dial(id, got == 0 ? ECONNRESET : errno, now);
    return;
  }
  dial->received += static_cast<size_t>(got);
  if (dial->received < sizeof(HelloReply)) return;
  end_dial(id, reply_plausible(&dial->reply) ? 0 : EPROTO, now);
}

// error 0: dial->reply holds the answer.
void Engine::end_dial(uint64_t id, int error, uint64_t now) {
  auto found = dials_.find(id);
  std::unique_ptr<Dial> dial = std::move(found->second);
  dials_.erase(found);
  if (dial->fd >= 0) unwatch(dial->fd);
  auto& connection = dial->connection;
  Entered entered(connection.get());
  bool gone = error == 0 && dial->reply.status == HelloStatus::kUnknown;
  if (error == ECONNREFUSED) ++connection->refusals;
  if (error == 0 && !gone) connection->refusals = 0;
  if (dial->probe) {
    connection->probing = false;
    if (dial->fd >= 0) ::close(dial->fd);
    if (gone && connection->lanes_up() == 0)
      connection->peer_lost("the peer process has closed this connection", now);
    return;
  }
  auto* sender = static_cast<Sender*>(connection.get());
  std::unique_ptr<LaneTransport> transport;
  const HelloReply* reply = error == 0 ? &dial->reply : nullptr;
  if (reply != nullptr && !gone && !sender->peer_known())
    sender->set_peer(reply->process, reply->nics, reply->nic_count);
  if (reply != nullptr && reply->status == HelloStatus::kOk) {
    transport = make_tcp_lane(dial->fd);
  } else if (dial->fd >= 0) {
    ::close(dial->fd);
  }
  if (gone) {
    reply = nullptr;
    if (sender->lanes_up() == 0)
      sender->peer_lost("the peer process has closed this connection or its listener", now);
  }
  if (reply != nullptr && reply->status == HelloStatus::kVersion)
    sender->peer_lost("the peer runs another version of the plugin", now);
  sender->dialled(dial->lane, dial->epoch, std::move(transport), reply, now);
}

void Engine::drop_late_handshakes(uint64_t now) {
  std::vector<uint64_t> late;
  for (auto& entry : dials_)
    if (now >= entry.second->deadline_ns) late.push_back(entry.first);
  for (uint64_t id : late) {
    int fd = dials_[id]->fd;
    end_dial(id, ETIMEDOUT, now);
    (void)fd;
  }
  for (auto it = incoming_.begin(); it != incoming_.end();) {
    if (now >= it->second->deadline_ns) {
      unwatch(it->second->fd);
      ::close(it->second->fd);
      it = incoming_.erase(it);
    } else {
      ++it;
    }
  }
}

// Without any lane: is the peer unreachable for now, or gone?
void Engine::judge_peer(const std::shared_ptr<Connection>& connection, uint64_t now) {
  bool probe = false;
  {
    Entered entered(connection.get());
    if (connection->lost() || connection->closed() || connection->closed_by_peer() ||
        connection->lanes_up() > 0)
      return;
    uint64_t since = connection->no_lane_since();
    if (since == 0) return;
    if (connection->refusals >= kRefusalsDead) {
      connection->peer_lost("the peer process is gone (its host answers, nobody listens on its port)", now);
      return;
    }
    if (elapsed(now, since) >= config_.peer_timeout_ns) {
      connection->peer_lost("no lane to the peer for " +
                                std::to_string((elapsed(now, since)) / 1'000'000'000) +
                                " s (FABRICPULSE_PEER_TIMEOUT_S)",
                            now);
      return;
    }
    if (connection->direction() == Direction::kReceive && elapsed(now, since) >= kProbeAfterNs &&
        !connection->probing && now >= connection->next_probe_ns) {
      connection->next_probe_ns = now + kProbeEveryNs;
      probe = true;
    }
  }
  if (probe) start_probe(std::static_pointer_cast<Receiver>(connection), now);
}

}  // namespace fabricpulse
