#include "settings.h"

#include <stdexcept>

#include "packets/wire.h"

namespace fabricpulse {

std::uint64_t nic_identity(const std::string& host, const std::string& device) {
  static const SipKey key = {'f', 'a', 'b', 'r', 'i', 'c', 'p', 'u', 'l', 's', 'e', ' ', 'n', 'i', 'c', '1'};
  const std::string name = host + '\0' + device;
  return siphash24(key, reinterpret_cast<const std::uint8_t*>(name.data()), name.size());
}

namespace {

constexpr const char* kTimestamps[] = {"software", "auto", "hardware"};

}  // namespace

const char* timestamps_name(Timestamps timestamps) { return kTimestamps[static_cast<int>(timestamps)]; }

Timestamps timestamps_named(const std::string& name) {
  for (int i = 0; i < 3; ++i) {
    if (name == kTimestamps[i]) return static_cast<Timestamps>(i);
  }
  throw std::invalid_argument("timestamps must be software, auto or hardware");
}

void Settings::validate() const {
  if (!(rate > 0 && rate <= 1'000)) throw std::invalid_argument("rate must be in (0, 1000]");
  if (paths < 1 || paths > kMaxPaths) throw std::invalid_argument("paths must be in [1, 16]");
  if (interval_ns < 100'000'000) throw std::invalid_argument("interval must be at least 100 ms");
  if (dscp > 63) throw std::invalid_argument("dscp must be in [0, 63]");
  if (port == 0 || port + paths > 65'536)
    throw std::invalid_argument("port and the source ports after it must be in [1, 65535]");
  if ((ring_capacity & (ring_capacity - 1)) != 0 || ring_capacity == 0)
    throw std::invalid_argument("ring capacity must be a power of two");
  if (tick_ns < 100'000) throw std::invalid_argument("tick must be at least 100 us");
}

}  // namespace fabricpulse
