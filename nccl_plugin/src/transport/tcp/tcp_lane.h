// A lane over one TCP socket: frames one behind the other in both directions.
#ifndef FABRICPULSE_TRANSPORT_TCP_TCP_LANE_H_
#define FABRICPULSE_TRANSPORT_TCP_TCP_LANE_H_

#include <memory>

#include "core/lane.h"

namespace fabricpulse {

// Takes over a connected, non-blocking socket on which the hello is done. payload_crc: chunks get a checksum
// of their payload (one that has arrived with a chunk is checked in any case).
std::unique_ptr<LaneTransport> make_tcp_lane(int fd, bool payload_crc);

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_TCP_TCP_LANE_H_
