#include "probe_socket.h"

#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <linux/filter.h>
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/icmp6.h>
#include <netinet/ip_icmp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

namespace fabricpulse {
namespace {

constexpr int kBatch = ProbeSocket::kBatch;
constexpr std::size_t kBuffer = 256;
constexpr std::size_t kControl = 256;
constexpr std::uint32_t kSettledNumbers = 8;  // of stamps; those of four trains
// Between the last number of the kernel and the first of ours: more than it may have used up unseen.
constexpr std::uint32_t kNumbersApart = 1 << 16;
#ifdef SCM_TS_OPT_ID
constexpr int kStampNumber = SCM_TS_OPT_ID;
#else
constexpr int kStampNumber = 81;  // Linux 6.13, on all that fabricpulse runs on
#endif

// A control message of four bytes at the level of sockets.
template <int kType>
struct Control {
  alignas(cmsghdr) std::uint8_t bytes[CMSG_SPACE(sizeof(std::uint32_t))] = {};
  Control() {
    auto* header = reinterpret_cast<cmsghdr*>(bytes);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = kType;
    header->cmsg_len = CMSG_LEN(sizeof(std::uint32_t));
  }
  void set(std::uint32_t value) {
    std::memcpy(CMSG_DATA(reinterpret_cast<cmsghdr*>(bytes)), &value, sizeof(value));
  }
  void put(msghdr* message) {
    message->msg_control = bytes;
    message->msg_controllen = sizeof(bytes);
  }
};
using Unstamped = Control<SO_TIMESTAMPING>;  // wants no TX stamp: its flags replace those of the socket
using StampNumber = Control<kStampNumber>;   // of its TX stamp

// Asks with an empty packet to nobody but ourselves; without a loopback device the answer comes too, as what is wrong with
// a message is said first. Nothing where it could not be asked: no descriptor is left, say.
std::optional<bool> ask_for_stamp_numbers() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  const unsigned flags = SOF_TIMESTAMPING_OPT_ID;
  setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof(flags));
  SocketAddress own{};
  own.v4.sin_family = AF_INET;
  own.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(own.v4);
  if (bind(fd, &own.any, size) != 0 || getsockname(fd, &own.any, &size) != 0) own.v4.sin_port = htons(9);
  StampNumber number;
  mmsghdr message{};
  message.msg_hdr.msg_name = &own.any;
  message.msg_hdr.msg_namelen = size;
  number.put(&message.msg_hdr);
  const int error = sendmmsg(fd, &message, 1, MSG_DONTWAIT) == 1 ? 0 : errno;
  ::close(fd);
  if (error == 0 || error == ENETUNREACH || error == ENETDOWN) return true;
  if (error == EINVAL) return false;
  return std::nullopt;
}

// Whether the kernel takes numbers from us, as far as is known.
bool takes_stamp_numbers() {
  static std::atomic<int> known{-1};
  int taken = known.load(std::memory_order_relaxed);
  if (taken < 0) {
    const std::optional<bool> answer = ask_for_stamp_numbers();
    if (!answer) return false;
    taken = *answer ? 1 : 0;
    known.store(taken, std::memory_order_relaxed);
  }
  return taken == 1;
}

// Scratch memory of the batches. The engine is one thread, and a socket hands its batch out before it takes
// the next.
struct OutgoingBatch {
  mmsghdr messages[kBatch];
  iovec vectors[kBatch];
  StampNumber numbers[kBatch];
};
OutgoingBatch& outgoing_batch() {
  thread_local OutgoingBatch instance;
  return instance;
}

// What recvmmsg fills. It stays set up from call to call and only the entries of the last call are made ready
// again: the engine wakes to cold caches, and to write all 64 each time costs more than to receive some of
// them.
struct IncomingBatch {
  mmsghdr messages[kBatch];
  iovec vectors[kBatch];
  std::uint8_t data[kBatch][kBuffer];
  alignas(cmsghdr) std::uint8_t control[kBatch][kControl];
  SocketAddress names[kBatch];
  int used = kBatch;
  bool with_packets;

