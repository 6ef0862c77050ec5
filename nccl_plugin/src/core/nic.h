// A NIC of this host, as every lane type has them.
#ifndef FABRICPULSE_CORE_NIC_H_
#define FABRICPULSE_CORE_NIC_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

namespace fabricpulse {

using NicAddress = std::array<uint8_t, 16>;  // IPv6, or IPv4 mapped; for queue pairs the GID

// Whether a NIC carries spare lanes (core/spare_lanes.h). In WireNic, so the numbers stay.
enum class SpareUse : uint8_t { kNone = 0, kAlso = 1, kOnly = 2 };

struct NicInfo {
  std::string name;
  unsigned ifindex = 0;
  NicAddress address{};
  uint32_t speed_mbps = 10'000;
  bool up = false;
  std::string pci_path;  // empty: none (virtual)
  SpareUse spare_use = SpareUse::kNone;
};

inline bool is_mapped_v4(const uint8_t* address) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return memcmp(address, kPrefix, sizeof(kPrefix)) == 0;
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_NIC_H_
