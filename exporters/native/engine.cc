#include "engine.h"

#include <fcntl.h>
#include <net/if.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace fabricpulse {
namespace {

constexpr std::size_t kPendingStamps = 1'024;  // a power of two; a tick of one port sends far fewer
constexpr int kStampPatienceTicks = 50;        // after that a TX stamp is lost
constexpr int kPacketsPerTick = 8'192;  // of one NIC; what is above waits in the kernel, then is dropped
constexpr std::size_t kEventsKept = 4'096;
constexpr std::size_t kTrainsPerBatch = 10;        // keeps the packets of one train close together
constexpr std::int64_t kClockStep = 1'000'000;     // ns between two ticks: slewing moves 5 us in that time
constexpr std::int64_t kTrainSettled = 1'000'000;  // ns after which a train gets no more packets, normally
constexpr std::int64_t kPlausibleOwd = 10'000'000'000;  // ns; beyond it a clock is wrong, not a path slow
constexpr std::uint32_t kLongGap = 200;  // trains; a longer gap says nothing about single paths

std::int64_t clock_ns(clockid_t id) {
  timespec t;
  clock_gettime(id, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

bool is_link_error(int error) {
  return error == ENETDOWN || error == ENETUNREACH || error == EHOSTUNREACH || error == ENODEV ||
         error == ENXIO || error == EADDRNOTAVAIL || error == EINVAL;
}

}  // namespace

std::uint64_t nic_identity(const std::string& host, const std::string& device) {
  static const SipKey key = {'f', 'a', 'b', 'r', 'i', 'c', 'p', 'u', 'l', 's', 'e', ' ', 'n', 'i', 'c', '1'};
  const std::string name = host + '\0' + device;
  return siphash24(key, reinterpret_cast<const std::uint8_t*>(name.data()), name.size());
}

Engine::Engine(const Settings& settings)
    : settings_(settings),
      attended_(3 * std::max<std::int64_t>(settings.tick_ns, 1)),
      random_(std::random_device{}()) {
  if (!(settings.rate > 0 && settings.rate <= 1'000))
    throw std::invalid_argument("rate must be in (0, 1000]");
  if (settings.paths < 1 || settings.paths > kMaxPaths)
    throw std::invalid_argument("paths must be in [1, 16]");
  if (settings.interval_ns < 100'000'000) throw std::invalid_argument("interval must be at least 100 ms");
  if (settings.dscp > 63) throw std::invalid_argument("dscp must be in [0, 63]");
  if (settings.port == 0 || settings.port + settings.paths > 65'536)
    throw std::invalid_argument("port and the source ports after it must be in [1, 65535]");
  if ((settings.ring_capacity & (settings.ring_capacity - 1)) != 0 || settings.ring_capacity == 0)
    throw std::invalid_argument("ring capacity must be a power of two");
  // At most one train to a peer goes out in a tick: even the longest tick must be shorter than a period.
  settings_.tick_ns =
      std::min<std::int64_t>(settings.tick_ns, static_cast<std::int64_t>(0.8e9 / settings.rate));
  attended_ = AttendedClock(3 * settings_.tick_ns);
  // The edges of a NIC are heard for the last time within one period, and judged within one tick.
  edge_interval_ =
      settings_.interval_ns + 2 * settings_.tick_ns + static_cast<std::int64_t>(1e9 / settings_.rate);

  // Counts up with wall time in steps of 16 ms: a restart has another epoch, and a later one.
  epoch_ = static_cast<std::uint32_t>(clock_ns(CLOCK_REALTIME) / 16'000'000);
  int error = 0;
  virtual_clock_ = fp_virtual_clock_open(&error);
  if (error)
    throw std::invalid_argument(std::string(FP_VIRTUAL_CLOCK_ENV) + " does not name a virtual clock");
  if (!settings.ring_path.empty()) {
    ring_ = std::make_unique<RingWriter>(settings.ring_path, settings.host, epoch_, settings.edge_capacity,
                                         settings.ring_capacity);
  }
  event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  control_fd_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (event_fd_ < 0 || control_fd_ < 0)
    throw std::system_error(errno, std::generic_category(), "probe engine");
  edges_.resize(settings.edge_capacity);
  attended_before_ = 0;
}

Engine::~Engine() {
  stop();
  if (clock_map_ != nullptr) munmap(clock_map_, sizeof(fp_clock_page));
  if (event_fd_ >= 0) close(event_fd_);
  if (control_fd_ >= 0) close(control_fd_);
}

void Engine::set_keys(const std::vector<SipKey>& keys) {
  if (keys.empty()) throw std::invalid_argument("at least one key is needed");
  std::vector<FleetKey> made;
  for (const SipKey& key : keys) made.push_back(make_fleet_key(key));
  std::lock_guard<PriorityMutex> lock(mutex_);
  keys_ = std::move(made);
}

std::vector<std::uint32_t> Engine::configure(const std::vector<NicSpec>& nics,
                                             const std::vector<EdgeSpec>& edges) {
  std::lock_guard<std::mutex> api(api_mutex_);
  // Everything that can fail comes first, on the side.
  std::vector<SocketAddress> addresses;
  for (const NicSpec& nic : nics) make_address(nic.address, settings_.port);
  for (const EdgeSpec& edge : edges) {
    if (edge.nic >= nics.size()) throw std::invalid_argument("an edge names a NIC that is not there");
    addresses.push_back(make_address(edge.address, settings_.port));
  }
  if (edges.size() > settings_.edge_capacity) {
    throw std::invalid_argument("more than " + std::to_string(settings_.edge_capacity) + " edges");
  }

  std::lock_guard<PriorityMutex> lock(mutex_);
  ++generation_;
  auto heard_now = [this](const Nic& nic) {
    return std::any_of(nic.edges.begin(), nic.edges.end(), [this](const auto& id_and_slot) {
      const Presence& presence = edges_[id_and_slot.second]->presence;
      return recent(presence.both(settings_.interval_ns), attended_.now(), settings_.interval_ns);
    });
  };
  std::vector<bool> was_heard(nics.size(), false);
  std::vector<Nic> next(nics.size());
  for (std::size_t i = 0; i < nics.size(); ++i) {
    Nic* old = nullptr;
    for (Nic& candidate : nics_) {
      if (candidate.spec.device == nics[i].device) old = &candidate;
    }
    if (old != nullptr) {
      const bool same = old->spec.address == nics[i].address;
      next[i] = std::move(*old);
      old->spec.device.clear();
      if (!same) close_nic(next[i]);
    } else {
      next[i].id = nic_identity(settings_.host, nics[i].device);
      next[i].verdict = NicVerdict(settings_.interval_ns, settings_.grace_ns, attended_.now());
    }
    next[i].spec = nics[i];
    was_heard[i] = heard_now(next[i]);
    next[i].edges.clear();
  }
  nics_ = std::move(next);

  auto same_edge = [](const EdgeSpec& a, const std::string& device_a, const EdgeSpec& b,
                      const std::string& device_b) {
    return device_a == device_b && a.peer == b.peer && a.peer_device == b.peer_device;
  };
  std::vector<std::uint32_t> slots(edges.size(), UINT32_MAX);
  std::vector<bool> kept(edges_.size(), false);
  for (std::size_t i = 0; i < edges.size(); ++i) {
    for (const std::uint32_t slot : order_) {
      Edge& edge = *edges_[slot];
      if (!kept[slot] && same_edge(edge.spec, edge.device, edges[i], nics[edges[i].nic].device)) {
        slots[i] = slot;
        kept[slot] = true;
        break;
      }
    }
  }
  for (const std::uint32_t slot : order_) {
    if (kept[slot]) continue;
    edges_[slot].reset();
    if (ring_) ring_->retire_edge(slot);
  }
  const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
  const auto period = static_cast<std::int64_t>(1e9 / settings_.rate);
  std::uint32_t free_slot = 0;
  order_.clear();
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (slots[i] == UINT32_MAX) {
      while (edges_[free_slot]) ++free_slot;
      slots[i] = free_slot;
      edges_[free_slot] = std::make_unique<Edge>();
      Edge& edge = *edges_[free_slot];
      edge.period_start = now + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(period));
      edge.next_due = edge.period_start;
      edge.tokens = settings_.receive_rate;
      edge.tokens_at = now;
      edge.latency =
          LatencyVerdict(settings_.latency_ceiling_ns, settings_.latency_factor, settings_.latency_slack_ns);
      if (ring_) {
        fp_probe_edge entry{};
        auto copy = [](char* to, std::size_t size, const std::string& from) {
          std::memcpy(to, from.data(), std::min(size - 1, from.size()));
        };
        copy(entry.device, sizeof(entry.device), nics[edges[i].nic].device);
        copy(entry.network, sizeof(entry.network), nics[edges[i].nic].network);
        copy(entry.peer, sizeof(entry.peer), edges[i].peer);
        copy(entry.peer_device, sizeof(entry.peer_device), edges[i].peer_device);
        copy(entry.peer_network, sizeof(entry.peer_network), edges[i].peer_network);
        ring_->set_edge(slots[i], entry);
      }
    }
    Edge& edge = *edges_[slots[i]];
    edge.nic = edges[i].nic;
    edge.device = nics[edges[i].nic].device;
    edge.spec = edges[i];
    edge.to = addresses[i];
    edge.peer_id = nic_identity(edges[i].peer, edges[i].peer_device);
    edge.peer_host = nic_identity(edges[i].peer, "");
    nics_[edge.nic].edges[edge.peer_id] = slots[i];
    order_.push_back(slots[i]);
  }
  for (std::size_t i = 0; i < nics_.size(); ++i) {
    // Silence of peers that have only just been chosen is none: they read the membership at their own pace.
    if (was_heard[i] && !heard_now(nics_[i])) nics_[i].verdict.restart(attended_.now());
  }
  return slots;
}

void Engine::start() {
  if (running_) return;
  if (keys_.empty()) throw std::invalid_argument("the engine has no key");
  stop_ = false;
  auto body = [](void* self) -> void* {
    static_cast<Engine*>(self)->run();
    return nullptr;
  };
  const int error = pthread_create(&thread_, nullptr, body, this);
  if (error != 0) throw std::system_error(error, std::generic_category(), "cannot start the probe engine");
  running_ = true;
  pthread_setname_np(thread_, "fp-probe");
  if (settings_.priority > 0) {
    sched_param parameters{};
    parameters.sched_priority = settings_.priority;
    realtime_ = pthread_setschedparam(thread_, SCHED_FIFO, &parameters) == 0;
  }
}

void Engine::stop() {
  if (!running_) return;
  stop_ = true;
  pthread_join(thread_, nullptr);
  running_ = false;
  for (Nic& nic : nics_) close_nic(nic);
}

void Engine::run() {
  prctl(PR_SET_TIMERSLACK, 1UL);
  std::int64_t planned = clock_ns(CLOCK_MONOTONIC);
  while (!stop_.load(std::memory_order_relaxed)) {
    timespec until;
    until.tv_sec = planned / 1'000'000'000;
    until.tv_nsec = planned % 1'000'000'000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
    tick(planned);
    // An absolute schedule with jitter, so that the hosts of a fleet do not fall into step; after a stall it
    // goes on from now instead of making up for what was missed.
    const auto jitter =
        static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(settings_.tick_ns / 2));
    planned += settings_.tick_ns * 3 / 4 + jitter;
    const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
    if (planned < now) planned = now + settings_.tick_ns / 4;
  }
}

void Engine::tick(std::int64_t planned) {
  std::lock_guard<PriorityMutex> lock(mutex_);
  const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
  tick_mono_ = now;
  tick_real_ = clock_ns(CLOCK_REALTIME);
  header_.lateness.add(kLatenessBuckets, now - planned);
  ++header_.ticks;

  const std::int64_t offset = tick_real_ - now;
  if (realtime_offset_ != 0 && std::llabs(offset - realtime_offset_) > kClockStep) {
    // Two clock reads with a preemption between them look like a step for one tick: read again before
    // believing it.
    const std::int64_t again = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC);
    if (std::llabs(again - realtime_offset_) > kClockStep) {
      ++header_.clock_steps;
      forget_stamps();
      Event event{};
      event.kind = EventKind::kClockStep;
      event.duration_ns = again - realtime_offset_;
      emit(event);
    }
    tick_real_ = now + again;
    realtime_offset_ = again;
  } else {
    realtime_offset_ = offset;
  }

  std::int64_t stall = 0;
  attended_before_ = attended_.now();
  attended_.advance(now, &stall);
  if (stall > 0) {
    header_.stalled_ns += stall;
    if (stall > settings_.interval_ns / 2) {
      ++header_.stalls;
      Event event{};
      event.kind = EventKind::kStall;
      event.duration_ns = stall;
      emit(event);
    }
  }
  read_clock_page(now);
  for (std::uint32_t i = 0; i < nics_.size(); ++i) {
    check_link(nics_[i], now, false);
    if (!nics_[i].open) continue;
    drain_stamps(nics_[i]);
    give_up_stamps(nics_[i]);
    drain_packets(i);
  }
  rotate_windows(now);
  judge(now);
  send_due(now);
  // Most drivers stamp within the system call that sends: taken at once, while all of it is in the caches, a
  // stamp costs a third of what it costs a tick later. Those that come later wait for the next tick.
  for (Nic& nic : nics_) drain_stamps(nic);
}

void Engine::read_clock_page(std::int64_t now) {
  if (settings_.clock_path.empty()) return;
  if (now >= next_clock_look_) {
    next_clock_look_ = now + 250'000'000;
    struct stat st;
    if (stat(settings_.clock_path.c_str(), &st) != 0) {
      if (clock_map_ != nullptr) munmap(clock_map_, sizeof(fp_clock_page));
      clock_map_ = nullptr;
    } else if (clock_map_ == nullptr || st.st_ino != clock_inode_) {
      if (clock_map_ != nullptr) munmap(clock_map_, sizeof(fp_clock_page));
      clock_map_ = nullptr;
      const int fd = open(settings_.clock_path.c_str(), O_RDONLY | O_CLOEXEC);
      if (fd >= 0 && fstat(fd, &st) == 0 && static_cast<std::size_t>(st.st_size) >= sizeof(fp_clock_page)) {
        void* map = mmap(nullptr, sizeof(fp_clock_page), PROT_READ, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED) {
          clock_map_ = static_cast<fp_clock_page*>(map);
          clock_inode_ = st.st_ino;
        }
      }
      if (fd >= 0) close(fd);
    }
  }
  clock_ok_ = false;
  header_.clock_status = FP_CLOCK_UNKNOWN;
  header_.clock_bound_ns = 0;
  if (clock_map_ == nullptr || clock_map_->magic != FP_CLOCK_PAGE_MAGIC ||
      clock_map_->version != FP_CLOCK_PAGE_VERSION || fp_clock_page_read(clock_map_, &clock_, 100) != 0) {
    return;
  }
  const fp_fleet_time t = fp_clock_convert(&clock_, fp_virtual_clock_apply(virtual_clock_, tick_real_));
  header_.clock_status = t.status;
  header_.clock_bound_ns = t.bound_ns;
  clock_ok_ = t.status == FP_CLOCK_SYNCHRONIZED || t.status == FP_CLOCK_HOLDOVER;
}

void Engine::forget_stamps() {
  for (const std::uint32_t slot : order_) {
    Edge& edge = *edges_[slot];
    for (SentTrain& train : edge.sent_trains) train.valid = 0, train.reported = true;
    for (HeardTrain& train : edge.heard_trains) train.valid = 0, train.emitted = true;
  }
}

void Engine::open_nic(Nic& nic) {
  const unsigned index = settings_.bind_device ? if_nametoindex(nic.spec.device.c_str()) : 0;
  nic.ifindex = index;
  std::vector<Port> ports(settings_.paths);
  for (std::uint8_t i = 0; i < settings_.paths; ++i) {
    SocketOptions options;
    if (settings_.bind_device) options.device = nic.spec.device;
    options.dscp = settings_.dscp;
    options.receive = i == 0;
    options.hardware = settings_.hardware;
    if (i != 0) options.receive_buffer = 256 << 10;
    const SocketAddress local =
        make_address(nic.spec.address, static_cast<std::uint16_t>(settings_.port + i), index);
    nic.open_errno = ports[i].socket.open(local, options);
    if (nic.open_errno != 0) return;
    ports[i].pending.resize(kPendingStamps);
  }
  nic.ports = std::move(ports);
  nic.open = true;
  for (const auto& [id, slot] : nic.edges) {
    SocketAddress& to = edges_[slot]->to;
    if (to.any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&to.v6.sin6_addr)) to.v6.sin6_scope_id = index;
  }
}

