#include "rendezvous.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "waiting.h"

namespace fabricpulse::ring {
namespace {

void time_limit(int fd, int seconds) {
  timeval limit{seconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

}  // namespace

Rendezvous::Rendezvous(uint32_t rank, uint32_t size, const std::string& address, int timeout_s)
    : rank_(rank), size_(size) {
  size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon), port = address.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *info = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &info); code != 0)
    throw std::runtime_error("rendezvous " + address + ": " + gai_strerror(code));
  double deadline = now_s() + timeout_s;
  if (rank == 0) {
    int listener = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(listener, info->ai_addr, info->ai_addrlen) != 0 || listen(listener, 128) != 0) {
      std::string why = strerror(errno);
      freeaddrinfo(info);
      close(listener);
      throw std::runtime_error("rendezvous: cannot listen on " + address + ": " + why);
    }
    freeaddrinfo(info);
    fds_.assign(size, -1);
    for (uint32_t n = 1; n < size;) {
      int left = static_cast<int>(deadline - now_s());
      time_limit(listener, left > 0 ? left : 1);
      int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0 && errno == EINTR && now_s() <= deadline) continue;
      if (fd < 0 || now_s() > deadline) {
        close(listener);
        throw std::runtime_error("rendezvous " + address + ": " + std::to_string(size - n) + " of " +
                                 std::to_string(size - 1) + " ranks did not come within " +
                                 std::to_string(timeout_s) + " s");
      }
      time_limit(fd, timeout_s);
      uint32_t peer = 0;
      try {
        read_all(fd, &peer, sizeof(peer));
      } catch (const std::runtime_error&) {
        peer = 0;
      }
      if (peer == 0 || peer >= size || fds_[peer] >= 0) {
        close(fd);
        continue;
      }
      on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      fds_[peer] = fd;
      ++n;
    }
    close(listener);
    return;
  }
  for (;;) {
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    time_limit(fd, timeout_s);
    if (connect(fd, info->ai_addr, info->ai_addrlen) == 0) {
      int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      fds_.push_back(fd);
      freeaddrinfo(info);
      write_all(fd, &rank_, sizeof(rank_));
      return;
    }
    std::string why = strerror(errno);
    close(fd);
    if (now_s() > deadline) {
      freeaddrinfo(info);
      throw std::runtime_error("rendezvous: rank 0 does not answer at " + address + ": " + why);
    }
    usleep(50'000);
  }
}

Rendezvous::~Rendezvous() {
  for (int fd : fds_)
    if (fd >= 0) close(fd);
}

void Rendezvous::write_all(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) throw std::runtime_error("rendezvous: a rank has ended");
    at += sent;
    size -= static_cast<size_t>(sent);
  }
}

void Rendezvous::read_all(int fd, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    // A call with a time limit ends with EINTR, or short, when the process was stopped and goes on.
    ssize_t got = recv(fd, at, size, MSG_WAITALL);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw std::runtime_error("rendezvous: a rank has ended");
    at += got;
    size -= static_cast<size_t>(got);
  }
}

std::vector<std::vector<uint8_t>> Rendezvous::all_gather(const std::vector<uint8_t>& mine) {
  std::vector<std::vector<uint8_t>> all(size_, std::vector<uint8_t>(mine.size()));
  all[rank_] = mine;
  if (rank_ == 0) {
    for (uint32_t r = 1; r < size_; ++r) read_all(fds_[r], all[r].data(), mine.size());
    for (uint32_t r = 1; r < size_; ++r)
      for (auto& block : all) write_all(fds_[r], block.data(), block.size());
  } else {
    write_all(fds_[0], mine.data(), mine.size());
    for (auto& block : all) read_all(fds_[0], block.data(), block.size());
  }
  return all;
}

bool Rendezvous::barrier(int timeout_s) {
  for (int fd : fds_)
    if (fd >= 0) time_limit(fd, timeout_s);
  try {
    all_gather({1});
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

}  // namespace fabricpulse::ring