  // with_packets : false for the error queue, whose messages are all control message: a TX stamp comes
  // without its packet (OPT_TSONLY), and its destination is known by its number. The kernel has less to copy
  // then.
  explicit IncomingBatch(bool packets) : with_packets(packets) {
    for (int i = 0; i < kBatch; ++i) {
      msghdr& h = messages[i].msg_hdr;
      std::memset(&h, 0, sizeof(h));
      h.msg_control = control[i];
      if (!with_packets) continue;
      vectors[i] = {data[i], kBuffer};
      h.msg_name = &names[i];
      h.msg_iov = &vectors[i];
      h.msg_iovlen = 1;
    }
  }
  int receive(int fd, int flags) {
    for (int i = 0; i < used; ++i) {
      msghdr& h = messages[i].msg_hdr;
      h.msg_namelen = with_packets ? sizeof(SocketAddress) : 0;
      h.msg_controllen = kControl;
      h.msg_flags = 0;
    }
    const int n = recvmmsg(fd, messages, kBatch, MSG_DONTWAIT | flags, nullptr);
    // The entry at which it stopped counts as used: whether the kernel has written to it is its own affair.
    used = std::min(std::max(n, 0) + 1, kBatch);
    return n;
  }
};
IncomingBatch& packet_batch() {
  thread_local IncomingBatch instance(true);
  return instance;
}
IncomingBatch& stamp_batch() {
  thread_local IncomingBatch instance(false);
  return instance;
}

std::int64_t nanoseconds(const timespec& t) {
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// struct scm_timestamping: [0] software, [2] hardware.
bool take_stamps(const cmsghdr* c, std::int64_t* kernel_ns, std::int64_t* nic_ns) {
  timespec stamps[3];
  std::memcpy(stamps, CMSG_DATA(c), sizeof(stamps));
  *kernel_ns = nanoseconds(stamps[0]);
  *nic_ns = nanoseconds(stamps[2]);
  return *kernel_ns != 0 || *nic_ns != 0;
}

}  // namespace

bool SocketAddress::same_host(const SocketAddress& other) const {
  if (any.sa_family != other.any.sa_family) return false;
  if (any.sa_family == AF_INET) return v4.sin_addr.s_addr == other.v4.sin_addr.s_addr;
  return std::memcmp(&v6.sin6_addr, &other.v6.sin6_addr, sizeof(v6.sin6_addr)) == 0;
}

SocketAddress make_address(const std::string& address, std::uint16_t port, unsigned scope) {
  SocketAddress out;
  std::memset(&out, 0, sizeof(out));
  if (inet_pton(AF_INET, address.c_str(), &out.v4.sin_addr) == 1) {
    out.v4.sin_family = AF_INET;
    out.v4.sin_port = htons(port);
    return out;
  }
  const std::string bare = address.substr(0, address.find('%'));
  if (inet_pton(AF_INET6, bare.c_str(), &out.v6.sin6_addr) == 1) {
    out.v6.sin6_family = AF_INET6;
    out.v6.sin6_port = htons(port);
    if (IN6_IS_ADDR_LINKLOCAL(&out.v6.sin6_addr)) out.v6.sin6_scope_id = scope;
    return out;
  }
  throw std::invalid_argument("not a numeric IP address: " + address);
}

ProbeSocket::ProbeSocket(ProbeSocket&& other) noexcept { *this = std::move(other); }

ProbeSocket& ProbeSocket::operator=(ProbeSocket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    timestamping_ = other.timestamping_;
    numbering_ = other.numbering_;
    next_id_ = other.next_id_;
    first_id_ = other.first_id_;
    overflow_mark_ = other.overflow_mark_;
    overflows_ = other.overflows_;
    hears_errors_ = other.hears_errors_;
  }
  return *this;
}

void ProbeSocket::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  hears_errors_ = false;
}

