// Which type of lanes a process has.
#ifndef FABRICPULSE_TRANSPORT_CHOOSE_TRANSPORT_H_
#define FABRICPULSE_TRANSPORT_CHOOSE_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/transport.h"

namespace fabricpulse {

// Lane type by FABRICPULSE_LANES. RDMA devices are never passed over in silence: `auto` takes TCP only where there are
// none. `no_lanes` names what is missing, if the lanes that were asked for cannot be had: what this returns then knows
// the NICs, and no lane is to be made by it. `complaint` gets a sentence if the variable has another value.
std::unique_ptr<Transport> choose_transport(const Config& config, Poller* poller, TransportEvents* events,
                                            std::function<void(uint64_t now)> ports_changed,
                                            std::function<void(const std::string&)> warn,
                                            std::string* no_lanes, std::string* complaint);

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_CHOOSE_TRANSPORT_H_
