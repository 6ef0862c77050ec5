// The connection of the two processes of the net benchmark: they exchange handles and keep step by it.
#pragma once
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace net_bench {

inline int meet(bool listens, const std::string& address) {
  size_t colon = address.rfind(':');
  addrinfo hints{}, *info = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints, &info) != 0)
    exit(2);
  int on = 1;
  for (int tries = 0; tries < 200; ++tries) {
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listens) {
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      if (bind(fd, info->ai_addr, info->ai_addrlen) != 0 || listen(fd, 1) != 0) exit(2);
      int peer = accept(fd, nullptr, nullptr);
      close(fd);
      return peer;
    }
    if (connect(fd, info->ai_addr, info->ai_addrlen) == 0) return fd;
    close(fd);
    usleep(50'000);
  }
  exit(2);
}

inline void swap_bytes(int fd, const void* mine, void* theirs, size_t size) {
  if (send(fd, mine, size, 0) != static_cast<ssize_t>(size) ||
      recv(fd, theirs, size, MSG_WAITALL) != static_cast<ssize_t>(size)) {
    fprintf(stderr, "the other process has gone\n");
    exit(1);
  }
}

}  // namespace net_bench
