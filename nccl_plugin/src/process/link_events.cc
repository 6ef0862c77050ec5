#include "process/link_events.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace fabricpulse {
namespace {

// The text of an attribute; "" if there is none with a terminator.
const char* text_attribute(const rtattr* attribute, size_t left, unsigned short type) {
  for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
    if (attribute->rta_type != type) continue;
    const auto* text = static_cast<const char*>(RTA_DATA(attribute));
    return memchr(text, 0, RTA_PAYLOAD(attribute)) != nullptr ? text : "";
  }
  return "";
}

}  // namespace

int open_link_events() {
  int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
  if (fd < 0) return -1;
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

void parse_link_events(const void* data, size_t size, const std::function<void(const LinkEvent&)>& each) {
  int left = static_cast<int>(size);
  for (const auto* header = static_cast<const nlmsghdr*>(data); NLMSG_OK(header, left);
       header = NLMSG_NEXT(header, left)) {
    bool link = header->nlmsg_type == RTM_NEWLINK || header->nlmsg_type == RTM_DELLINK;
    bool address = header->nlmsg_type == RTM_NEWADDR || header->nlmsg_type == RTM_DELADDR;
    if (link && header->nlmsg_len >= NLMSG_LENGTH(sizeof(ifinfomsg))) {
      const auto* info = static_cast<const ifinfomsg*>(NLMSG_DATA(header));
      LinkEvent event{header->nlmsg_type == RTM_NEWLINK ? LinkEvent::Kind::kLink : LinkEvent::Kind::kLinkGone,
                      static_cast<unsigned>(info->ifi_index),
                      text_attribute(IFLA_RTA(info), IFLA_PAYLOAD(header), IFLA_IFNAME)};
      each(event);
    } else if (address && header->nlmsg_len >= NLMSG_LENGTH(sizeof(ifaddrmsg))) {
      const auto* info = static_cast<const ifaddrmsg*>(NLMSG_DATA(header));
      bool here = header->nlmsg_type == RTM_NEWADDR;
      each({here ? LinkEvent::Kind::kAddress : LinkEvent::Kind::kAddressGone, info->ifa_index, ""});
    }
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