int ProbeSocket::open(const SocketAddress& local, const SocketOptions& options) {
  close();
  const int family = local.any.sa_family;
  fd_ = socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) return errno;
  auto fail = [this] {
    const int error = errno;
    close();
    return error;
  };
  const int one = 1;
  if (!options.device.empty() &&
      setsockopt(fd_, SOL_SOCKET, SO_BINDTODEVICE, options.device.c_str(),
                 static_cast<socklen_t>(options.device.size())) != 0 &&
      errno != EPERM) {  // before Linux 5.7 it needs CAP_NET_RAW; the address then has to do
    return fail();
  }
  // TX stamps wait in the error queue and count against the receive buffer too. FORCE goes past rmem_max, as
  // root.
  if (setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &options.receive_buffer, sizeof(int)) != 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &options.receive_buffer, sizeof(int));
  }
  const int tos = options.dscp << 2;
  if (family == AF_INET) {
    // A probe is never fragmented, whatever an ICMP message claims of the path; and without fragments the
    // kernel need not draw an identification for each packet.
    const int probe = IP_PMTUDISC_PROBE;
    if (setsockopt(fd_, IPPROTO_IP, IP_MTU_DISCOVER, &probe, sizeof(probe)) != 0) return fail();
    if (tos != 0 && setsockopt(fd_, IPPROTO_IP, IP_TOS, &tos, sizeof(tos)) != 0) return fail();
  } else {
    if (setsockopt(fd_, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)) != 0) return fail();
    const int probe = IPV6_PMTUDISC_PROBE;
    if (setsockopt(fd_, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &probe, sizeof(probe)) != 0) return fail();
    if (tos != 0 && setsockopt(fd_, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof(tos)) != 0) return fail();
  }
  if (options.receive) {
    setsockopt(fd_, SOL_SOCKET, SO_RXQ_OVFL, &one, sizeof(one));
  } else {
    // Nobody writes to a source port of the sweep; what comes must not fill the queue that the TX stamps
    // need.
    sock_filter drop[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    sock_fprog program = {1, drop};
    if (setsockopt(fd_, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) != 0) return fail();
  }
  timestamping_ = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE |
                  SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_TSONLY;
  if (options.hardware) {
    // Both: without OPT_TX_SWHW a NIC that stamps keeps the kernel from doing so.
    timestamping_ |= SOF_TIMESTAMPING_TX_HARDWARE | SOF_TIMESTAMPING_RX_HARDWARE |
                     SOF_TIMESTAMPING_RAW_HARDWARE | SOF_TIMESTAMPING_OPT_TX_SWHW |
                     SOF_TIMESTAMPING_OPT_PKTINFO;
  }
  if (setsockopt(fd_, SOL_SOCKET, SO_TIMESTAMPING, &timestamping_, sizeof(timestamping_)) != 0) return fail();
  if (bind(fd_, &local.any, local.size()) != 0) return fail();
  numbering_ = Numbering::kByKernel;
  next_id_ = first_id_ = 0;
  overflow_mark_ = 0;
  return 0;
}

unsigned ProbeSocket::send(std::vector<Outgoing>& packets) {
  static Unstamped unstamped;
  OutgoingBatch& b = outgoing_batch();
  std::size_t done = 0;
  unsigned without = 0;
  while (done < packets.size()) {
    const auto n = static_cast<unsigned>(packets.size() - done < kBatch ? packets.size() - done : kBatch);
    std::uint32_t stamped = 0;
    for (unsigned i = 0; i < n; ++i) {
      Outgoing& p = packets[done + i];
      b.vectors[i] = {const_cast<std::uint8_t*>(p.data), p.size};
      msghdr& h = b.messages[i].msg_hdr;
      std::memset(&h, 0, sizeof(h));
      h.msg_name = &p.to->any;
      h.msg_namelen = p.to->size();
      h.msg_iov = &b.vectors[i];
      h.msg_iovlen = 1;
      if (!p.stamp || numbering_ == Numbering::kUncertain) {
        unstamped.put(&h);
      } else if (numbering_ == Numbering::kOurs) {
        b.numbers[i].set(next_id_ + stamped++);
        b.numbers[i].put(&h);
      }
    }
    if (hears_errors_) forget_error();
    const int sent = sendmmsg(fd_, b.messages, n, MSG_DONTWAIT);
    if (sent <= 0) {
      packets[done].error = errno != 0 ? errno : EIO;
      if (packets[done].stamp) lose_count();
      ++done;
      continue;
    }
    for (int i = 0; i < sent; ++i, ++done) {
      Outgoing& p = packets[done];
      p.error = 0;
      if (!p.stamp) continue;
      if (numbering_ == Numbering::kUncertain) {
        p.stamp = false;
        ++without;
      } else {
        p.id = next_id_++;
      }
    }
    // The kernel does not say why it stopped. Where a device dropped that packet it has used up its number, and the
    // packet is sent again under the next one.
    if (static_cast<unsigned>(sent) < n && packets[done].stamp) lose_count();
  }
  return without;
}

