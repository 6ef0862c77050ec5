// A lane over one queue pair.
//
// A chunk is an RDMA WRITE_WITH_IMM into the receive buffer that the peer has named; its immediate data says which
// chunk it is (verbs_slots.h). Now and then one has a stamp, for the one-way delay: it is a WRITE, and a WRITE_WITH_IMM
// of its header into the chunk's slot at the peer, which announces it: on one queue pair the second is seen only after
// the first has been written. Small payloads travel with the header. A chunk that is early (its receive is not posted)
// goes to a slot of the lane and has a header too. What a receiver has posted travels with its state frames, once on
// each incarnation of a lane: address, size, and a key for each of its NICs, so that any lane carries the state of all.
//
// Exactly once, in addition to core/fencing.h. One-sided writes do not involve the receiver, so "closed"
// needs more than for a socket:
//  1. A chunk's buffer goes back to the application when all chunks of its message are held. A write to it that
//     is still under way can only be one of a chunk that was posted twice, on two incarnations (on one of them, a
//     repeated packet is a duplicate, which the responder acknowledges and does not execute: IBTA vol. 1, 9.7.5).
//  2. A chunk is posted again only after the receiver has reported that the old incarnation is closed (rule 1 there).
//  3. The receiver reports it after VerbsPair::end(): the queue pair has gone to ERROR, and a receive of it has come
//     back flushed, or it is destroyed. A responder in ERROR drops what arrives, and flushes behind what it has
//     written, so no write of that incarnation lands later. In between the lane is `draining`: it is not reported as
//     closed, on no lane and to no hello.
//  4. A new queue pair may get the old one's number, but starts at a random sequence number: a packet that the
//     fabric held back is out of sequence.
//  5. An announcement has the low bits of two numbers. They are those of one chunk alone: what is on a lane is not held
//     (1 and 2), so it is not below the receiver's window, and the sender has nothing under way that is a window
//     further than the oldest chunk that it does not know to be held. They are those of one message alone: a message
//     with a chunk that is not held has its slot at both ends.
// So a write that lands belongs to a chunk that is not held, and the buffer has not gone back. The chunks that had
// landed but were not yet seen when the lane was closed are sent again, with the same bytes to the same place.
#ifndef FABRICPULSE_TRANSPORT_VERBS_VERBS_LANE_H_
#define FABRICPULSE_TRANSPORT_VERBS_VERBS_LANE_H_

#include <array>
#include <atomic>
#include <memory>

#include "core/lane.h"
#include "transport/verbs/verbs_pair.h"
#include "transport/verbs/verbs_reaper.h"

namespace fabricpulse {

// Device number of each NIC, -1 for none: which key of registered memory is which NIC's.
using NicDevices = std::array<std::atomic<int>, kMaxNics>;

// pair: connected. fd: the socket over which the ends have met: its end is the end of the peer. peer_nic: number of
// the NIC at the peer.
std::unique_ptr<LaneTransport> make_verbs_lane(std::unique_ptr<VerbsPair> pair, int fd, uint32_t peer_nic,
                                               const NicDevices* nics, std::shared_ptr<VerbsReaper> reaper);

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_VERBS_VERBS_LANE_H_
