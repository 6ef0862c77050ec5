#include "process/link_events.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "core/owned_fds.h"

namespace fabricpulse {
namespace {

// Calls each(type, payload, size) for each attribute in `data`; each() returns false to stop.
template <typename Each>
void for_attributes(const uint8_t* data, size_t size, Each&& each) {
  while (size >= sizeof(rtattr)) {
    rtattr head;
    memcpy(&head, data, sizeof(head));
    if (head.rta_len < sizeof(head) || head.rta_len > size) return;
    if (!each(head.rta_type, data + sizeof(head), head.rta_len - sizeof(head))) return;
    size_t whole = RTA_ALIGN(head.rta_len);
    if (whole >= size) return;
    data += whole;
    size -= whole;
  }
}

// The interface's name among a link message's attributes; "" if there is none with a terminator.
const char* interface_name(const uint8_t* data, size_t size) {
  const char* name = "";
  for_attributes(data, size, [&](unsigned short type, const uint8_t* text, size_t length) {
    if (type != IFLA_IFNAME) return true;
    if (memchr(text, 0, length) != nullptr) name = reinterpret_cast<const char*>(text);
    return false;
  });
  return name;
}

// The event of one message, whose body is `data`.
void parse_message(unsigned short type, const uint8_t* data, size_t size,
                   const std::function<void(const LinkEvent&)>& each) {
  if ((type == RTM_NEWLINK || type == RTM_DELLINK) && size >= sizeof(ifinfomsg)) {
    ifinfomsg info;
    memcpy(&info, data, sizeof(info));
    size_t skip = std::min<size_t>(NLMSG_ALIGN(sizeof(info)), size);
    each({type == RTM_NEWLINK ? LinkEvent::Kind::kLink : LinkEvent::Kind::kLinkGone,
          static_cast<unsigned>(info.ifi_index), interface_name(data + skip, size - skip)});
  } else if ((type == RTM_NEWADDR || type == RTM_DELADDR) && size >= sizeof(ifaddrmsg)) {
    ifaddrmsg info;
    memcpy(&info, data, sizeof(info));
    each({type == RTM_NEWADDR ? LinkEvent::Kind::kAddress : LinkEvent::Kind::kAddressGone, info.ifa_index,
          ""});
  }
}

}  // namespace

int open_link_events() {
  int fd = own_fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  if (fd < 0) return -1;
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    close_owned(fd);
    return -1;
  }
  return fd;
}

void parse_link_events(const void* data, size_t size, const std::function<void(const LinkEvent&)>& each) {
  const auto* at = static_cast<const uint8_t*>(data);
  while (size >= sizeof(nlmsghdr)) {
    nlmsghdr head;
    memcpy(&head, at, sizeof(head));
    if (head.nlmsg_len < sizeof(head) || head.nlmsg_len > size) return;
    parse_message(head.nlmsg_type, at + sizeof(head), head.nlmsg_len - sizeof(head), each);
    size_t whole = NLMSG_ALIGN(static_cast<size_t>(head.nlmsg_len));
    if (whole >= size) return;
    at += whole;
    size -= whole;
  }
}

bool read_link_events(int fd, const std::function<void(const LinkEvent&)>& each) {
  alignas(nlmsghdr) char buffer[32 * 1024];
  bool whole = true;
  for (;;) {
    ssize_t got = recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got > 0) {
      parse_link_events(buffer, static_cast<size_t>(got), each);
    } else if (got < 0 && errno == ENOBUFS) {
      whole = false;
    } else if (got >= 0 || errno != EINTR) {
      return whole;
    }
  }
}

}  // namespace fabricpulse
