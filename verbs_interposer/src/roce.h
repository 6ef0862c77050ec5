// The UDP source port of the packets of a connected queue pair (RoCE v2).
#ifndef FABRICPULSE_VERBS_ROCE_H_
#define FABRICPULSE_VERBS_ROCE_H_

#include <cstdint>

namespace fabricpulse::interposer {

// As drivers of Linux choose it, for which include/rdma/ib_verbs.h has rdma_get_udp_sport(): from the flow label of the
// address, and where that is 0 from both numbers, so that switches spread the queue pairs.
inline uint16_t roce_source_port(uint32_t flow_label, uint32_t number, uint32_t peer_number) {
  uint64_t label = flow_label;
  if (label == 0) {
    label = static_cast<uint64_t>(number) * peer_number;
    label ^= label >> 20;
    label ^= label >> 40;
  }
  label &= 0xfffff;
  return static_cast<uint16_t>(0xc000 | ((label & 0x3fff) ^ (label >> 14)));
}

}  // namespace fabricpulse::interposer

#endif  // FABRICPULSE_VERBS_ROCE_H_
