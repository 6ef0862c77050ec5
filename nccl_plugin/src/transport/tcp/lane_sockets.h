// Sockets that lanes are dialled and accepted by.
#ifndef FABRICPULSE_TRANSPORT_TCP_LANE_SOCKETS_H_
#define FABRICPULSE_TRANSPORT_TCP_LANE_SOCKETS_H_

#include <cerrno>
#include <cstdint>
#include <string>

#include "core/nic.h"
#include "core/transport.h"

namespace fabricpulse {

// A packet leaves by the NIC that it is for, whatever the routing table prefers. Without the right to it,
// by the table.
void bind_to_device(int fd, const std::string& name);
void no_delay(int fd);
// Whether descriptors are scarce: the kernel gives the lowest that is free, so a high one says that most
// are in use. The soft limit is raised as far as it goes before that is true.
bool descriptors_scarce(int fd);
inline bool out_of_descriptors(int error) { return error == EMFILE || error == ENFILE; }
// Two full packets: on a path that loses them, or whose MTU is smaller than its ends think, a hello with
// them does not arrive, and its lane stays down instead of failing under the first chunk, again and again.
uint32_t full_packets(int fd);
bool is_ready(int fd, short events);  // of poll(2)
// A socket on its way to the peer; -1: see errno. source_port: 0: any.
int dial_socket(const NicInfo& from, const DialRequest& request, uint16_t source_port);
// Ends a socket that was owned (core/owned_fds.h) with a reset: a FIN would look like the end of this process
// (core/peer_liveness.h).
void reset_owned(int fd);

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_TCP_LANE_SOCKETS_H_
