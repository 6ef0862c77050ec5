#include "links.h"

#include <unistd.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "waiting.h"

namespace fabricpulse::ring {
std::vector<Link> connect_links(const Options& options, Net* net, Rendezvous* rendezvous,
                                std::atomic<bool>* stop) {
  int devices = net->devices();
  uint32_t next = (options.rank + 1) % options.size, count = options.channels;
  std::vector<uint8_t> handles(kHandle * count);
  std::vector<void*> listeners(count);
  for (uint32_t c = 0; c < count; ++c)
    listeners[c] = net->listen(static_cast<int>(c) % devices, handles.data() + kHandle * c);
  auto all = rendezvous->all_gather(handles);
  std::vector<uint8_t> theirs = all[next];
  std::vector<Link> links(count);
  double deadline = now_s() + options.connect_seconds;
  auto connect = [&](uint32_t c) {
    if (links[c].send == nullptr)
      links[c].send = net->connect(static_cast<int>(c) % devices, theirs.data() + kHandle * c);
    return links[c].send != nullptr;
  };
  auto accept = [&](uint32_t c) {
    if (links[c].recv == nullptr) links[c].recv = net->accept(listeners[c]);
    return links[c].recv != nullptr;
  };
  using Attempt = std::function<bool(uint32_t)>;
  // Asks again and again, as NCCL does, until all have it.
  auto poll = [&](const std::vector<Attempt>& attempts, bool backwards) {
    for (;;) {
      uint32_t left = 0;
      for (uint32_t i = 0; i < count; ++i)
        for (const Attempt& attempt : attempts) left += !attempt(backwards ? count - 1 - i : i);
      if (left == 0) return;
      if (stop->load() || now_s() > deadline)
        throw std::runtime_error("connecting: " + std::to_string(left) + " of " + std::to_string(count * 2) +
                                 " connections were not made within " +
                                 std::to_string(options.connect_seconds) + " s");
      usleep(1000);
    }
  };
  // One rank alone begins, so that somebody is always ready to take what another waits for.
  bool first = options.rank == 0;
  switch (options.order) {
    case Order::kInTurn:
      poll({connect, accept}, false);
      break;
    case Order::kOneByOne:
      poll({first ? Attempt(connect) : Attempt(accept)}, false);
      poll({first ? Attempt(accept) : Attempt(connect)}, false);
      break;
    case Order::kBackwards:
      // The connector goes forwards, so every accept but one is asked for before its peer has begun.
      poll({first ? Attempt(connect) : Attempt(accept)}, !first);
      poll({first ? Attempt(accept) : Attempt(connect)}, first);
      break;
  }
  for (void* listener : listeners) net->close_listen(listener);
  return links;
}

void close_links(std::vector<Link>* links, Net* net) {
  for (Link& link : *links) {
    if (link.send != nullptr) net->close_send(link.send);
    if (link.recv != nullptr) net->close_recv(link.recv);
    link = Link{};
  }
}

}  // namespace fabricpulse::ring
