// Which pairs of NICs a connection's lanes go over. Pure.
#ifndef FABRICPULSE_CORE_LANE_PLAN_H_
#define FABRICPULSE_CORE_LANE_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace fabricpulse {

using NicPair = std::pair<uint32_t, uint32_t>;  // local, remote

struct LanePlan {
  uint32_t local = 0, remote = 0;        // how many NICs each end has
  uint32_t device = 0, peer_device = 0;  // the pair that NCCL chose
  uint32_t most = 0;                     // lanes
  uint32_t paths = 0;                    // least lanes over a local NIC
};

// All lanes, the primary one first. `reaches`: whether a pair has addresses of one family.
inline std::vector<NicPair> plan_lanes(const LanePlan& plan, const std::function<bool(NicPair)>& reaches) {
  std::vector<NicPair> lanes;
  if (plan.local == 0 || plan.remote == 0) return lanes;
  // The pair that NCCL chose, then rail to rail over the other NICs, then across.
  uint32_t shift = plan.peer_device + plan.local * plan.remote - plan.device % plan.remote;
  for (uint32_t across = 0; across < plan.remote; ++across)
    for (uint32_t k = 0; k < plan.local; ++k) {
      uint32_t nic = (plan.device + k) % plan.local, peer_nic = (nic + shift + across) % plan.remote;
      if (k == 0 && across == 0) peer_nic = plan.peer_device;
      if (lanes.size() < plan.most && reaches({nic, peer_nic})) lanes.emplace_back(nic, peer_nic);
    }
  // A NIC with fewer lanes than `paths` has some over the same pair with other source ports: where the fabric
  // has several ways, they have a sibling to compare with and to go to.
  size_t pairs = lanes.size();
  for (size_t k = 0; k < pairs && lanes.size() < plan.most; ++k) {
    auto over = [&](uint32_t nic) {
      return static_cast<uint32_t>(
          std::count_if(lanes.begin(), lanes.end(), [nic](const NicPair& l) { return l.first == nic; }));
    };
    while (over(lanes[k].first) < plan.paths && lanes.size() < plan.most) {
      NicPair pair = lanes[k];
      lanes.push_back(pair);
    }
  }
  return lanes;
}

// What a connection that has lanes over `present` gets in addition when its plan has grown: a lane keeps its
// number and its pair for good. Nothing is moved to make room.
inline std::vector<NicPair> lanes_to_add(const std::vector<NicPair>& present, const LanePlan& plan,
                                         const std::function<bool(NicPair)>& reaches) {
  std::vector<NicPair> left = present, added;
  for (NicPair pair : plan_lanes(plan, reaches)) {
    auto found = std::find(left.begin(), left.end(), pair);
    if (found != left.end()) {
      left.erase(found);
    } else if (present.size() + added.size() < plan.most) {
      added.push_back(pair);
    }
  }
  return added;
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_LANE_PLAN_H_
