#include "process/link_monitor.h"

#include <errno.h>
#include <net/if.h>
#include <string.h>
#include <unistd.h>

#include <utility>

#include "core/owned_fds.h"
#include "process/link_events.h"

namespace fabricpulse {
namespace {

constexpr uint64_t kPollNs = 1'000'000'000;         // where the kernel sends no events
constexpr uint64_t kPollDespiteNs = 5'000'000'000;  // where it does
constexpr uint64_t kScanEveryNs = 200'000'000;      // for NICs that have come
constexpr uint64_t kAskAgainNs = 100'000'000;       // those about which the kernel did not answer

}  // namespace

LinkMonitor::~LinkMonitor() {
  if (fd_ >= 0) close_owned(fd_);
}

int LinkMonitor::open() { return watch(open_link_events()); }

void LinkMonitor::events(uint64_t now) {
  uint32_t touched = 0;
  bool whole = read_link_events(fd_, [&](const LinkEvent& event) {
    char buffer[IF_NAMESIZE];
    const char* name = event.name;
    for (uint32_t i = 0; i < nics_->count(); ++i) {
      if (nics_->at(i).ifindex != event.ifindex) continue;
      touched |= 1u << i;
      return;
    }
    if (event.kind == LinkEvent::Kind::kLinkGone || event.kind == LinkEvent::Kind::kAddressGone) return;
    if (*name == '\0' && (name = if_indextoname(event.ifindex, buffer)) == nullptr) return;
    uint32_t index = 0;
    if (nics_->find(name, &index) != nullptr) {  // back as another one
      touched |= 1u << index;
    } else if (transport_->wants(name)) {
      scan_due_ = true;
    }
  });
  if (!whole) {
    poll(now);
  } else {
    check(touched, false, now);
  }
}

void LinkMonitor::tick(uint64_t now) {
  take_answers(now);
  if (elapsed(now, polled_ns_) >= (fd_ >= 0 ? kPollDespiteNs : kPollNs)) {
    poll(now);
  } else if (scan_due_ && elapsed(now, scanned_ns_) >= kScanEveryNs) {
    check(0, true, now);
  }
  if (unasked_ != 0 && elapsed(now, asked_again_ns_) >= kAskAgainNs) {
    asked_again_ns_ = now;
    check(std::exchange(unasked_, 0), false, now);
  }
}

void LinkMonitor::poll(uint64_t now) {
  polled_ns_ = now;
  check(UINT32_MAX, true, now);
}

// nics : a bit each. A link is asked for here: that waits for nothing with TCP. With queue pairs ibv_query_port() of a
// software device (rxe, siw) may wait for RTNL in the kernel.
void LinkMonitor::check(uint32_t nics, bool scan, uint64_t now) {
  for (uint32_t i = 0; i < nics_->count(); ++i)
    if (((nics >> i) & 1) != 0) check_link(i, now);
  if (scan) {
    scanned_ns_ = now;
    scan_due_ = false;
  }
  lookup_.ask(nics, scan);
  take_answers(now);
}

void LinkMonitor::take_answers(uint64_t now) {
  NicLookup::Answers answers = lookup_.take();
  for (NicLookup::Answer& answer : answers.nics) check_nic(std::move(answer), now);
  for (const NicInfo& other : answers.others) add_new_nic(other, now);
}

// Its listener is made by PluginEngine::open_listeners() or check_nic().
void LinkMonitor::add_nic(const NicInfo& info) {
  fp_plugin_device* record = runtime_->telemetry()->device(nics_->count());
  const Nic& nic = nics_->add(info, transport_->link_up(info.name).value_or(true));
  RecordChange<fp_plugin_device> change(record);
  record->state = nic.link_up ? 1 : 2;
  snprintf(record->name, sizeof(record->name), "%s", nic.name.c_str());
  record->speed_mbps = nic.speed_mbps;
}

void LinkMonitor::dial_soon(uint32_t nic, uint64_t now) {
  for (auto& connection : connections_->all()) {
    if (connection->direction() != Direction::kSend) continue;
    ConnectionLock locked(connection.get());
    static_cast<SendConnection*>(connection.get())->dial_soon(nic, now);
  }
}

void LinkMonitor::fail_nic(uint32_t nic, uint64_t now) {
  for (auto& connection : connections_->all()) {
    ConnectionLock locked(connection.get());
    connection->fail_nic(nic, FP_REASON_LINK_DOWN, now);
  }
}

// A NIC that has lost its address sends nothing more: what its sockets hold fails locally, without a packet
// that anybody would miss. So its lanes end at once.
// A NIC may be taken away and come back under its name as another one: a driver that was loaded anew, a
// virtual function, a reset. Sockets bound to the old one are dead, also the listening one.
void LinkMonitor::check_nic(NicLookup::Answer answer, uint64_t now) {
  const uint32_t index = answer.nic;
  Nic& nic = nics_->mutable_at(index);
  const NicInfo& found = answer.found;
  const std::optional<bool>& there = answer.there;
  if (!there) {
    unasked_ |= 1u << index;  // its lanes show how it is, until it can be asked
    return;
  }
  if (!*there) {  // away, or without an address
    if (!nic.addressed.exchange(false)) return;
    runtime_->warn("NIC " + nic.name + " has lost its address; its lanes wait until it has one again");
    fail_nic(index, now);
    return;
  }
  bool other = found.ifindex != nic.ifindex || found.address != nics_->info(index).address;
  bool back = !nic.addressed.exchange(true);
  if (back && !other) dial_soon(index, now);
  if (!other && (transport_->listens(index) || *port_ == 0)) return;
  if (other) {
    fail_nic(index, now);
    nics_->set_place(index, found);
  }
  if (*port_ == 0) return;
  if (transport_->listen(index, found, *port_) == 0) {
    const int error = errno;
    if (error == EMFILE || error == ENFILE) unasked_ |= 1u << index;  // else with the next event or poll
    if (other) runtime_->warn("cannot listen on " + nic.name + ", which has come back: " + strerror(error));
    return;
  }
  runtime_->info("NIC " + nic.name + (other ? " is back as another one" : " listens now"));
  check_link(index, now);  // with an RDMA device that has come for one that was gone its port is another one
  dial_soon(index, now);
}

void LinkMonitor::check_link(uint32_t index, uint64_t now) {
  Nic& nic = nics_->mutable_at(index);
  const std::optional<bool> asked = transport_->link_up(nic.name);
  if (!asked) {
    unasked_ |= 1u << index;
    return;
  }
  const bool up = *asked;
  if (nic.link_up.exchange(up) == up) return;
  if (!up) ++nic.link_downs;
  EventFields fields{up ? FP_EVENT_LINK_UP : FP_EVENT_LINK_DOWN};
  fields.device = index;
  runtime_->telemetry()->event(fields, runtime_->event_time(now));
  {
    fp_plugin_device* record = runtime_->telemetry()->device(index);
    RecordChange<fp_plugin_device> change(record);
    record->state = up ? 1 : 2;
    record->link_downs = nic.link_downs;
  }
  if (up) {
    dial_soon(index, now);
    return;
  }
  fail_nic(index, now);
}

// One that was not there at the start, or had no address or no link: hot-plugged, a virtual function, a
// second rail that comes up late. NCCL has counted its devices already and places no connection on it, but
// every connection may have lanes over it: new ones from the start, present ones by
// Handshakes::extend_lanes().
void LinkMonitor::add_new_nic(const NicInfo& found, uint64_t now) {
  uint32_t index = 0;
  if (nics_->find(found.name, &index) != nullptr) return;  // two scans have found it
  if (nics_->count() == kMaxNics) {
    if (!full_)
      runtime_->warn("NIC " + found.name + " has come, but " + std::to_string(kMaxNics) + " are the most");
    full_ = true;
    return;
  }
  std::lock_guard<std::mutex> lock(*nics_lock_);
  add_nic(found);
  EventFields fields{FP_EVENT_LINK_UP};
  fields.device = nics_->count() - 1;
  runtime_->telemetry()->event(fields, runtime_->event_time(now));
  runtime_->info("NIC " + found.name +
                 " has come: it carries lanes; NCCL keeps the devices that it counted at the start");
  unasked_ |= 1u << fields.device;  // it shall listen, and not with the next poll only
}

}  // namespace fabricpulse
