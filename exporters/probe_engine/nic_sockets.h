// The probe sockets of one NIC, one for each source port, its link, and the TX stamps that they wait for.
#ifndef FABRICPULSE_EXPORTERS_NIC_SOCKETS_H_
#define FABRICPULSE_EXPORTERS_NIC_SOCKETS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nic_stamping.h"
#include "probe_socket.h"
#include "settings.h"

namespace fabricpulse {

// Whether an error of a socket speaks of the link, the device or its address.
bool is_link_error(int error);

// Asks the kernel about network devices by ioctl.
class InterfaceQuery {
 public:
  InterfaceQuery();  // throws std::system_error
  ~InterfaceQuery();
  InterfaceQuery(const InterfaceQuery&) = delete;
  InterfaceQuery& operator=(const InterfaceQuery&) = delete;

  struct State {
    bool running = false;   // up and has a carrier
    int index = -1;         // -1: there is no such device
    std::uint16_t mtu = 0;  // at most kMostMtu; 0 = not known
  };
  State read(const std::string& device) const;

 private:
  int fd_ = -1;
};

class NicSockets {
 public:
  // Which packet a TX stamp belongs to.
  struct StampOwner {
    std::uint32_t edge = 0;  // slot
    std::uint32_t train = 0;
    std::uint8_t position = 0;
  };

  NicSockets() = default;
  explicit NicSockets(const Settings* settings) : settings_(settings) {}

  // Checks the link and opens the sockets if they are not; each 250 ms, or at once with `force` or after
  // check_soon(). Returns whether the sockets were opened by this call.
  bool check(const NicSpec& nic, const InterfaceQuery& interfaces, std::int64_t now_ns, bool force);
  void check_soon() { next_check_ = 0; }
  void close();

  bool is_open() const { return open_; }
  bool link() const { return link_; }
  int open_error() const { return open_error_; }  // errno, 0 = none
  // Up to which size probes are sent, 0 = none are.
  std::uint16_t mtu() const { return mtu_; }
  unsigned interface_index() const { return interface_index_; }
  // What was found when the sockets were opened; the error, by the last check.
  const NicStamping& stamping() const { return stamping_; }
  // Whether a stamp of the device with this index is by the PHC of stamping(). One that is not known is asked for it by the
  // next check.
  bool stamped_by_phc(unsigned index) { return stamping_devices_.known(index); }
  // The PHC that what is sent is stamped by, -1 = none, or not known for sure.
  int sent_by_phc() const { return stamping_devices_.asked() == 0 ? stamping_.phc : -1; }
  // No carrier, or the device or its address is gone; not: an error of our own socket.
  bool link_down() const { return !link_ || (!open_ && is_link_error(open_error_)); }

  // Sends from one source port, in order.
  void send(std::uint8_t path, std::vector<Outgoing>& packets) {
    stamps_lost_ += ports_[path].socket.send(packets);
  }
  // A packet with TX stamp `id` has left source port `path`.
  void expect_stamp(std::uint8_t path, std::uint32_t id, const StampOwner& owner);
  // Calls `take(const StampOwner&, const TxStamp&)` for each TX stamp that has come back.
  template <typename Take>
  void drain_stamps(Take take) {
    for (std::size_t path = 0; path < ports_.size(); ++path) drain_stamps(path, take);
  }
  // The same for one source port.
  template <typename Take>
  void drain_stamps(std::size_t path, Take take) {
    Port& port = ports_[path];
    if (port.waiting == 0 && port.late_ticks == 0 && !port.socket.hears_errors() &&
        !port.socket.numbering_uncertain()) {
      return;
    }
    const int before = port.waiting;
    port.socket.tx_stamps(
        [&](const TxStamp& stamp) {
          PendingStamp& p = port.pending[stamp.id % kPendingStamps];
          bool& first = stamp.kernel_ns != 0 ? p.no_kernel_stamp : p.no_nic_stamp;
          if (p.id != stamp.id || !first) return;
          first = false;
          if (p.waiting) --port.waiting;
          p.waiting = false;
          take(p.owner, stamp);
        },
        [&](const HopAnswer& answer) {
          if (answers_.size() < kMostAnswers) answers_.push_back(answer);
        });
    if (port.waiting < before) port.idle = 0;
  }
  // Once a tick: gives up the stamps that will not come any more.
  void give_up_stamps();
  std::uint64_t stamps_lost() const { return stamps_lost_; }

  bool has_port(std::uint8_t path) const { return open_ && path < ports_.size(); }
  // The socket of one source port, for packets that at most some switches forward: ProbeSocket.
  ProbeSocket& port(std::uint8_t path) { return ports_[path].socket; }
  // Answers of switches that `drain_stamps` has found since the last call; each up to kMostAnswers.
  std::vector<HopAnswer> take_answers() { return std::exchange(answers_, {}); }

  // Calls `take(const Received&)` for each packet that has arrived, `limit` at most.
  template <typename Begin, typename Take>
  void receive(int limit, Begin begin, Take take) {
    ports_[0].socket.receive(limit, begin, take);
  }
  // Packets that the kernel dropped because the receive buffer was full.
  std::uint64_t overflows() const { return overflows_closed_ + (open_ ? ports_[0].socket.overflows() : 0); }

 private:
  static constexpr std::size_t kPendingStamps = 1'024;  // a power of two; a tick of one port sends far fewer
  // More than all hops of all source ports: what strangers forge may not take memory.
  static constexpr std::size_t kMostAnswers = 256;
  struct PendingStamp {
    std::uint32_t id = 0;
    StampOwner owner;
    bool waiting = false;  // neither the kernel's nor the NIC's has come
    // The number is of this packet, and this one of its stamps has not come. The first of a kind counts: a packet that
    // passes two devices of one host (a bond, a bridge of containers) is stamped at each, the second time behind a queue.
    bool no_kernel_stamp = false, no_nic_stamp = false;

    void forget() { waiting = no_kernel_stamp = no_nic_stamp = false; }
  };
  struct Port {
    ProbeSocket socket;
    std::vector<PendingStamp> pending;  // ring indexed by id
    int waiting = 0;
    int idle = 0;        // ticks since the last stamp that was waited for
    int late_ticks = 0;  // for which stamps of the NIC may still come, after those of the kernel
    int emptied = 0;     // with an uncertain numbering: ticks since all packets had left, 0 = they have not
  };

  bool open(const NicSpec& nic);
  // Whether somebody has set up the NIC to stamp packets, or no longer, or packets go by another one.
  bool stamping_changed(const NicSpec& nic);

  const Settings* settings_ = nullptr;
  std::vector<Port> ports_;
  std::vector<HopAnswer> answers_;
  unsigned interface_index_ = 0;
  std::uint16_t mtu_ = 0;
  NicStamping stamping_;
  StampingChecks stamping_checks_;
  StampingDevices stamping_devices_;
  unsigned checks_ = 0;
  bool open_ = false;
  int open_error_ = 0;
  bool link_ = true;
  std::int64_t next_check_ = 0;
  std::uint64_t overflows_closed_ = 0;
  std::uint64_t stamps_lost_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_NIC_SOCKETS_H_
