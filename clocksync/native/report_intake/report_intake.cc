#include "report_intake.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <stdexcept>
#include <system_error>

namespace fabricpulse {
namespace {

constexpr int kBatch = 64;
constexpr std::size_t kBuffer = 2048;
constexpr std::int64_t kSignalNs = 10'000'000;
// Batches that are taken in a tick: a flood on one socket keeps neither the others' reports nor the end of
// the thread waiting, and costs half of a core at most.
constexpr int kBatchesPerTick = 16;
// After reports have come the thread rests: in a fleet they come by the thousand, and a tick for each of them
// would cost more than taking it.
constexpr timespec kRest = {0, 1'000'000};

std::int64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

SipKey random_key() {
  std::random_device random;
  SipKey key;
  for (std::uint8_t& byte : key) byte = static_cast<std::uint8_t>(random());
  return key;
}

int open_socket(const std::string& address, std::uint16_t port, int receive_buffer) {
  sockaddr_storage local{};
  socklen_t size = 0;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&local);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&local);
  if (inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    size = sizeof(*v4);
  } else if (inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    size = sizeof(*v6);
  } else {
    throw std::invalid_argument("not a numeric IP address: " + address);
  }
  const int fd = socket(local.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("a socket for datagrams");
  const int on = 1;
  if (local.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_RXQ_OVFL, &on, sizeof(on));
  // Above net.core.rmem_max only with CAP_NET_ADMIN.
  if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &receive_buffer, sizeof(receive_buffer)) != 0) {
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
  }
  if (bind(fd, reinterpret_cast<sockaddr*>(&local), size) != 0) {
    const int error = errno;
    ::close(fd);
    errno = error;
    fail(address + " UDP port " + std::to_string(port));
  }
  return fd;
}

}  // namespace

struct ReportIntake::Buffers {
  mmsghdr messages[kBatch];
  iovec vectors[kBatch];
  std::uint8_t data[kBatch][kBuffer];
  sockaddr_storage names[kBatch];
  alignas(cmsghdr) std::uint8_t control[kBatch][CMSG_SPACE(sizeof(std::uint32_t))];
  std::vector<std::uint32_t> overflow_marks;
};

ReportIntake::ReportIntake(const std::vector<std::pair<std::string, std::uint16_t>>& addresses,
                           int receive_buffer)
    : table_(std::random_device()(), random_key()) {
  try {
    for (const auto& [address, port] : addresses)
      sockets_.push_back(open_socket(address, port, receive_buffer));
    event_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    stop_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (event_fd_ < 0 || stop_fd_ < 0) fail("eventfd");
    thread_ = std::thread(&ReportIntake::run, this);
  } catch (...) {
    close_sockets();
    throw;
  }
}

ReportIntake::~ReportIntake() { stop(); }

void ReportIntake::stop() {
  if (thread_.joinable()) {
    const std::uint64_t one = 1;
    (void)!write(stop_fd_, &one, sizeof(one));
    thread_.join();
  }
  close_sockets();
}

void ReportIntake::close_sockets() {
  for (const int fd : sockets_) ::close(fd);
  sockets_.clear();
  for (int* fd : {&event_fd_, &stop_fd_}) {
    if (*fd >= 0) ::close(*fd);
    *fd = -1;
  }
}

std::uint32_t ReportIntake::open_channel(const SipKey& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return table_.open(key);
}

void ReportIntake::close_channel(std::uint32_t channel) {
  const std::lock_guard<std::mutex> lock(mutex_);
  table_.close(channel);
}

void ReportIntake::take(std::vector<Arrival>* arrivals, std::vector<std::uint8_t>* edges) {
  const std::lock_guard<std::mutex> lock(mutex_);
  table_.take(arrivals, edges);
  complete_ = false;
  signalled_ns_ = 0;
}

std::pair<std::size_t, std::size_t> ReportIntake::waiting() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return table_.waiting();
}

IntakeCounts ReportIntake::counts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return table_.counts;
}

