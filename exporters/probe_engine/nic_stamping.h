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

// Which devices stamp by the PHC that is used: those that packets arrive at, below a bond or a VLAN, by their index. A bond
// takes another one when a link fails, whose stamps are by another clock. Pure.
class StampingDevices {
 public:
  // Whether stamps of a device are by that PHC for sure. 0, where the kernel does not tell it, counts as one.
  bool known(unsigned index) {
    if (index == 0 || index == known_[0] || index == known_[1]) return true;
    asked_ = index;
    return false;
  }
  // A device that is to be asked for its PHC; 0 = none, and stamps of what is sent are not in doubt either.
  unsigned asked() const { return asked_; }
  // phc : of the device that was asked about. found : its own; -1 = it has none, or is not ours to ask, in another network
  // namespace. The first of those has to be the one that was there when the PHC was asked for.
  void answer(int phc, int found) {
    if (found == phc || (found < 0 && known_[0] == 0)) {
      known_[1] = known_[0];
      known_[0] = asked_;
    }
    asked_ = 0;
  }

 private:
  unsigned known_[2] = {0, 0};
  unsigned asked_ = 0;
};

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
