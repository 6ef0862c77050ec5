#include "path_tracer.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace fabricpulse {
namespace {

constexpr std::int64_t kPatienceNs = 250'000'000;
constexpr std::size_t kMostDone = 1'024;
constexpr std::uint8_t kMagic[4] = {'F', 'P', 'T', 'R'};

std::string text_of(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.any.sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &address.v6.sin6_addr, text, sizeof(text));
  } else {
    inet_ntop(AF_INET, &address.v4.sin_addr, text, sizeof(text));
  }
  return text;
}

}  // namespace

bool is_trace(const std::uint8_t* data, std::size_t size) {
  return size == kTraceSize && std::memcmp(data, kMagic, sizeof(kMagic)) == 0;
}

PathTracer::PathTracer(EdgeTable& table) : table_(table) {
  std::random_device device;
  std::seed_seq seed{device(), device(), device(), device(), device(), device(), device(), device()};
  random_.seed(seed);
}

bool PathTracer::request(std::uint32_t edge, std::uint8_t path) {
  if (edge >= table_.slots().size()) return false;
  const std::uint32_t nic = table_.edge(table_.slots()[edge]).nic;
  if (!table_.nics()[nic].sockets.has_port(path)) return false;
  for (const Running& r : running_) {
    if (r.nic == nic && r.trace.path == path) return false;
  }
  Running running;
  running.trace.generation = table_.generation();
  running.trace.edge = edge;
  running.trace.path = path;
  running.nic = nic;
  running.nonce = random_();
  running_.push_back(std::move(running));
  return true;
}

void PathTracer::tick(std::int64_t now_ns) {
  if (running_.empty()) return;
  for (std::size_t nic = 0; nic < table_.nics().size(); ++nic) {
    for (const HopAnswer& answer : table_.nics()[nic].sockets.take_answers()) {
      take(static_cast<std::uint32_t>(nic), answer);
    }
  }
  for (Running& running : running_) {
    if (running.trace.generation != table_.generation()) continue;
    if (running.until == 0) {
      send(running, now_ns);
    } else if (now_ns >= running.until) {
      finish(running);
    }
  }
  // What belongs to edges that have been replaced ends without a result.
  running_.erase(std::remove_if(running_.begin(), running_.end(),
                                [&](Running& r) {
                                  if (r.trace.generation != table_.generation()) {
                                    if (r.nic < table_.nics().size()) {
                                      NicSockets& sockets = table_.nics()[r.nic].sockets;
                                      if (sockets.has_port(r.trace.path)) {
                                        sockets.port(r.trace.path).receive_errors(false);
                                      }
                                    }
                                    return true;
                                  }
                                  return r.until < 0;
                                }),
                 running_.end());
}

void PathTracer::take(std::uint32_t nic, const HopAnswer& answer) {
  if (!is_trace(answer.quoted, answer.size)) return;
  std::uint64_t nonce = 0;
  std::memcpy(&nonce, answer.quoted + sizeof(kMagic), sizeof(nonce));
  const int hop = answer.quoted[sizeof(kMagic) + sizeof(nonce)];
  if (hop < 1 || hop > kMostHops) return;
  for (Running& r : running_) {
    if (r.nic == nic && r.nonce == nonce && r.until > 0) r.hops[hop - 1] = text_of(answer.from);
  }
}

void PathTracer::send(Running& running, std::int64_t now_ns) {
  const Edge& edge = table_.edge(table_.slots()[running.trace.edge]);
  NicSockets& sockets = table_.nics()[running.nic].sockets;
  if (!sockets.has_port(running.trace.path)) {
    running.until = -1;
    return;
  }
  ProbeSocket& socket = sockets.port(running.trace.path);
  socket.receive_errors(true);
  running.until = now_ns + kPatienceNs;
  std::uint8_t data[kTraceSize] = {};
  std::memcpy(data, kMagic, sizeof(kMagic));
  std::memcpy(data + sizeof(kMagic), &running.nonce, sizeof(running.nonce));
  for (int hop = 1; hop <= kMostHops; ++hop) {
    data[sizeof(kMagic) + sizeof(running.nonce)] = static_cast<std::uint8_t>(hop);
    if (socket.send_limited(edge.to, static_cast<std::uint8_t>(hop), data, sizeof(data)) == 0) ++packets_;
  }
}

void PathTracer::finish(Running& running) {
  running.until = -1;
  NicSockets& sockets = table_.nics()[running.nic].sockets;
  if (!sockets.has_port(running.trace.path)) return;  // closed meanwhile: it proves nothing
  sockets.port(running.trace.path).receive_errors(false);
  int last = kMostHops;
  while (last > 0 && running.hops[last - 1].empty()) --last;
  running.trace.hops.assign(running.hops, running.hops + last);
  if (done_.size() < kMostDone) done_.push_back(std::move(running.trace));
}

std::vector<Trace> PathTracer::take_done() { return std::exchange(done_, {}); }

}  // namespace fabricpulse
