#include "probe_engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "clocks/clock_ns.h"

namespace fabricpulse {
namespace {

// A whole number of ticks makes a period, so that a host with peers enough for one batch wakes no oftener
// than it has to send, and every wake-up serves them all.
Settings fitted(Settings settings) {
  settings.validate();
  const std::int64_t ticks = (settings.period_ns() + settings.tick_ns - 1) / settings.tick_ns;
  settings.tick_ns = settings.period_ns() / ticks;
  return settings;
}

// Of fitted settings, whose tick was rounded down.
std::int64_t ticks_of_period(const Settings& settings) {
  return (settings.period_ns() + settings.tick_ns / 2) / settings.tick_ns;
}

// Counts up with wall time in steps of 16 ms: a restart has another epoch, and a later one.
std::uint32_t start_identity() { return static_cast<std::uint32_t>(clock_ns(CLOCK_REALTIME) / 16'000'000); }

std::unique_ptr<RingWriter> make_ring(const Settings& settings, std::uint32_t epoch,
                                      std::int64_t stamp_epoch_ns) {
  if (settings.ring_path.empty()) return nullptr;
  return std::make_unique<RingWriter>(settings.ring_path, settings.host, epoch, settings.edge_capacity,
                                      settings.ring_capacity, stamp_epoch_ns);
}

fp_probe_edge ring_entry(const Edge& edge, const std::string& network) {
  fp_probe_edge entry{};
  auto copy = [](char* to, std::size_t size, const std::string& from) {
    std::memcpy(to, from.data(), std::min(size - 1, from.size()));
  };
  copy(entry.device, sizeof(entry.device), edge.device);
  copy(entry.network, sizeof(entry.network), network);
  copy(entry.peer, sizeof(entry.peer), edge.spec.peer);
  copy(entry.peer_device, sizeof(entry.peer_device), edge.spec.peer_device);
  copy(entry.peer_network, sizeof(entry.peer_network), edge.spec.peer_network);
  return entry;
}

}  // namespace

// Ticks are 3/4 to 5/4 of tick_ns apart.
ProbeEngine::ProbeEngine(const Settings& settings)
    : settings_(fitted(settings)),
      epoch_(start_identity()),
      clock_(settings_.tick_ns * 5 / 4,
             settings_.ring_path.empty() ? 0 : old_stamp_epoch(settings_.ring_path)),
      ring_(make_ring(settings_, epoch_, clock_.stamp_epoch_ns())),
      fleet_clock_(settings_.clock_path, clock_.stamp_epoch_ns()),
      table_(settings_),
      send_(settings_, table_, fleet_clock_, clock_, ticks_of_period(settings_), epoch_),
      receive_(settings_, table_, fleet_clock_, clock_, ring_.get(), epoch_),
      health_(settings_, table_, events_),
      tracer_(table_) {}

ProbeEngine::~ProbeEngine() { stop(); }

void ProbeEngine::set_keys(const std::vector<SipKey>& keys) {
  if (keys.empty()) throw std::invalid_argument("at least one key is needed");
  std::vector<FleetKey> made;
  for (const SipKey& key : keys) made.push_back(make_fleet_key(key));
  std::lock_guard<PriorityMutex> lock(mutex_);
  keys_ = std::move(made);
}

std::vector<std::uint32_t> ProbeEngine::configure(const std::vector<NicSpec>& nics,
                                                  const std::vector<EdgeSpec>& edges) {
  std::lock_guard<std::mutex> api(api_mutex_);
  std::lock_guard<PriorityMutex> lock(mutex_);
  EdgeTable::Hooks hooks;
  hooks.added = [&](std::uint32_t slot, Edge& edge) {
    send_.schedule(edge, header_.ticks);
    if (ring_) ring_->set_edge(slot, ring_entry(edge, nics[edge.nic].network));
  };
  hooks.retired = [&](std::uint32_t slot) {
    if (ring_) ring_->retire_edge(slot);
  };
  return table_.configure(nics, edges, clock_.time().unstalled, hooks);
}

void ProbeEngine::start() {
  if (running_) return;
  if (keys_.empty()) throw std::invalid_argument("the engine has no key");
  stop_ = false;
  auto body = [](void* self) -> void* {
    static_cast<ProbeEngine*>(self)->run();
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

void ProbeEngine::stop() {
  if (!running_) return;
  stop_ = true;
  pthread_join(thread_, nullptr);
  running_ = false;
  for (Nic& nic : table_.nics()) nic.sockets.close();
}

void ProbeEngine::run() {
  prctl(PR_SET_TIMERSLACK, 1UL);
  std::int64_t planned = clock_ns(CLOCK_MONOTONIC);
  while (!stop_.load(std::memory_order_relaxed)) {
    timespec until;
    until.tv_sec = planned / 1'000'000'000;
    until.tv_nsec = planned % 1'000'000'000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
    tick(planned);
    // An absolute schedule; after a stall it goes on from now instead of making up for what was missed.
    planned += send_.next_tick_in();
    const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
    if (planned < now) planned = now + settings_.tick_ns / 4;
  }
}

void ProbeEngine::tick(std::int64_t planned) {
  std::lock_guard<PriorityMutex> lock(mutex_);
  const TickTime& now = clock_.advance();
  header_.lateness.add(kLatenessBuckets, now.mono - planned);
  ++header_.ticks;
  if (now.clock_step != 0) {
    ++header_.clock_steps;
    emit(EventKind::kClockStep, now.clock_step);
  }
  if (now.steered) send_.forget_stamps();
  header_.stalled_ns += now.stall;
  if (now.stall > settings_.interval_ns / 2) {
    ++header_.stalls;
    emit(EventKind::kStall, now.stall);
  }
  fleet_clock_.refresh(now.mono);
  for (Nic& nic : table_.nics()) {
    health_.check_link(nic, now.mono, false);
    if (!nic.sockets.is_open()) continue;
    if (nic.sockets.stamping().phc >= 0) clock_.hardware().use(nic.sockets.stamping().phc);
    send_.drain_stamps(nic);
    nic.sockets.give_up_stamps();
    receive_.drain(nic, keys_);
  }
  if (fleet_clock_.ok() && receive_.contradicted()) {
    fleet_clock_.distrust();
    if (ring_) ring_->contradicted();
  }
  if (ring_ && fleet_clock_.ok() && now.mono - doubted_mono_ >= kDoubtNs && receive_.shifted()) {
    doubted_mono_ = now.mono;
    ring_->doubted();
  }
  if (ring_ && now.mono - hidden_jump_mono_ >= kHiddenJumpNs) {
    hidden_jump_mono_ = now.mono;
    ring_->set_hidden_jump(receive_.hidden_jump_ns(fp_raw_clock_now() + clock_.stamp_epoch_ns()));
  }
  health_.update(now);
  send_.send_due(header_.ticks, keys_[0]);
  // So that what is stamped now lies between two readings that are close together.
  if (!clock_.hardware().read()) send_.forget_stamps();
  // Most drivers stamp within the system call that sends: taken at once, while all of it is in the caches, a
  // stamp costs a third of what it costs a tick later. Those that come later wait for the next tick.
  for (Nic& nic : table_.nics()) send_.drain_stamps(nic);
  tracer_.tick(now.mono);
}

bool ProbeEngine::trace(std::uint32_t edge, std::uint8_t path) {
  std::lock_guard<PriorityMutex> lock(mutex_);
  return tracer_.request(edge, path);
}

std::vector<Trace> ProbeEngine::take_traces() {
  std::lock_guard<PriorityMutex> lock(mutex_);
  return tracer_.take_done();
}

void ProbeEngine::emit(EventKind kind, std::int64_t duration) {
  Event event{};
  event.kind = kind;
  event.host_ns = clock_.time().host;
  event.duration_ns = duration;
  events_.push(std::move(event));
}

std::string ProbeEngine::snapshot() {
  std::lock_guard<std::mutex> api(api_mutex_);
  const std::vector<std::uint32_t>& slots = table_.slots();  // configure() changes them under api_mutex_ too
  std::string out;
  out.resize(sizeof(SnapshotHeader) + table_.nics().size() * sizeof(NicRecord) +
             slots.size() * sizeof(EdgeRecord));
  char* to = out.data();
  auto append = [&to](const auto& record) {
    std::memcpy(to, &record, sizeof(record));
    to += sizeof(record);
  };
  std::int64_t cpu = 0;
  clockid_t cpu_clock;
  if (running_ && pthread_getcpuclockid(thread_, &cpu_clock) == 0) cpu = clock_ns(cpu_clock);
  const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
  {
    std::lock_guard<PriorityMutex> lock(mutex_);
    SnapshotHeader header = header_;
    header.generation = table_.generation();
    header.nics = static_cast<std::uint32_t>(table_.nics().size());
    header.edges = static_cast<std::uint32_t>(slots.size());
    header.cpu_ns = cpu;
    header.samples = ring_ ? ring_->written() : 0;
    header.clock_status = fleet_clock_.status();
    header.clock_bound_ns = fleet_clock_.bound_ns();
    header.events_dropped = events_.dropped();
    append(header);
    for (const Nic& nic : table_.nics()) append(nic_record(nic, clock_.hardware(), now));
  }
  // A few edges at a time, so that the engine never waits for more than some microseconds.
  constexpr std::size_t kAtOnce = 8;
  for (std::size_t from = 0; from < slots.size(); from += kAtOnce) {
    std::lock_guard<PriorityMutex> lock(mutex_);
    for (std::size_t i = from; i < std::min(slots.size(), from + kAtOnce); ++i) {
      append(edge_record(slots[i], table_.edge(slots[i]), now));
    }
  }
  return out;
}

std::vector<Event> ProbeEngine::take_events() {
  events_.clear_fd();
  std::lock_guard<PriorityMutex> lock(mutex_);
  return events_.take();
}

}  // namespace fabricpulse
