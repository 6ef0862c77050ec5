// The engine's service thread: Timers, link events and handshakes, in one epoll loop.
#include <sys/epoll.h>
#include <unistd.h>

#include "process/handshakes.h"
#include "process/plugin_engine.h"

namespace fabricpulse {
namespace {

constexpr int kBusyTickMs = 10, kIdleTickMs = 50, kEmptyTickMs = 250;
constexpr uint64_t kPollNs = 1'000'000'000;  // links are looked at this often without an event
constexpr int kKindShift = 56;               // of what a descriptor is, within its epoll data

}  // namespace

void PluginEngine::watch(int fd, PollSource kind, uint64_t id, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = (static_cast<uint64_t>(kind) << kKindShift) | id;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
}

void PluginEngine::unwatch(int fd) { epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr); }

void PluginEngine::run() {
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
        uint64_t id = events[i].data.u64 & ((UINT64_C(1) << kKindShift) - 1);
        switch (static_cast<PollSource>(events[i].data.u64 >> kKindShift)) {
          case PollSource::kWake: {
            uint64_t drained;
            (void)!read(wake_, &drained, sizeof(drained));
            woken_ = false;
            tick_now = true;
            break;
          }
          case PollSource::kLinks:
            if (drain_link_events(links_)) poll_links(at);
            break;
          case PollSource::kListener:
            handshakes_->accept_peers(static_cast<uint32_t>(id), at);
            break;
          case PollSource::kIncoming:
            handshakes_->serve_incoming(id, at);
            break;
          case PollSource::kDial:
            handshakes_->serve_dial(id, at);
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
        ConnectionLock locked(connection.get());
        busy |= connection->requests() > 0 || connection->lanes_up() == 0;
      }
      period = busy || handshakes_->dialling() ? kBusyTickMs : any ? kIdleTickMs : kEmptyTickMs;
      next_tick = now() + static_cast<uint64_t>(period) * 1'000'000;
    } catch (const std::exception& error) {
      warn(std::string("service thread: ") + error.what());  // out of memory: the next round may have some
    }
  }
}

void PluginEngine::tick(uint64_t now, uint64_t since_last) {
  if (elapsed(now, links_polled_ns_) >= kPollNs) poll_links(now);
  telemetry_.header()->clock_status = fleet_time_.refresh(now);
  for (auto& connection : connections()) {
    {
      ConnectionLock locked(connection.get());
      if (connection->closed()) continue;
      connection->tick(now, since_last);
    }
    handshakes_->start_dials(connection, now);
    handshakes_->announce_nics(connection, now);
    handshakes_->check_peer(connection, now);
  }
  handshakes_->drop_late(now);
  publish(now);
}

void PluginEngine::publish(uint64_t now) {
  fp_plugin_header* header = telemetry_.header();
  __atomic_store_n(&header->heartbeat_mono_ns, now, __ATOMIC_RELEASE);
  if (elapsed(now, published_ns_) < 100'000'000) return;
  published_ns_ = now;
  uint32_t lanes[kMaxNics] = {}, up[kMaxNics] = {};
  for (auto& connection : connections()) {
    ConnectionLock locked(connection.get());
    for (const Lane& lane : connection->lanes()) {
      if (!lane.named || lane.nic >= kMaxNics) continue;
      ++lanes[lane.nic];
      up[lane.nic] += lane.up;
    }
  }
  for (uint32_t i = 0; i < nic_count(); ++i) {
    fp_plugin_device* record = telemetry_.device(i);
    RecordChange<fp_plugin_device> change(record);
    record->avoided = nics_[i]->avoided;
    record->lanes = lanes[i];
    record->lanes_up = up[i];
  }
}

}  // namespace fabricpulse
