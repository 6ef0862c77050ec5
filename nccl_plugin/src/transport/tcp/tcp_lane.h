// A lane over one TCP socket: frames one behind the other in both directions.
#ifndef FABRICPULSE_TRANSPORT_TCP_TCP_LANE_H_
#define FABRICPULSE_TRANSPORT_TCP_TCP_LANE_H_

#include <memory>

#include "core/lane.h"

namespace fabricpulse {

// Takes over a connected, non-blocking socket on which the hello is done.
std::unique_ptr<LaneTransport> make_tcp_lane(int fd);

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_TCP_TCP_LANE_H_