void Engine::close_nic(Nic& nic) {
  if (!nic.ports.empty()) nic.overflows_closed += nic.ports[0].socket.overflows();
  nic.ports.clear();
  nic.open = false;
}

void Engine::check_link(Nic& nic, std::int64_t now, bool force) {
  if (!force && now < nic.next_check) return;
  nic.next_check = now + 250'000'000;
  if (settings_.bind_device) {
    ifreq request;
    std::memset(&request, 0, sizeof(request));
    std::memcpy(request.ifr_name, nic.spec.device.data(),
                std::min(nic.spec.device.size(), sizeof(request.ifr_name) - 1));
    const bool there = ioctl(control_fd_, SIOCGIFFLAGS, &request) == 0;
    constexpr int kUsable = IFF_UP | IFF_RUNNING;
    nic.link = there && (request.ifr_flags & kUsable) == kUsable;
    const bool same = there && ioctl(control_fd_, SIOCGIFINDEX, &request) == 0 &&
                      request.ifr_ifindex == static_cast<int>(nic.ifindex);
    if (nic.open && !same) {
      // The device is gone, or another one has its name: sockets bound to the old index would stay mute for
      // ever.
      close_nic(nic);
      nic.open_errno = ENODEV;
    }
  }
  if (!nic.open) open_nic(nic);
}

