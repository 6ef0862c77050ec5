// What the lanes of all connections of this process together know of a path: a NIC here and an address there.
// A lane that is silent while others on its path are not has lost packets; a path on which all are silent is
// dead. Pure. Service thread only.
#ifndef FABRICPULSE_CORE_PATH_TABLE_H_
#define FABRICPULSE_CORE_PATH_TABLE_H_

#include <cstdint>
#include <cstring>

namespace fabricpulse {

class PathTable {
 public:
  static constexpr uint64_t kDoubtNs = 200'000'000;
  struct Path {
    uint32_t nic = 0;
    uint8_t address[16] = {};
    uint64_t answered_ns = 0;     // acknowledged something, on any lane over it
    uint64_t suspected_ns = 0;    // a lane over it was silent: the others are to ask the peer
    uint64_t failed_ns = 0;       // a lane over it was given up for silence
    uint64_t peer_failed_ns = 0;  // the peer has given up one for silence
    uint64_t used_ns = 0;
    uint64_t tried_ns = 0;  // a lane over it was up and proved nothing: when one was last tried; 0: it works
    uint64_t due_ns = UINT64_MAX;  // of the lanes that wait for a try since then, the one due first
    uint64_t last_resort_ns = 0;   // when the log had it last that a spare lane carries a connection over it
    bool unreachable_logged = false;  // in the log

    // Lanes over a dead path fail one by one, each when it has had something under way for long enough. What one of
    // them loses would wait for the next one if it were sent there. Until something is acknowledged on the path, or an
    // idle lane over it has been found silent, too.
    bool doubtful(uint64_t now) const {
      const uint64_t failed = failed_ns > peer_failed_ns ? failed_ns : peer_failed_ns;
      return failed > answered_ns && now - failed < kDoubtNs;
    }
  };

  // The entry of a path, a new one if need be: it takes the place of the one used longest ago of its set.
  Path* at(uint32_t nic, const uint8_t* address, uint64_t now) {
    Path* const set = sets_[set_of(nic, address)];
    Path* oldest = set;
    for (Path* path = set; path < set + kWays; ++path) {
      if (path->used_ns != 0 && path->nic == nic &&
          memcmp(path->address, address, sizeof(path->address)) == 0) {
        path->used_ns = now;
        return path;
      }
      if (path->used_ns < oldest->used_ns) oldest = path;
    }
    *oldest = Path{};
    oldest->nic = nic;
    memcpy(oldest->address, address, sizeof(oldest->address));
    oldest->used_ns = now;
    return oldest;
  }

 private:
  // Each lane asks in each tick, so a look-up reads one set only; as many paths as telemetry has lanes.
  static constexpr uint32_t kSets = 512, kWays = 8;

  static uint32_t set_of(uint32_t nic, const uint8_t* address) {
    uint64_t halves[2];
    memcpy(halves, address, sizeof(halves));
    uint64_t hash = (halves[0] ^ nic) * UINT64_C(0x9e3779b97f4a7c15) ^ halves[1];
    hash = (hash ^ hash >> 32) * UINT64_C(0xbf58476d1ce4e5b9);
    return static_cast<uint32_t>(hash >> 32) % kSets;
  }

  Path sets_[kSets][kWays];
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_PATH_TABLE_H_