std::size_t ReportIntake::answer(const std::vector<ReplyHead>& heads, const std::vector<std::uint32_t>& spans,
                                 const std::uint8_t* residuals, std::size_t residual_bytes,
                                 const std::string& name) {
  struct Outgoing {
    mmsghdr messages[kBatch];
    iovec vectors[kBatch];
    std::uint8_t data[kBatch][kMaxDatagram];
    Source to[kBatch];
  };
  static thread_local Outgoing out;
  std::size_t sent = 0, at = 0;
  while (at < heads.size()) {
    int filled = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (; at < heads.size() && filled < kBatch; ++at) {
        const std::size_t begin = spans[2 * at], end = spans[2 * at + 1];
        if (begin > end || end > residual_bytes) continue;
        std::uint8_t* data = out.data[filled];
        const std::size_t size =
            table_.answer(heads[at], residuals + begin, end - begin, name, data, &out.to[filled]);
        if (size == 0) continue;
        out.vectors[filled] = {data, size};
        msghdr& h = out.messages[filled].msg_hdr;
        std::memset(&h, 0, sizeof(h));
        h.msg_name = &out.to[filled].address;
        h.msg_namelen = out.to[filled].size;
        h.msg_iov = &out.vectors[filled];
        h.msg_iovlen = 1;
        ++filled;
      }
    }
    std::size_t failed = 0, done = 0;
    for (int i = 0; i < filled;) {
      int run = i + 1;
      while (run < filled && out.to[run].socket == out.to[i].socket) ++run;
      const int n =
          sendmmsg(out.to[i].socket, out.messages + i, static_cast<unsigned>(run - i), MSG_DONTWAIT);
      // One that cannot be sent is left out; its sidecar reports again.
      if (n <= 0) ++failed;
      done += static_cast<std::size_t>(std::max(n, 0));
      i += std::max(n, 1);
    }
    sent += done;
    const std::lock_guard<std::mutex> lock(mutex_);
    table_.counts.answered += done;
    table_.counts.unsendable += failed;
  }
  return sent;
}

void ReportIntake::run() {
  auto buffers = std::make_unique<Buffers>();
  buffers->overflow_marks.resize(sockets_.size());
  for (int i = 0; i < kBatch; ++i) {
    buffers->vectors[i] = {buffers->data[i], kBuffer};
    msghdr& h = buffers->messages[i].msg_hdr;
    std::memset(&h, 0, sizeof(h));
    h.msg_name = &buffers->names[i];
    h.msg_iov = &buffers->vectors[i];
    h.msg_iovlen = 1;
    h.msg_control = buffers->control[i];
  }
  std::vector<pollfd> waits;
  for (const int fd : sockets_) waits.push_back({fd, POLLIN, 0});
  waits.push_back({stop_fd_, POLLIN, 0});
  for (;;) {
    if (poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) return;
    if (waits.back().revents) return;
    bool any = false;
    for (std::size_t i = 0; i + 1 < waits.size(); ++i) {
      if (waits[i].revents) any |= drain(static_cast<int>(i), *buffers);
    }
    if (any) nanosleep(&kRest, nullptr);
  }
}

bool ReportIntake::drain(int socket, Buffers& buffers) {
  bool any = false;
  const int fd = sockets_[static_cast<std::size_t>(socket)];
  Source from;
  from.socket = fd;
  for (int batch = 0; batch < kBatchesPerTick; ++batch) {
    for (mmsghdr& message : buffers.messages) {
      message.msg_hdr.msg_namelen = sizeof(sockaddr_storage);
      message.msg_hdr.msg_controllen = sizeof(buffers.control[0]);
      message.msg_hdr.msg_flags = 0;
    }
    const int n = recvmmsg(fd, buffers.messages, kBatch, MSG_DONTWAIT, nullptr);
    if (n <= 0) return any;
    any = true;
    const std::int64_t now = monotonic_ns();
    const std::lock_guard<std::mutex> lock(mutex_);
    for (int i = 0; i < n; ++i) {
      msghdr& header = buffers.messages[i].msg_hdr;
      const cmsghdr* c = CMSG_FIRSTHDR(&header);
      if (c != nullptr && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
        std::uint32_t mark;
        std::memcpy(&mark, CMSG_DATA(c), sizeof(mark));
        std::uint32_t& last = buffers.overflow_marks[static_cast<std::size_t>(socket)];
        table_.counts.overflowed += mark - last;
        last = mark;
      }
      if (header.msg_flags & MSG_TRUNC) {
        ++table_.counts.malformed;
        continue;
      }
      from.address = buffers.names[i];
      from.size = header.msg_namelen;
      std::uint8_t reset[kResetSize];
      if (table_.accept(buffers.data[i], buffers.messages[i].msg_len, from, now, reset)) {
        sendto(fd, reset, sizeof(reset), MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&from.address),
               from.size);
      }
    }
    signal(now);
    if (n < kBatch) return any;
  }
  return any;
}

void ReportIntake::signal(std::int64_t now_ns) {
  const auto [reported, missing] = table_.waiting();
  const bool complete = reported > 0 && missing == 0;
  if (reported == 0 || (now_ns - signalled_ns_ < kSignalNs && !(complete && !complete_))) return;
  complete_ = complete;
  signalled_ns_ = now_ns;
  const std::uint64_t one = 1;
  (void)!write(event_fd_, &one, sizeof(one));
}

}  // namespace fabricpulse