void Engine::drain_stamps(Nic& nic) {
  for (Port& port : nic.ports) {
    if (port.waiting == 0) continue;
    const int before = port.waiting;
    port.socket.tx_stamps([&](const TxStamp& stamp) {
      PendingStamp& p = port.pending[stamp.id % kPendingStamps];
      if (!p.waiting || p.id != stamp.id) return;
      p.waiting = false;
      --port.waiting;
      Edge* edge = edges_[p.edge].get();
      if (edge == nullptr) return;
      SentTrain& train = edge->sent_trains[p.train % kSentTrains];
      // A stamp from before the send belongs to another packet, one from long after it to another clock.
      if (train.train != p.train ||
          (!stamp.hardware && (stamp.kernel_ns < train.before_kernel_ns ||
                               stamp.kernel_ns > train.before_kernel_ns + 1'000'000'000))) {
        return;
      }
      train.ns[p.position] =
          stamp.hardware ? stamp.kernel_ns : fp_virtual_clock_apply(virtual_clock_, stamp.kernel_ns);
      train.hardware = stamp.hardware;
      train.valid = static_cast<std::uint8_t>(train.valid | 1 << p.position);
    });
    if (port.waiting < before) port.idle = 0;
  }
}

// Once a tick: gives up the stamps that will not come any more.
void Engine::give_up_stamps(Nic& nic) {
  for (Port& port : nic.ports) {
    if (port.waiting > 0 && (++port.idle > kStampPatienceTicks || port.socket.numbering_uncertain())) {
      nic.record.stamps_lost += static_cast<std::uint64_t>(port.waiting);
      for (PendingStamp& p : port.pending) p.waiting = false;
      port.waiting = 0;
    }
    if (port.waiting == 0) port.idle = 0;
    if (port.socket.numbering_uncertain()) port.socket.restart_numbering();
  }
}

void Engine::drain_packets(std::uint32_t index) {
  Nic& nic = nics_[index];
  nic.ports[0].socket.receive(kPacketsPerTick,
                              [&](const Received& received) { take_packet(index, received); });
  nic.record.overflows = nic.overflows_closed + nic.ports[0].socket.overflows();
}

void Engine::take_packet(std::uint32_t nic_index, const Received& received) {
  Nic& nic = nics_[nic_index];
  Packet packet;
  switch (decode_packet(received.data, received.size, keys_, &packet)) {
    case Decoded::kOk:
      break;
    case Decoded::kMalformed:
      ++nic.record.drops[kDropMalformed];
      return;
    case Decoded::kWrongFleet:
      ++nic.record.drops[kDropWrongFleet];
      return;
    case Decoded::kBadMac:
      ++nic.record.drops[kDropBadMac];
      return;
  }
  const auto found = nic.edges.find(packet.sender);
  if (packet.receiver != nic.id || found == nic.edges.end() ||
      !received.from.same_host(edges_[found->second]->to)) {
    ++nic.record.drops[kDropNotAMember];
    return;
  }
  const std::uint32_t slot = found->second;
  Edge& edge = *edges_[slot];
  edge.tokens =
      std::min(settings_.receive_rate, edge.tokens + static_cast<double>(tick_mono_ - edge.tokens_at) * 1e-9 *
                                                         settings_.receive_rate);
  edge.tokens_at = tick_mono_;
  if (edge.tokens < 1) {
    ++nic.record.drops[kDropRate];
    return;
  }
  edge.tokens -= 1;
  switch (edge.session.admit(packet, epoch_, edge.train)) {
    case Admitted::kReplay:
      ++nic.record.drops[kDropReplay];
      return;
    case Admitted::kUnconfirmed:
      ++nic.record.drops[kDropUnconfirmed];
      return;
    case Admitted::kFresh:
      break;
  }
  if (edge.session.take_restarted()) {
    edge.heard_train = 0;
    edge.session_received = 0;
    for (HeardTrain& train : edge.heard_trains) train = HeardTrain{};
  }
  ++edge.received;
  ++edge.session_received;

  // When it arrived, in attended time: by its stamp, but not before the last drain, whatever the wall clock
  // did.
  std::int64_t age = 0;
  if (received.kernel_ns != 0 && !received.hardware) {
    age = std::clamp<std::int64_t>(tick_real_ - received.kernel_ns, 0, attended_.now() - attended_before_);
  }
  const std::int64_t at = attended_.now() - age;
  edge.presence.heard(at);
  edge.heard_mono = tick_mono_ - age;
  if (packet.heard_epoch == epoch_ && packet.heard_ago_us != kNever) {
    const std::int64_t ago = static_cast<std::int64_t>(packet.heard_ago_us) * 1'000;
    edge.presence.heard_by(std::max<std::int64_t>(at - ago, 0));
    edge.heard_by_mono = std::max(edge.heard_by_mono, edge.heard_mono - ago);
    nic.verdict.exchanged(edge.presence.both(settings_.interval_ns));
  }
  edge.peer_paths = packet.paths;
  edge.peer_sweep = packet.sweep;
  take_heard_train(edge, packet, received);
  take_sent_report(slot, edge, packet);
  if (packet.heard_epoch == epoch_) take_reception_report(slot, edge, packet);
}

void Engine::take_heard_train(Edge& edge, const Packet& packet, const Received& received) {
  if (packet.train > edge.heard_train) {
    if (edge.heard_train == 0) {
      edge.first_train = packet.train;
    } else {
      retire_trains(edge, packet.train);
    }
    edge.heard_train = packet.train;
  }
  HeardTrain& train = edge.heard_trains[packet.train % kHeardTrains];
  if (train.train != packet.train) {
    if (edge.heard_train - packet.train >= kHeardTrains) return;  // retired, and counted as lost
    train = HeardTrain{};
    train.train = packet.train;
    train.path = packet.path;
    train.taken_ns = tick_mono_;
  }
  train.got = static_cast<std::uint8_t>(train.got | 1 << packet.position);
  if (received.kernel_ns == 0) return;
  train.ns[packet.position] =
      received.hardware ? received.kernel_ns : fp_virtual_clock_apply(virtual_clock_, received.kernel_ns);
  train.hardware = received.hardware;
  train.valid = static_cast<std::uint8_t>(train.valid | 1 << packet.position);
}

// Closes the books on the trains that leave the table when train `newest` comes in.
void Engine::retire_trains(Edge& edge, std::uint32_t newest) {
  std::uint32_t from = edge.heard_train >= kHeardTrains ? edge.heard_train - kHeardTrains + 1 : 1;
  from = std::max(from, edge.first_train);
  const std::uint32_t to = newest >= kHeardTrains ? newest - kHeardTrains : 0;  // inclusive
  if (to < from) return;
  const bool long_gap = newest - edge.heard_train > kLongGap;
  std::uint32_t last = to;
  if (long_gap) {
    // The edge was silent as a whole: its losses count, but say nothing of a single path.
    last = edge.heard_train;
    edge.lost += static_cast<std::uint64_t>(to - std::min(to, last)) * kTrain;
    for (Path& path : edge.paths) path.verdict.reset();
  }
  auto heard = [&edge](std::uint32_t t) { return edge.heard_trains[t % kHeardTrains].train == t; };
  for (std::uint32_t t = from; t <= std::min(to, last); ++t) {
    const int got = heard(t) ? __builtin_popcount(edge.heard_trains[t % kHeardTrains].got) : 0;
    edge.lost += static_cast<std::uint64_t>(kTrain - got);
    const std::uint8_t index = path_of_train(t, edge.peer_paths, edge.peer_sweep);
    Path& path = edge.paths[index];
    path.expected += kTrain;
    path.lost += static_cast<std::uint64_t>(kTrain - got);
    if (got > 0) {
      path.verdict.heard();
      for (Path& other : edge.paths) other.witness = other.witness || &other != &path;
    } else {
      // A lost train speaks against its path only if the edge itself worked then: trains beside it arrived,
      // which took the main flow; or, if the main flow is what is dead, another path was heard since the last
      // loss.
      const bool beside = index != 0 && (edge.retired_heard || heard(t + 1));
      const bool main_dead = index == 0 || edge.paths[0].verdict.state() == State::kDown;
      if (beside || (main_dead && path.witness)) {
        path.verdict.missed();
        path.witness = false;
      }
    }
    edge.retired_heard = got > 0;
  }
}

void Engine::take_sent_report(std::uint32_t slot, Edge& edge, const Packet& packet) {
  const TrainStamps& sent = packet.sent;
  if (sent.train == 0 || sent.valid == 0) return;
  HeardTrain& heard = edge.heard_trains[sent.train % kHeardTrains];
  if (heard.train != sent.train || heard.emitted || heard.valid == 0 || heard.path != sent.path) return;
  heard.emitted = true;

  fp_probe_sample sample{};
  sample.edge = slot;
  sample.train = sent.train;
  sample.epoch = packet.epoch;
  sample.path = sent.path;
  sample.direction = FP_PROBE_INBOUND;
  sample.flags = static_cast<std::uint8_t>((sent.hardware ? FP_PROBE_TX_HARDWARE : 0) |
                                           (heard.hardware ? FP_PROBE_RX_HARDWARE : 0) |
                                           (sent.path == 0 ? FP_PROBE_MAIN_PATH : 0));
  sample.tx_valid = sent.valid;
  sample.rx_valid = heard.valid;
  std::memcpy(sample.tx_ns, sent.ns, sizeof(sample.tx_ns));
  std::memcpy(sample.rx_ns, heard.ns, sizeof(sample.rx_ns));

  if (clock_ok_ && packet.correction_bound_ns != kNever && !sent.hardware && !heard.hardware) {
    std::int64_t best = INT64_MAX, bound = 0;
    const auto both = static_cast<std::uint8_t>(sent.valid & heard.valid);
    for (int i = 0; i < kTrain; ++i) {
      if (!(both >> i & 1)) continue;
      // The warm-up packet pays for cold caches on the way; it counts only when there is nothing else.
      if (i == 0 && both != 1) continue;
      const fp_fleet_time rx = fp_clock_convert(&clock_, heard.ns[i]);
      const auto tx = static_cast<std::int64_t>(static_cast<std::uint64_t>(sent.ns[i]) +
                                                static_cast<std::uint64_t>(packet.correction_ns));
      std::int64_t owd;
      if (__builtin_sub_overflow(rx.fleet_ns, tx, &owd)) continue;
      if (owd < best) best = owd, bound = rx.bound_ns + packet.correction_bound_ns;
    }
    if (best > -kPlausibleOwd && best < kPlausibleOwd) {
      sample.flags |= FP_PROBE_FLEET_VALID;
      sample.owd_ns = best;
      sample.owd_bound_ns = bound;
      // A delay that comes out negative is a small one seen through the clock error.
      const std::int64_t shown = std::max<std::int64_t>(best, 0);
      nics_[edge.nic].record.owd.add(kOwdBuckets, shown);
      if (sent.path == 0) {
        edge.window.add(shown);
        ++edge.owd_count;
        edge.owd_sum += shown;
        edge.owd_bound = bound;
      }
      Path& path = edge.paths[sent.path];
      path.recent[path.recent_next] = shown;
      path.recent_next = static_cast<std::uint8_t>((path.recent_next + 1) % 8);
      if (path.recent_count < 8) ++path.recent_count;
    }
  }
  if (ring_) ring_->write(sample);
}

void Engine::take_reception_report(std::uint32_t slot, Edge& edge, const Packet& packet) {
  const TrainStamps& heard = packet.heard;
  if (heard.train == 0 || heard.valid == 0) return;
  SentTrain& sent = edge.sent_trains[heard.train % kSentTrains];
  if (sent.train != heard.train || sent.reported || sent.valid == 0 || sent.path != heard.path) return;
  sent.reported = true;
  if (!ring_) return;
  fp_probe_sample sample{};
  sample.edge = slot;
  sample.train = heard.train;
  sample.epoch = epoch_;
  sample.path = heard.path;
  sample.direction = FP_PROBE_OUTBOUND;
  sample.flags = static_cast<std::uint8_t>((sent.hardware ? FP_PROBE_TX_HARDWARE : 0) |
                                           (heard.hardware ? FP_PROBE_RX_HARDWARE : 0) |
                                           (heard.path == 0 ? FP_PROBE_MAIN_PATH : 0));
  sample.tx_valid = sent.valid;
  sample.rx_valid = heard.valid;
  std::memcpy(sample.tx_ns, sent.ns, sizeof(sample.tx_ns));
  std::memcpy(sample.rx_ns, heard.ns, sizeof(sample.rx_ns));
  ring_->write(sample);
}

void Engine::rotate_windows(std::int64_t now) {
  if (next_rotation_ == 0) next_rotation_ = now + settings_.window_ns;
  if (now < next_rotation_) return;
  next_rotation_ = now + settings_.window_ns;
  for (const std::uint32_t slot : order_) {
    Edge& edge = *edges_[slot];
    if (edge.window.current_count() > 0) edge.latency.window(edge.window.current_quantile(0.5));
    edge.window.rotate();
  }
}

NicEvidence Engine::evidence_of(const Nic& nic) const {
  const std::int64_t now = attended_.now();
  const std::int64_t interval = settings_.interval_ns;
  NicEvidence e;
  e.edges = static_cast<int>(nic.edges.size());
  e.link_down = !nic.link || !nic.open;
  for (const auto& [id, slot] : nic.edges) {
    const Presence& presence = edges_[slot]->presence;
    e.heard = std::max(e.heard, presence.heard_at);
    e.both = std::max(e.both, presence.both(interval));
    e.heard_by = std::max(e.heard_by, presence.heard_by_at);
  }
  for (const Nic& other : nics_) {
    if (&other != &nic && other.verdict.state() == State::kUp) e.others_connected = true;
  }
  if (e.edges == 0 || recent(e.both, now, interval / 2)) return e;
  std::vector<Witness> own, others;
  for (const std::uint32_t slot : order_) {
    const Edge& edge = *edges_[slot];
    (&nics_[edge.nic] == &nic ? own : others)
        .push_back({edge.peer_host, edge.presence.heard_at, edge.presence.both(interval)});
  }
  e.sole_witness_gone =
      sole_witness_gone(own.data(), own.size(), others.data(), others.size(), now, interval);
  return e;
}

// Counts a lost NIC and tells of it. seen : it was connected before.
void Engine::disconnected(Nic& nic, bool seen, std::int64_t now) {
  const std::int64_t lost_at = nic.verdict.lost_at();
  const std::int64_t silent = lost_at == kNeverHeard ? 0 : attended_.now() - lost_at;
  nic.down_since = now - silent;
  nic.down_counted = seen;
  if (seen) ++nic.record.disconnects;
  emit_nic(nic, EventKind::kNicDisconnected, silent);
}

void Engine::connected(Nic& nic, std::int64_t now) {
  const std::int64_t outage = now - nic.down_since;
  if (nic.down_counted) {
    ++nic.record.reconnects;
    nic.record.outages.add(kOutageBuckets, outage);
  }
  nic.down_since = 0;
  emit_nic(nic, EventKind::kNicConnected, outage);
}

void Engine::emit_nic(const Nic& nic, EventKind kind, std::int64_t duration) {
  Event event{};
  event.kind = kind;
  event.device = nic.spec.device;
  event.network = nic.spec.network;
  event.cause = static_cast<std::uint8_t>(nic.verdict.cause());
  event.duration_ns = duration;
  emit(std::move(event));
}

void Engine::judge(std::int64_t now) {
  const std::int64_t attended = attended_.now();
  const std::int64_t host_ns = fp_virtual_clock_apply(virtual_clock_, tick_real_);
  for (Nic& nic : nics_) {
    NicEvidence e = evidence_of(nic);
    if (e.edges > 0 && !recent(e.both, attended, settings_.interval_ns / 2)) {
      check_link(nic, now, nic.open);
      e.link_down = !nic.link || !nic.open;
    }
    const State before = nic.verdict.state();
    const bool seen = nic.verdict.seen();
    const NicEvent what = nic.verdict.step(e, attended);
    if (nic.verdict.state() != before) nic.record.changed_host_ns = host_ns;
    switch (what) {
      case NicEvent::kNothing:
        break;
      case NicEvent::kDisconnected:
        disconnected(nic, seen, now);
        break;
      case NicEvent::kConnected:
        connected(nic, now);
        break;
      case NicEvent::kInterrupted:
        nic.record.changed_host_ns = host_ns;
        disconnected(nic, seen, now);
        connected(nic, now);
        break;
    }
  }
  // After the NICs, and a little later than they: an edge that falls silent with its NIC is the NIC's fault.
  for (const std::uint32_t slot : order_) {
    Edge& edge = *edges_[slot];
    const State before = edge.verdict.states().edge;
    const EdgeStates& states = edge.verdict.step(edge.presence, attended, edge_interval_);
    if (states.edge != before && before != State::kUnknown) {
      Event event{};
      event.kind = states.edge == State::kUp ? EventKind::kEdgeUp : EventKind::kEdgeDown;
      event.inbound = static_cast<std::uint8_t>(states.inbound);
      event.outbound = static_cast<std::uint8_t>(states.outbound);
      event.device = edge.device;
      event.network = nics_[edge.nic].spec.network;
      event.peer = edge.spec.peer;
      event.peer_device = edge.spec.peer_device;
      emit(event);
    }
  }
}

void Engine::emit(Event event) {
  if (event.host_ns == 0) event.host_ns = fp_virtual_clock_apply(virtual_clock_, tick_real_);
  if (events_.size() >= kEventsKept) {
    events_.pop_front();
    ++header_.events_dropped;
  }
  events_.push_back(std::move(event));
  const std::uint64_t one = 1;
  if (write(event_fd_, &one, sizeof(one)) < 0) return;  // EAGAIN: the counter is full, Python knows already
}

void Engine::send_due(std::int64_t now) {
  const auto period = static_cast<std::int64_t>(1e9 / settings_.rate);
  for (const std::uint32_t slot : order_) {
    Edge& edge = *edges_[slot];
    if (now + settings_.tick_ns / 2 < edge.next_due) continue;
    edge.period_start += period;
    if (edge.period_start < now - period) edge.period_start = now;
    edge.next_due =
        edge.period_start + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(period / 4 + 1));
    if (!nics_[edge.nic].open) continue;
    due_.push_back(slot);
  }
  if (due_.empty()) return;
  // By NIC, so that the packets of one socket go out in one system call.
  std::sort(due_.begin(), due_.end(), [this](std::uint32_t a, std::uint32_t b) {
    return std::pair(edges_[a]->nic, a) < std::pair(edges_[b]->nic, b);
  });
  for (std::size_t from = 0; from < due_.size(); from += kTrainsPerBatch) {
    send_trains(&due_[from], std::min(due_.size() - from, kTrainsPerBatch));
  }
  due_.clear();
}

// Sends one train on each of `count` edges, all first packets, then all second, then all third.
void Engine::send_trains(const std::uint32_t* slots, std::size_t count) {
  std::uint8_t data[kTrainsPerBatch][kTrain][kPacketSize];
  bool sent_any[kTrainsPerBatch] = {};
  // The socket of each train, and the trains in the order of their sockets.
  Port* ports[kTrainsPerBatch];
  std::size_t order[kTrainsPerBatch];
  for (std::size_t k = 0; k < count; ++k) {
    Edge& edge = *edges_[slots[k]];
    Nic& nic = nics_[edge.nic];
    ++edge.train;
    if (edge.train == 0) edge.train = 1;
    Packet packet;
    packet.epoch = epoch_;
    packet.sender = nic.id;
    packet.receiver = edge.peer_id;
    packet.train = edge.train;
    packet.path = path_of_train(edge.train, settings_.paths, settings_.sweep);
    packet.paths = settings_.paths;
    packet.sweep = settings_.sweep;
    for (int position = 0; position < kTrain; ++position) {
      fill_packet(edge, &packet, position, tick_mono_);
      encode_packet(packet, keys_[0], data[k][position]);
    }
    SentTrain& train = edge.sent_trains[edge.train % kSentTrains];
    train = SentTrain{};
    train.train = edge.train;
    train.path = packet.path;
    train.before_kernel_ns = clock_ns(CLOCK_REALTIME);
    ports[k] = &nic.ports[packet.path];
    order[k] = k;
  }
  std::sort(order, order + count,
            [&](std::size_t a, std::size_t b) { return std::pair(ports[a], a) < std::pair(ports[b], b); });

  std::int64_t last_start = 0;
  for (int position = 0; position < kTrain; ++position) {
    std::int64_t start = clock_ns(CLOCK_MONOTONIC);
    while (position > 0 && start - last_start < settings_.spacing_ns) start = clock_ns(CLOCK_MONOTONIC);
    last_start = start;
    for (std::size_t from = 0; from < count;) {
      Port& port = *ports[order[from]];
      outgoing_.clear();
      std::size_t to = from;
      for (; to < count && ports[order[to]] == &port; ++to) {
        const std::size_t k = order[to];
        outgoing_.push_back({data[k][position], kPacketSize, &edges_[slots[k]]->to, position != 0, 0, 0});
      }
      port.socket.send(outgoing_);
      for (std::size_t i = 0; i < outgoing_.size(); ++i) {
        const std::size_t k = order[from + i];
        Edge& edge = *edges_[slots[k]];
        Nic& nic = nics_[edge.nic];
        if (outgoing_[i].error != 0) {
          ++edge.send_errors;
          if (is_link_error(outgoing_[i].error)) nic.next_check = 0;
          continue;
        }
        ++edge.sent;
        sent_any[k] = true;
        if (!outgoing_[i].stamp) continue;
        PendingStamp& pending = port.pending[outgoing_[i].id % kPendingStamps];
        if (pending.waiting) {
          --port.waiting;
          ++nic.record.stamps_lost;
        }
        pending = {outgoing_[i].id, slots[k], edge.train, static_cast<std::uint8_t>(position), true};
        ++port.waiting;
      }
      from = to;
    }
  }
  for (std::size_t k = 0; k < count; ++k) {
    // A train of which nothing left the host was not sent: the peer must not count it as lost on the way.
    if (!sent_any[k]) --edges_[slots[k]]->train;
  }
}

void Engine::fill_packet(Edge& edge, Packet* packet, int position, std::int64_t now_mono) {
  packet->position = static_cast<std::uint8_t>(position);
  // What the peer needs goes out more than once, because any packet may be lost: the middle packet repeats
  // the train before.
  packet->sent = TrainStamps{};
  packet->correction_bound_ns = kNever;
  packet->correction_ns = 0;
  for (std::uint32_t back = position == 1 ? 2 : 1; back <= 3; ++back) {
    if (edge.train <= back) break;
    const SentTrain& train = edge.sent_trains[(edge.train - back) % kSentTrains];
    if (train.train != edge.train - back || train.valid == 0) continue;
    packet->sent = train;
    break;
  }
  if (clock_ok_ && packet->sent.valid != 0 && !packet->sent.hardware) {
    const std::int64_t base = packet->sent.ns[__builtin_ctz(packet->sent.valid)];
    const fp_fleet_time t = fp_clock_convert(&clock_, base);
    if (t.bound_ns >= 0 && t.bound_ns < kNever) {
      packet->correction_ns = t.fleet_ns - base;
      packet->correction_bound_ns = static_cast<std::uint32_t>(t.bound_ns);
    }
  }
  packet->heard = TrainStamps{};
  packet->heard_epoch = 0;
  packet->heard_ago_us = kNever;
  packet->received = edge.session_received;
  std::uint32_t candidate_epoch = 0, candidate_train = 0;
  const bool candidate = edge.session.candidate(edge.train, &candidate_epoch, &candidate_train);
  if (candidate && (!edge.session.live() || position == 1)) {
    packet->heard_epoch = candidate_epoch;
    packet->heard.train = candidate_train;
    return;
  }
  if (!edge.session.live()) return;
  packet->heard_epoch = edge.session.epoch();
  const std::int64_t ago = std::max<std::int64_t>(now_mono - edge.heard_mono, 0) / 1'000;
  packet->heard_ago_us = ago < kNever ? static_cast<std::uint32_t>(ago) : kNever - 1;
  std::uint32_t newest = edge.heard_train;
  const HeardTrain& last = edge.heard_trains[newest % kHeardTrains];
  const bool settled = last.got == (1 << kTrain) - 1 || now_mono - last.taken_ns > kTrainSettled;
  if (!settled && newest > 1) --newest;
  if (position == 1 && newest > 1) --newest;
  const HeardTrain& train = edge.heard_trains[newest % kHeardTrains];
  if (train.train == newest) {
    packet->heard = train;
  } else {
    packet->heard.train = newest;  // still proves that we hear
  }
}

std::string Engine::snapshot() {
  std::lock_guard<std::mutex> api(api_mutex_);
  std::string out;
  out.resize(sizeof(SnapshotHeader) + nics_.size() * sizeof(NicRecord) + order_.size() * sizeof(EdgeRecord));
  char* to = out.data();
  std::int64_t cpu = 0;
  clockid_t cpu_clock;
  if (running_ && pthread_getcpuclockid(thread_, &cpu_clock) == 0) cpu = clock_ns(cpu_clock);
  const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
  {
    std::lock_guard<PriorityMutex> lock(mutex_);
    SnapshotHeader header = header_;
    header.generation = generation_;
    header.nics = static_cast<std::uint32_t>(nics_.size());
    header.edges = static_cast<std::uint32_t>(order_.size());
    header.cpu_ns = cpu;
    header.samples = ring_ ? ring_->written() : 0;
    std::memcpy(to, &header, sizeof(header));
    to += sizeof(header);
    for (const Nic& nic : nics_) {
      NicRecord record = nic.record;
      record.state = static_cast<std::uint8_t>(nic.verdict.state());
      record.cause = static_cast<std::uint8_t>(nic.verdict.cause());
      record.open = nic.open;
      record.link = nic.link;
      record.open_errno = nic.open ? 0 : static_cast<std::uint32_t>(nic.open_errno);
      record.down_ns = nic.down_since != 0 ? now - nic.down_since : 0;
      std::memcpy(to, &record, sizeof(record));
      to += sizeof(record);
    }
  }
  // A few edges at a time, so that the engine never waits for more than some microseconds.
  constexpr std::size_t kAtOnce = 8;
  for (std::size_t from = 0; from < order_.size(); from += kAtOnce) {
    std::lock_guard<PriorityMutex> lock(mutex_);
    for (std::size_t i = from; i < std::min(order_.size(), from + kAtOnce); ++i) {
      const Edge& edge = *edges_[order_[i]];
      EdgeRecord record{};
      record.slot = order_[i];
      record.nic = edge.nic;
      record.state = static_cast<std::uint8_t>(edge.verdict.states().edge);
      record.inbound = static_cast<std::uint8_t>(edge.verdict.states().inbound);
      record.outbound = static_cast<std::uint8_t>(edge.verdict.states().outbound);
      record.latency = static_cast<std::uint8_t>(edge.latency.state());
      record.paths = edge.peer_paths;
      record.sent = edge.sent;
      record.send_errors = edge.send_errors;
      record.received = edge.received;
      record.lost = edge.lost;
      record.heard_age_ns = edge.heard_mono == 0 ? -1 : std::max<std::int64_t>(now - edge.heard_mono, 0);
      record.heard_by_age_ns =
          edge.heard_by_mono == 0 ? -1 : std::max<std::int64_t>(now - edge.heard_by_mono, 0);
      record.owd_count = edge.owd_count;
      record.owd_sum_ns = edge.owd_sum;
      record.window_count = edge.window.count();
      record.peer_epoch = edge.session.epoch();
      if (record.window_count > 0) {
        record.owd_p50_ns = edge.window.quantile(0.5);
        record.owd_p99_ns = edge.window.quantile(0.99);
        record.owd_max_ns = edge.window.max();
        record.owd_min_ns = edge.window.min();
      }
      record.owd_bound_ns = edge.owd_bound;
      record.baseline_ns = edge.latency.baseline();
      record.limit_ns = edge.latency.limit();
      for (int p = 0; p < kMaxPaths; ++p) {
        const Path& path = edge.paths[p];
        PathRecord& r = record.path[p];
        r.expected = path.expected;
        r.lost = path.lost;
        r.state = static_cast<std::uint64_t>(path.verdict.state());
        r.owd_ns = INT64_MIN;
        if (path.recent_count > 0) {
          std::int64_t sorted[8];
          std::copy(path.recent, path.recent + path.recent_count, sorted);
          std::nth_element(sorted, sorted + path.recent_count / 2, sorted + path.recent_count);
          r.owd_ns = sorted[path.recent_count / 2];
        }
      }
      std::memcpy(to, &record, sizeof(record));
      to += sizeof(record);
    }
  }
  return out;
}

std::vector<Event> Engine::take_events() {
  std::uint64_t count;
  if (read(event_fd_, &count, sizeof(count)) < 0) count = 0;
  std::lock_guard<PriorityMutex> lock(mutex_);
  std::vector<Event> out(std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
  events_.clear();
  return out;
}

}  // namespace fabricpulse
