// Reads the clock of a NIC (/dev/ptpN) together with CLOCK_MONOTONIC_RAW, as well as this kernel and driver can.
#ifndef FABRICPULSE_EXPORTERS_PHC_READER_H_
#define FABRICPULSE_EXPORTERS_PHC_READER_H_

#include "clocks/phc_line.h"

namespace fabricpulse {

class PhcReader {
 public:
  // index : of the PHC, as ethtool says. What cannot be opened reads nothing, and is tried again now and then: a device
  // comes and goes with its driver.
  explicit PhcReader(int index);
  ~PhcReader();
  PhcReader(const PhcReader&) = delete;
  PhcReader& operator=(const PhcReader&) = delete;

  // False when the PHC cannot be read; error() is then the errno, EAGAIN where only this reading is lost: the clock that
  // it was read with was set meanwhile, say.
  bool read(PhcReading* reading);
  int error() const { return error_; }

 private:
  // From the best to the last. Those that are better than the present one are tried again now and then; where none
  // works, all are.
  enum class Way {
    kPrecise,      // PTP_SYS_OFFSET_PRECISE: both latched by hardware
    kRawBrackets,  // PTP_SYS_OFFSET_EXTENDED with brackets of CLOCK_MONOTONIC_RAW (Linux 6.12)
    kBrackets,     // the same of CLOCK_REALTIME, which is put on the raw clock here
    kPlain,        // PTP_SYS_OFFSET: around the whole driver; all that virtual clocks have (ptp_kvm, hyperv)
    kNone,
  };

  static Way next(Way way) { return static_cast<Way>(static_cast<int>(way) + 1); }
  void retry_better();
  // Each returns 0 or an errno.
  int read_by(Way way, PhcReading* reading);
  int precise(PhcReading* reading);
  int extended(bool raw, PhcReading* reading);
  int plain(PhcReading* reading);

  void reopen();

  const int index_;
  int fd_ = -1;
  int error_ = 0;
  int idle_reads_ = 0;      // since it could be read in no way
  int failed_ = 0;          // readings in a row that the present way has lost
  int reads_by_way_ = 0;    // since better ways than the present one failed, up to the next attempt
  int reads_to_retry_ = 0;  // so many of them there are up to it
  Way way_ = Way::kPrecise;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_PHC_READER_H_