void ProbeSocket::lose_count() {
  if (numbering_ == Numbering::kOurs) {
    ++next_id_;  // it may have been stamped under that number
  } else if (numbering_ == Numbering::kByKernel && takes_stamp_numbers()) {
    numbering_ = Numbering::kOurs;
    next_id_ += kNumbersApart;
  } else {
    numbering_ = Numbering::kUncertain;
  }
}

bool ProbeSocket::unsent() const {
  int bytes = 0;
  return ioctl(fd_, SIOCOUTQ, &bytes) != 0 || bytes != 0;
}

void ProbeSocket::restart_numbering() {
  const unsigned without = timestamping_ & ~static_cast<unsigned>(SOF_TIMESTAMPING_OPT_ID);
  setsockopt(fd_, SOL_SOCKET, SO_TIMESTAMPING, &without, sizeof(without));
  setsockopt(fd_, SOL_SOCKET, SO_TIMESTAMPING, &timestamping_, sizeof(timestamping_));
  numbering_ = Numbering::kByKernel;
  next_id_ = first_id_ = 0;
}

bool ProbeSocket::is_numbered(const TxStamp& stamp) {
  if (static_cast<std::int32_t>(stamp.id - next_id_) < 0) {
    return static_cast<std::int32_t>(stamp.id - first_id_) >= 0;
  }
  // Soon after a new beginning it may be one from earlier that has come late.
  if (numbering_ == Numbering::kByKernel && next_id_ >= kSettledNumbers) {
    first_id_ = next_id_;
    lose_count();
  }
  return false;
}

void ProbeSocket::receive_errors(bool on) {
  const int value = on ? 1 : 0;
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&local), &size) != 0) return;
  const bool v6 = local.ss_family == AF_INET6;
  const int failed =
      setsockopt(fd_, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_RECVERR : IP_RECVERR, &value, sizeof(value));
  // What has come so far would fail the next call.
  forget_error();
  hears_errors_ = on && failed == 0;
}

void ProbeSocket::forget_error() {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
}

int ProbeSocket::send_limited(const SocketAddress& to, std::uint8_t hops, const std::uint8_t* data,
                              std::size_t size) {
  constexpr std::size_t kFlags = CMSG_SPACE(sizeof(std::uint32_t));
  alignas(cmsghdr) std::uint8_t control[kFlags + CMSG_SPACE(sizeof(int))] = {};
  iovec vector{const_cast<std::uint8_t*>(data), size};
  SocketAddress destination = to;
  msghdr message{};
  message.msg_name = &destination.any;
  message.msg_namelen = destination.size();
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;  // no TX stamp: its number would be missing from ours
  header->cmsg_type = SO_TIMESTAMPING;
  header->cmsg_len = CMSG_LEN(sizeof(std::uint32_t));
  header = CMSG_NXTHDR(&message, header);
  const bool v6 = to.any.sa_family == AF_INET6;
  header->cmsg_level = v6 ? IPPROTO_IPV6 : IPPROTO_IP;
  header->cmsg_type = v6 ? IPV6_HOPLIMIT : IP_TTL;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int limit = hops;
  std::memcpy(CMSG_DATA(header), &limit, sizeof(limit));
  // The answer to the packet before may have come already.
  if (hears_errors_) forget_error();
  return sendmsg(fd_, &message, MSG_DONTWAIT) < 0 ? errno : 0;
}

