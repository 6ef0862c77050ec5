// Spare lanes: what a connection over queue pairs has for the time when none of them is up. Pure.
//
// A spare lane is a TCP lane with a number of its own, over NICs that FABRICPULSE_LAST_RESORT names at both ends. To
// the fencing it is a lane like any other. What is particular is when it is there:
//  - It is dialled once the peer has answered on no queue pair for 0.1 s, by a connection that has had one: a job does
//    not begin on TCP.
//  - It carries all chunks until the peer has answered on a queue pair (LaneTransport::proven()).
//  - Then it takes no new chunks, what is under way on it arrives, and the sender ends it. With that the receiver
//    uses queue pairs again, where its state frames name the receives that chunks are written to.
#ifndef FABRICPULSE_CORE_SPARE_LANES_H_
#define FABRICPULSE_CORE_SPARE_LANES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "core/lane_plan.h"
#include "core/nic.h"
#include "core/wire.h"

namespace fabricpulse {

constexpr uint32_t kMostSpares = 4;  // of one connection
// Lanes that leave room for them.
constexpr uint32_t kMostBesideSpares = kMaxLanes > kMostSpares ? kMaxLanes - kMostSpares : kMaxLanes;

// Which pairs of NICs they go over. here, there: SpareUse of each NIC. NICs without an RDMA device first, as no fault
// of RDMA reaches them; the n-th of a kind faces the n-th of that kind.
inline std::vector<NicPair> plan_spares(const std::vector<uint8_t>& here, const std::vector<uint8_t>& there,
                                        const std::function<bool(NicPair)>& reaches) {
  std::vector<NicPair> spares;
  for (SpareUse use : {SpareUse::kOnly, SpareUse::kAlso}) {
    std::vector<uint32_t> local, remote;
    for (uint32_t i = 0; i < here.size(); ++i)
      if (here[i] == static_cast<uint8_t>(use)) local.push_back(i);
    for (uint32_t i = 0; i < there.size(); ++i)
      if (there[i] == static_cast<uint8_t>(use)) remote.push_back(i);
    for (size_t n = 0; n < local.size() && n < remote.size() && spares.size() < kMostSpares; ++n)
      if (reaches({local[n], remote[n]})) spares.emplace_back(local[n], remote[n]);
  }
  return spares;
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_SPARE_LANES_H_
