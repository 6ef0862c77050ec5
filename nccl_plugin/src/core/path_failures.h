// Paths that a connection of this process has just given up: the others need not find out on their own.
// Pure. Service thread only.
#ifndef FABRICPULSE_CORE_PATH_FAILURES_H_
#define FABRICPULSE_CORE_PATH_FAILURES_H_

#include <cstdint>
#include <cstring>

namespace fabricpulse {

class PathFailures {
 public:
  // A lane from this NIC to this address (16 bytes) was silent while others were not.
  void add(uint32_t nic, const uint8_t* address, uint64_t now) {
    Entry* oldest = &entries_[0];
    for (Entry& entry : entries_) {
      if (same(entry, nic, address)) oldest = &entry;
      if (oldest->at_ns > entry.at_ns && !same(*oldest, nic, address)) oldest = &entry;
    }
    oldest->nic = nic;
    memcpy(oldest->address, address, sizeof(oldest->address));
    oldest->at_ns = now;
  }
  // Whether that was a moment ago.
  bool recent(uint32_t nic, const uint8_t* address, uint64_t now) const {
    for (const Entry& entry : entries_)
      if (entry.at_ns != 0 && same(entry, nic, address)) return now < entry.at_ns + kRecentNs;
    return false;
  }

 private:
  static constexpr uint64_t kRecentNs = 100'000'000;
  struct Entry {
    uint32_t nic = 0;
    uint8_t address[16] = {};
    uint64_t at_ns = 0;
  };
  static bool same(const Entry& entry, uint32_t nic, const uint8_t* address) {
    return entry.nic == nic && memcmp(entry.address, address, sizeof(entry.address)) == 0;
  }
  Entry entries_[64];
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_PATH_FAILURES_H_
