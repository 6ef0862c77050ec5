// The switches that a flow crosses: packets of its very addresses and ports that a switch may forward only so
// many times, and the ICMP errors of the switches that drop them (RFC 792, RFC 4443: time exceeded).
//
// An answer counts only if it quotes the 64 random bits of the packet that it answers, so that nobody beside
// the path can forge one. A switch that quotes less is a silent one. Answers are waited for 250 ms, and only
// then does the socket receive ICMP errors.
#ifndef FABRICPULSE_EXPORTERS_PATH_TRACER_H_
#define FABRICPULSE_EXPORTERS_PATH_TRACER_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "edge_table.h"

namespace fabricpulse {

constexpr std::size_t kTraceSize = 16;
constexpr int kMostHops = 8;

// Whether a packet is one of a trace that came through to us: of no interest.
bool is_trace(const std::uint8_t* data, std::size_t size);

// Where the packets of one source port of an edge go.
struct Trace {
  std::uint32_t generation = 0;  // of the edge table
  std::uint32_t edge = 0;        // place in the configuration
  std::uint8_t path = 0;
  std::vector<std::string> hops;  // addresses of the switches; "" = silent. Up to the last that answered.
};

// Not thread-safe: the engine's mutex guards it.
class PathTracer {
 public:
  explicit PathTracer(EdgeTable& table);

  // Asks for one trace. False if there is no such edge or source port, its NIC is closed, or the source port
  // is being traced for another edge.
  bool request(std::uint32_t edge, std::uint8_t path);
  // Once a tick, behind everything else, so that answers come while nothing is sent: takes the answers that
  // have come, ends what is due and sends what was asked for. now_ns : monotonic.
  void tick(std::int64_t now_ns);
  std::vector<Trace> take_done();
  std::uint64_t packets() const { return packets_; }

 private:
  struct Running {
    Trace trace;
    std::uint32_t nic = 0;
    std::uint64_t nonce = 0;
    std::int64_t until = 0;  // 0: not sent yet
    std::string hops[kMostHops];
  };
  void take(std::uint32_t nic, const HopAnswer& answer);
  void send(Running& running, std::int64_t now_ns);
  void finish(Running& running);

  EdgeTable& table_;
  std::mt19937_64 random_;
  std::vector<Running> running_;
  std::vector<Trace> done_;
  std::uint64_t packets_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_PATH_TRACER_H_
