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

// What the checks of a NIC that is in use find. Pure.
class StampingChecks {
 public:
  // Whether the sockets must be opened anew for what was found. `used` takes over why the NIC's stamps are not used. A
  // driver that is busy or short of memory says so once: that counts when the next check finds an error too.
  bool reopen(const NicStamping& found, NicStamping* used) {
    if (found.phc == used->phc) {
      used->error = found.error;
      failed_ = false;
      return false;
    }
    const bool failed_before = failed_;
    failed_ = found.error != 0;
    return !failed_ || failed_before;
  }

 private:
  bool failed_ = false;  // the last check
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_NIC_STAMPING_H_
