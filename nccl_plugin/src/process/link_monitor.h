// What happens to this host's NICs while the job runs: links and addresses that go and come, NICs that come.
// Service thread only.
#ifndef FABRICPULSE_PROCESS_LINK_MONITOR_H_
#define FABRICPULSE_PROCESS_LINK_MONITOR_H_

#include <atomic>
#include <cstdint>

#include "core/transport.h"
#include "process/connection_table.h"
#include "process/nic_lookup.h"
#include "process/nic_table.h"

namespace fabricpulse {

class LinkMonitor {
 public:
  // `port`: where this process listens on each NIC; 0: nowhere.
  LinkMonitor(Runtime* runtime, Transport* transport, NicTable* nics, ConnectionTable* connections,
              std::mutex* nics_lock, const std::atomic<uint16_t>* port)
      : runtime_(runtime),
        transport_(transport),
        nics_(nics),
        connections_(connections),
        nics_lock_(nics_lock),
        port_(port),
        lookup_(transport, nics, [runtime] { runtime->wake(); }) {}
  ~LinkMonitor();
  LinkMonitor(const LinkMonitor&) = delete;
  LinkMonitor& operator=(const LinkMonitor&) = delete;

  // Descriptor that is readable when something has happened; -1 if the kernel sends no events, then all is
  // polled.
  int open();
  // The same with a descriptor of the caller's, from which datagrams of rtnetlink are read; it ends with this.
  int watch(int fd) { return fd_ = fd; }
  // From here on what the kernel may answer late is asked on a thread of its own; before, and in tests, in place.
  void start() { lookup_.start(); }
  void stop() { lookup_.stop(); }
  // It is readable. What concerns other interfaces of the host costs next to nothing: containers come and go.
  void events(uint64_t now);
  // A transport reports a change.
  void transport_changed(uint64_t now) { poll(now); }
  // Acts on what the kernel has answered. Polls, if the last time is long ago.
  void tick(uint64_t now);
  // Before the service thread starts, or under nics_lock.
  void add_nic(const NicInfo& info);

 private:
  void poll(uint64_t now);
  void check(uint32_t nics, bool scan, uint64_t now);
  void take_answers(uint64_t now);
  void check_nic(NicLookup::Answer answer, uint64_t now);
  void check_link(uint32_t index, uint64_t now);
  void add_new_nic(const NicInfo& found, uint64_t now);
  void dial_soon(uint32_t nic, uint64_t now);
  void fail_nic(uint32_t nic, uint64_t now);

  Runtime* const runtime_;
  Transport* const transport_;
  NicTable* const nics_;
  ConnectionTable* const connections_;
  std::mutex* const nics_lock_;
  const std::atomic<uint16_t>* const port_;
  NicLookup lookup_;
  int fd_ = -1;
  uint64_t polled_ns_ = 0, scanned_ns_ = 0, asked_again_ns_ = 0;
  uint32_t unasked_ = 0;   // NICs, a bit each, that are to be asked soon: no event will come for it again
  bool scan_due_ = false;  // a NIC may have come
  bool full_ = false;      // has been logged
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_PROCESS_LINK_MONITOR_H_
