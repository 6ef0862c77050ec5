// Whether a NIC stamps packets by its own clock, and by which.
#ifndef FABRICPULSE_EXPORTERS_NIC_STAMPING_H_
#define FABRICPULSE_EXPORTERS_NIC_STAMPING_H_

#include <cstdint>
#include <string>

#include "settings.h"

namespace fabricpulse {

struct NicStamping {
  int phc = -1;   // N of /dev/ptpN whose stamps are used, -1 = none
  int error = 0;  // errno, why not; 0 = this NIC has none, or nobody has asked for them
};

// Asks the driver, and with Timestamps::kHardware sets the NIC up to stamp all packets, or where it cannot those that
// leave. What somebody else has set up, ptp4l say, stays as it is, and is used.
NicStamping set_up_stamping(const std::string& device, Timestamps timestamps);

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_NIC_STAMPING_H_
