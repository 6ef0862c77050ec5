// Lanes over queue pairs. The ends meet over a TCP connection of the same two NICs, which carries hello and reply
// with the set-up of both queue pairs; it stays open, since its end shows the end of the peer's
// process at once. A spare lane (kHelloSpare) is that connection, and no queue pair: see core/spare_lanes.h.
//
//   dials: queue pair (INIT), hello with its setup    ->
//                                 <-  queue pair (RTS), reply with its setup
//   queue pair (RTS), first message on it             ->  may send from here on
#ifndef FABRICPULSE_TRANSPORT_VERBS_VERBS_TRANSPORT_H_
#define FABRICPULSE_TRANSPORT_VERBS_VERBS_TRANSPORT_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "transport/tcp/tcp_transport.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_lane.h"

namespace fabricpulse {

class VerbsTransport final : public TcpTransport {
 public:
  // ports_changed: called by serve() when a device has reported a change of a port or its addresses.
  VerbsTransport(const Config& config, Poller* poller, TransportEvents* events,
                 std::function<void(uint64_t now)> ports_changed, VerbsDevices::Warn warn);
  ~VerbsTransport() override;

  // Loads libibverbs and opens the devices. False: `error` names what is missing.
  bool open(std::string* error);
  // The same with a library that is open.
  bool open(const VerbsLibrary& library, std::string* error);

  fp_lane_transport kind() const override { return FP_LANE_VERBS; }
  fp_lane_transport spare_kind() const override { return FP_LANE_TCP; }
  // With FABRICPULSE_LAST_RESORT those NICs too that have no RDMA device (SpareUse::kOnly), behind all others.
  std::vector<NicInfo> discover(const std::vector<std::string>& known) const override;
  bool wants(const std::string& name) const override;
  std::optional<bool> link_up(const std::string& name) const override;
  uint16_t listen(uint32_t nic, const NicInfo& info, uint16_t port) override;
  // Not with a device that is gone: to listen anew finds the one that has come for it. Peers are answered meanwhile.
  bool listens(uint32_t nic) const override { return TcpTransport::listens(nic) && !lost_[nic]; }
  void serve(uint64_t id, uint64_t now) override;
  RegisteredMemory* register_memory(void* data, size_t size, int kind, std::string* why) override;
  void deregister_memory(RegisteredMemory* memory) override;

 protected:
  bool prepare(const NicAddress& from, uint16_t source_port, Hello* hello,
               std::unique_ptr<LaneSetup>* setup) override;
  bool binds_source_port() const override { return false; }  // it is the queue pair's
  bool answer(uint32_t nic, const Hello& hello, HelloReply* reply,
              std::unique_ptr<LaneSetup>* setup) override;
  std::unique_ptr<LaneTransport> make_lane(int fd, std::unique_ptr<LaneSetup> setup, const HelloReply* reply,
                                           bool payload_crc) override;

 private:
  struct Prepared;
  void device_gone(VerbsDevice* device);
  std::unique_ptr<VerbsPair> make_pair(const NicAddress& address, VerbsPair::End end, uint32_t flow_label);

  VerbsLibrary library_;
  mutable VerbsDevices devices_;
  std::shared_ptr<VerbsReaper> reaper_ = std::make_shared<VerbsReaper>();
  NicDevices nic_devices_;
  std::array<std::atomic<bool>, kMaxNics> lost_{};  // by NIC: its device is gone
  const std::function<void(uint64_t)> ports_changed_;
  std::array<NicAddress, kMaxNics> addresses_{};    // by NIC
  mutable std::mutex ports_lock_;                   // of both below
  std::set<VerbsDevice*> watched_;                  // whose events are read
  mutable std::map<std::string, VerbsPort> ports_;  // by NIC name
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_VERBS_VERBS_TRANSPORT_H_
