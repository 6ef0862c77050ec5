// A UDP socket with kernel timestamps, bound to one address, device and source port.
#ifndef FABRICPULSE_EXPORTERS_PROBE_SOCKET_H_
#define FABRICPULSE_EXPORTERS_PROBE_SOCKET_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fabricpulse {

union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;

  socklen_t size() const { return any.sa_family == AF_INET6 ? sizeof(v6) : sizeof(v4); }
  bool same_host(const SocketAddress& other) const;
};

// Throws std::invalid_argument for text that is no numeric IPv4 or IPv6 address. A scope ("fe80::1%eth0") is
// taken from the device.
SocketAddress make_address(const std::string& address, std::uint16_t port, unsigned scope = 0);

struct SocketOptions {
  std::string device;            // SO_BINDTODEVICE; empty = by address only
  std::uint8_t dscp = 0;         // 0..63
  int receive_buffer = 4 << 20;  // bytes
  bool receive = true;    // false: everything that arrives is dropped in the kernel, only TX stamps come back
  bool hardware = false;  // ask for stamps of the NIC, by its own clock, beside the kernel's
};

struct Received {
  const std::uint8_t* data;
  std::size_t size;
  SocketAddress from;
  std::int64_t kernel_ns;  // RX stamp, 0 = none
  std::int64_t nic_ns;     // the same of the NIC by its own clock, 0 = none
  unsigned nic_index;      // of the device that did, below a bond say; 0 = the kernel does not tell
};

// One of the two is 0: the kernel's comes first, that of the NIC, by its own clock, in a message of its own.
struct TxStamp {
  std::uint32_t id;
  std::int64_t kernel_ns;
  std::int64_t nic_ns;
};

struct Outgoing {
  const std::uint8_t* data;
  std::size_t size;
  SocketAddress* to;
  // A TX stamp is wanted, which costs an allocation and a read of the error queue. Cleared where none will come.
  bool stamp;
  int error;         // 0 = sent
  std::uint32_t id;  // of its TX stamp, when sent with one
};

// A switch has dropped one of our packets because its hop limit was used up, and says so.
struct HopAnswer {
  static constexpr std::size_t kMostQuoted = 32;
  SocketAddress from;                // the switch; its port is 0
  std::uint8_t quoted[kMostQuoted];  // of the packet's data
  std::size_t size;
};

class ProbeSocket {
 public:
  static constexpr int kBatch = 64;  // messages of one system call, at most

  ProbeSocket() = default;
  ~ProbeSocket() { close(); }
  ProbeSocket(ProbeSocket&& other) noexcept;
  ProbeSocket& operator=(ProbeSocket&& other) noexcept;

  // Returns 0 or an errno.
  int open(const SocketAddress& local, const SocketOptions& options);
  void close();
  bool is_open() const { return fd_ >= 0; }

  // Sends in order, several to a system call. A packet that cannot be sent does not hold up those behind it. Returns how
  // many went without a TX stamp that was wanted, as the kernel's numbering is uncertain.
  unsigned send(std::vector<Outgoing>& packets);

  // Calls `take(const Received&)` for each waiting packet, `limit` at most, and `begin()` before the first of each batch,
  // when all of it has been stamped. Returns their number.
  template <typename Begin, typename Take>
  int receive(int limit, Begin begin, Take take) {
    int total = 0;
    while (total < limit) {
      const int n = receive_packets();
      if (n > 0) begin();
      for (int i = 0; i < n; ++i) {
        Received r;
        if (parse_received(i, &r)) take(r);
      }
      total += n > 0 ? n : 0;
      if (n < kBatch) break;
    }
    return total;
  }

  // Sends one packet that at most `hops` switches forward. Without a TX stamp. Returns 0 or an errno.
  int send_limited(const SocketAddress& to, std::uint8_t hops, const std::uint8_t* data, std::size_t size);
  // Whether ICMP errors are kept for this socket (IP_RECVERR). The kernel then also fails one later call for
  // each error that comes: to be on for no longer than answers are waited for.
  void receive_errors(bool on);
  bool hears_errors() const { return hears_errors_; }

  // Calls `take(const TxStamp&)` for each TX stamp that has come back, `answered(const HopAnswer&)` for each
  // answer of a switch.
  template <typename Take, typename Answered>
  void tx_stamps(Take take, Answered answered) {
    for (;;) {
      const int n = receive_stamps();
      for (int i = 0; i < n; ++i) {
        TxStamp s;
        HopAnswer a;
        if (parse_stamp(i, &s)) {
          if (is_numbered(s)) take(s);
        } else if (hears_errors_ && parse_answer(i, &a)) {
          answered(a);
        }
      }
      if (n < kBatch) break;
    }
  }

  // The kernel numbers the packets that it stamps, and after a failed send it is uncertain whether it has used up a
  // number; where stamps come with numbers that were not given it has. From then on we give the numbers ourselves, where
  // the kernel lets us. Where it does not (before Linux 6.13) packets go without: its numbering can be started anew, from
  // 0, only when all packets with a number have left, and their stamps have been taken. The caller must see to that, and
  // forget what it still waits for.
  bool numbering_uncertain() const { return numbering_ == Numbering::kUncertain; }
  void restart_numbering();
  // Whether packets of this socket still wait in this host. True where the kernel does not say.
  bool unsent() const;
  std::uint64_t overflows() const { return overflows_; }

 private:
  int receive_packets();
  int receive_stamps();
  bool parse_received(int index, Received* out);
  bool parse_stamp(int index, TxStamp* out);
  bool parse_answer(int index, HopAnswer* out);
  // Whether its number has been given, and of that packet for sure. One that has not been given makes the numbering
  // uncertain: each packet would get the stamp of another one from then on.
  bool is_numbered(const TxStamp& stamp);
  void lose_count();
  void forget_error();

  int fd_ = -1;
  unsigned timestamping_ = 0;
  enum class Numbering { kByKernel, kOurs, kUncertain };
  Numbering numbering_ = Numbering::kByKernel;
  std::uint32_t next_id_ = 0;
  std::uint32_t first_id_ = 0;  // stamps of lower numbers are in doubt
  bool hears_errors_ = false;
  std::uint32_t overflow_mark_ = 0;
  std::uint64_t overflows_ = 0;  // packets that the kernel dropped because the receive buffer was full
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_PROBE_SOCKET_H_
