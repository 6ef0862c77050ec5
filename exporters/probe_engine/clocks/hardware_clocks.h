// The PHCs of this host whose stamps are used, each with its line to the raw clock.
#ifndef FABRICPULSE_EXPORTERS_HARDWARE_CLOCKS_H_
#define FABRICPULSE_EXPORTERS_HARDWARE_CLOCKS_H_

#include <cstdint>
#include <map>

#include "clocks/phc_reader.h"

namespace fabricpulse {

class HardwareClocks {
 public:
  struct State {
    int error = 0;              // errno of the last read, 0 = none
    std::int64_t error_ns = 0;  // how far the last reading may be off
    std::uint64_t lost = 0;     // how often the line was lost
  };

  // PHC `index` (/dev/ptpN) is read from now on.
  void use(int index) { clocks_.try_emplace(index, index); }
  // Reads all. False when one of them shows that what was converted since the last reading is in doubt.
  bool read();
  // A stamp of a PHC on the raw clock.
  RawStamp from_phc(int index, std::int64_t phc_ns) const;
  State state(int index) const;

 private:
  struct Clock {
    explicit Clock(int index) : reader(index) {}
    PhcReader reader;
    PhcLine line;
    std::uint64_t lost = 0;
  };
  std::map<int, Clock> clocks_;
};

inline bool HardwareClocks::read() {
  bool held = true;
  for (auto& [index, clock] : clocks_) {
    PhcReading reading;
    if (!clock.reader.read(&reading)) continue;
    const bool known = clock.line.good();
    if (clock.line.observe(reading)) continue;
    ++clock.lost;
    held = held && !known;
  }
  return held;
}

inline RawStamp HardwareClocks::from_phc(int index, std::int64_t phc_ns) const {
  const auto found = clocks_.find(index);
  return found == clocks_.end() ? RawStamp{} : found->second.line.from_phc(phc_ns);
}

inline HardwareClocks::State HardwareClocks::state(int index) const {
  const auto found = clocks_.find(index);
  if (found == clocks_.end()) return {};
  const Clock& clock = found->second;
  return {clock.reader.error(), clock.line.error_ns(), clock.lost};
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_HARDWARE_CLOCKS_H_
