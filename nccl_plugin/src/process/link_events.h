// Link and address events of rtnetlink.
#ifndef FABRICPULSE_PROCESS_LINK_EVENTS_H_
#define FABRICPULSE_PROCESS_LINK_EVENTS_H_

#include <cstddef>
#include <functional>

namespace fabricpulse {

// One link or address that has changed. name: of the interface, "" if the message has none.
struct LinkEvent {
  enum class Kind { kLink, kLinkGone, kAddress, kAddressGone } kind;
  unsigned ifindex;
  const char* name;
};

// Non-blocking socket for link and address events; -1 if the kernel refuses.
int open_link_events();

// The events of a buffer that was read from such a socket, in their order. What is cut or of another kind is
// left out.
void parse_link_events(const void* data, size_t size, const std::function<void(const LinkEvent&)>& each);

// Reads what is there. False: events were lost.
bool read_link_events(int fd, const std::function<void(const LinkEvent&)>& each);

}  // namespace fabricpulse

#endif  // FABRICPULSE_PROCESS_LINK_EVENTS_H_