int ProbeSocket::receive_packets() {
  if (hears_errors_) forget_error();
  // MSG_TRUNC: the full length of a truncated message is returned.
  return packet_batch().receive(fd_, MSG_TRUNC);
}

// The answer of a switch has its packet with it, and shares the queue with the stamps.
int ProbeSocket::receive_stamps() {
  return (hears_errors_ ? packet_batch() : stamp_batch()).receive(fd_, MSG_ERRQUEUE);
}

bool ProbeSocket::parse_received(int index, Received* out) {
  IncomingBatch& b = packet_batch();
  mmsghdr& m = b.messages[index];
  out->data = b.data[index];
  // A packet longer than the buffer is cut: of a size probe, the zeros at its end. Its length is that of the whole.
  out->size = m.msg_len;
  out->from = b.names[index];
  out->kernel_ns = 0;
  out->nic_ns = 0;
  out->nic_index = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m.msg_hdr); c != nullptr; c = CMSG_NXTHDR(&m.msg_hdr, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type == SCM_TIMESTAMPING) {
      take_stamps(c, &out->kernel_ns, &out->nic_ns);
    } else if (c->cmsg_type == SCM_TIMESTAMPING_PKTINFO) {
      scm_ts_pktinfo info;
      std::memcpy(&info, CMSG_DATA(c), sizeof(info));
      out->nic_index = info.if_index;
    } else if (c->cmsg_type == SO_RXQ_OVFL) {
      std::uint32_t count;
      std::memcpy(&count, CMSG_DATA(c), sizeof(count));
      overflows_ += count - overflow_mark_;
      overflow_mark_ = count;
    }
  }
  return true;
}

bool ProbeSocket::parse_stamp(int index, TxStamp* out) {
  mmsghdr& m = (hears_errors_ ? packet_batch() : stamp_batch()).messages[index];
  bool stamped = false, numbered = false;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m.msg_hdr); c != nullptr; c = CMSG_NXTHDR(&m.msg_hdr, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPING) {
      stamped = take_stamps(c, &out->kernel_ns, &out->nic_ns);
    } else if ((c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) ||
               (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR)) {
      sock_extended_err error;
      std::memcpy(&error, CMSG_DATA(c), sizeof(error));
      numbered = error.ee_origin == SO_EE_ORIGIN_TIMESTAMPING && error.ee_info == SCM_TSTAMP_SND;
      out->id = error.ee_data;
    }
  }
  return stamped && numbered;
}

bool ProbeSocket::parse_answer(int index, HopAnswer* out) {
  IncomingBatch& b = packet_batch();
  mmsghdr& m = b.messages[index];
  for (cmsghdr* c = CMSG_FIRSTHDR(&m.msg_hdr); c != nullptr; c = CMSG_NXTHDR(&m.msg_hdr, c)) {
    const bool v4 = c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR;
    const bool v6 = c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR;
    const std::size_t address = v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (!(v4 || v6) || c->cmsg_len < CMSG_LEN(sizeof(sock_extended_err) + address)) continue;
    sock_extended_err error;
    std::memcpy(&error, CMSG_DATA(c), sizeof(error));
    const bool used_up = v4 ? error.ee_origin == SO_EE_ORIGIN_ICMP && error.ee_type == ICMP_TIME_EXCEEDED
                            : error.ee_origin == SO_EE_ORIGIN_ICMP6 && error.ee_type == ICMP6_TIME_EXCEEDED;
    if (!used_up || error.ee_code != 0) continue;
    std::memset(&out->from, 0, sizeof(out->from));
    std::memcpy(&out->from, CMSG_DATA(c) + sizeof(error), address);
    if (out->from.any.sa_family != (v6 ? AF_INET6 : AF_INET)) continue;
    out->size = std::min<std::size_t>(m.msg_len, HopAnswer::kMostQuoted);
    std::memcpy(out->quoted, b.data[index], out->size);
    return true;
  }
  return false;
}

}  // namespace fabricpulse
