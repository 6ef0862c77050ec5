// The connections of a rank to its neighbours in the ring: sends to the next rank, receives from the one
// before.
#ifndef FABRICPULSE_RING_LINKS_H_
#define FABRICPULSE_RING_LINKS_H_

#include <atomic>
#include <vector>

#include "net_driver.h"
#include "options.h"
#include "rendezvous.h"

namespace fabricpulse::ring {

struct Link {  // one channel; both comms belong to the service thread
  void *send = nullptr, *recv = nullptr;
};

// Makes options.channels links, spread over the devices, in the order of calls that options.order asks for.
// Throws std::runtime_error if they are not made within options.connect_seconds, or when `stop` is set.
std::vector<Link> connect_links(const Options& options, Net* net, Rendezvous* rendezvous,
                                std::atomic<bool>* stop);
void close_links(std::vector<Link>* links, Net* net);

}  // namespace fabricpulse::ring

#endif  // FABRICPULSE_RING_LINKS_H_
