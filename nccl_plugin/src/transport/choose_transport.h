// Which type of lanes a process has.
#ifndef FABRICPULSE_TRANSPORT_CHOOSE_TRANSPORT_H_
#define FABRICPULSE_TRANSPORT_CHOOSE_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/transport.h"

namespace fabricpulse {

// Lane type by FABRICPULSE_LANES. nullptr: `error` says what is missing. RDMA devices are never passed over in
// silence: `auto` takes TCP only where there are none.
std::unique_ptr<Transport> choose_transport(const Config& config, Poller* poller, TransportEvents* events,
                                            std::function<void(uint64_t now)> ports_changed,
                                            std::string* error);

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_CHOOSE_TRANSPORT_H_
