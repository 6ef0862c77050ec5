#include "engine.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <stdexcept>
#include <system_error>

#include "clock_ns.h"

namespace fabricpulse {
namespace {

constexpr std::int64_t kClockStep = 1'000'000;  // ns between two ticks: slewing moves 5 us in that time

}  // namespace

std::uint64_t nic_identity(const std::string& host, const std::string& device) {
  static const SipKey key = {'f', 'a', 'b', 'r', 'i', 'c', 'p', 'u', 'l', 's', 'e', ' ', 'n', 'i', 'c', '1'};
  const std::string name = host + '\0' + device;
  return siphash24(key, reinterpret_cast<const std::uint8_t*>(name.data()), name.size());
}

Engine::Engine(const Settings& settings)
    : settings_(settings), attended_(1), random_(std::random_device{}()) {
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
  if (settings.tick_ns < 100'000) throw std::invalid_argument("tick must be at least 100 us");
  // A whole number of ticks makes a period, so that a host with peers enough for one batch wakes no oftener
  // than it has to send, and every wake-up serves them all.
  const auto period = static_cast<std::int64_t>(1e9 / settings.rate);
  period_ticks_ = (period + settings.tick_ns - 1) / settings.tick_ns;
  settings_.tick_ns = period / period_ticks_;
  attended_ = AttendedClock(2 * longest_tick());
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
  send_due();
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
  for (const std::uint32_t slot : order_) edges_[slot]->trains.forget_stamps();
}

}  // namespace fabricpulse
