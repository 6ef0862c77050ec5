// What the lanes of all connections of this process together know of a path: a NIC here and an address there.
// A lane that is silent while others on its path are heard has lost packets; a path on which all are silent is
// dead. Pure. Service thread only.
#ifndef FABRICPULSE_CORE_PATH_TABLE_H_
#define FABRICPULSE_CORE_PATH_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace fabricpulse {

class PathTable {
 public:
  struct Path {
    uint32_t nic = 0;
    uint8_t address[16] = {};
    uint64_t heard_ns = 0;      // acknowledged something, on any lane over it
    uint64_t suspected_ns = 0;  // a lane over it was silent: the others are to ask the peer
    uint64_t failed_ns = 0;     // a lane over it was given up for silence
    uint64_t used_ns = 0;
    bool unreachable_said = false;  // in the log
  };

  // The entry of a path, a new one if need be; the least recently used one makes room.
  Path* at(uint32_t nic, const uint8_t* address, uint64_t now) {
    Path* found = nullptr;
    for (Path& path : paths_)
      if (path.used_ns != 0 && path.nic == nic && memcmp(path.address, address, sizeof(path.address)) == 0)
        found = &path;
    if (found == nullptr) {
      found = std::min_element(std::begin(paths_), std::end(paths_),
                               [](const Path& a, const Path& b) { return a.used_ns < b.used_ns; });
      *found = Path{};
      found->nic = nic;
      memcpy(found->address, address, sizeof(found->address));
    }
    found->used_ns = now;
    return found;
  }

 private:
  Path paths_[256];
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_PATH_TABLE_H_
