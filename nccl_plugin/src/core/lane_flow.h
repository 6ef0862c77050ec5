// How much a sender gives to one lane: what is under way on it, how fast it delivers, and how much may be under
// way. Pure.
//
// The window is so many bytes as the lane delivers in kWindowSeconds, and while a new incarnation starts it doubles
// each round trip. A chunk takes about kChunkSeconds. Rates are bytes per second, times are CLOCK_MONOTONIC ns.
#ifndef FABRICPULSE_CORE_LANE_FLOW_H_
#define FABRICPULSE_CORE_LANE_FLOW_H_

#include <algorithm>
#include <cstdint>

#include "core/forward_delay.h"
#include "core/wire.h"

namespace fabricpulse {

struct LaneFlow {
  static constexpr uint32_t kMinChunk = 32 * 1024;
  static constexpr uint64_t kMinWindow = 64 * 1024;
  static constexpr uint64_t kMaxWindow = 8 * 1024 * 1024;
  static constexpr uint64_t kSlowStartWindow = 128 * 1024;
  static constexpr double kFirstRate = 64e6;  // until measured; little is at stake on a path that may be slow
  static constexpr double kCautiousRate = 16e6;  // most after an incarnation that was given up

  uint64_t in_flight = 0;    // bytes
  double rate = 0;           // bytes per second, smoothed
  double measured_rate = 0;  // the same of measurements of this incarnation alone; 0 before the first
  uint64_t window = kSlowStartWindow;  // most bytes in flight
  ForwardDelay forward;
  uint64_t took_ns = 0;     // from a chunk's posting to its acknowledgement, smoothed
  bool slow_start = false;  // the window doubles each round trip
  bool cautious = false;    // the last incarnation was given up: the path may be slow
  uint64_t rate_at_ns = 0;  // when the rate was last measured
  uint64_t sent_since = 0;  // bytes since the weights were last published
  uint32_t weight = 0;      // share then, parts per 1000
  uint64_t weighed = 0;     // bytes since fixed weights were set: for the share
  uint64_t delivered = 0;   // bytes, cumulative
  uint32_t posted = 0;      // chunks of the lane's present incarnation

  // A new incarnation. Slow start, the first one too: what a slow path takes at first, all messages wait for. After one
  // that was given up, with little under way and a low rate: the path may have become slow.
  void join() {
    in_flight = 0;
    posted = 0;
    measured_rate = 0;
    slow_start = true;
    window = cautious ? kMinChunk : kSlowStartWindow;
    if (cautious) rate = std::min(rate, kCautiousRate);
    cautious = false;
    weighed = 0;
  }

  // Length of the next chunk, bytes. stretch : above 1 where nothing shares the work of the lane.
  uint32_t chunk_bytes(uint32_t stretch) const {
    double bytes = rate * kChunkSeconds * stretch;
    if (stretch == 1) bytes = std::min(bytes, static_cast<double>(window));
    if (bytes >= kMaxChunkBytes) return kMaxChunkBytes;
    if (bytes <= kMinChunk) return kMinChunk;
    return static_cast<uint32_t>(bytes) & ~4095u;
  }

  bool stale(uint64_t now) const { return now > rate_at_ns + kRateForgetNs; }
  // An old rate estimate fades, so that a lane is tried again some time after it was slow: up to `ceiling`, and
  // with little at stake.
  void fade(double ceiling, uint64_t now) {
    rate = std::max(rate, std::min(rate * 1.5, ceiling));
    window = std::min(window, kMinWindow);
    rate_at_ns = now;
  }

  // A chunk goes. Returns its place among those of the incarnation.
  uint32_t sent(uint32_t bytes) {
    in_flight += bytes;
    weighed += bytes;
    sent_since += bytes;
    return posted++;
  }

  // The peer holds a chunk, or no longer waits for it here.
  void settled(uint32_t bytes) {
    in_flight -= std::min<uint64_t>(in_flight, bytes);
    delivered += bytes;
  }

  // Of a chunk that took `took` ns. ahead : bytes in flight when it was sent, itself included. most : limit of a
  // plausible rate, bytes per second. Returns whether the chunk was long enough to measure the rate.
  bool measure(uint32_t bytes, uint64_t ahead, uint64_t took, double most, uint64_t now) {
    if (bytes < kRateSampleBytes) return false;
    const double measured = std::min(static_cast<double>(ahead) * 1e9 / static_cast<double>(took), most);
    rate += (measured - rate) / 4;
    measured_rate = measured_rate == 0 ? measured : measured_rate + (measured - measured_rate) / 4;
    rate_at_ns = now;
    return true;
  }

  void note_took(uint64_t took) { took_ns = took_ns == 0 ? took : took_ns - took_ns / 8 + took / 8; }

  // The window after an acknowledged chunk. back_ns : the reverse delay of acknowledgements, which the window covers
  // too. Returns whether slow start has ended with it.
  bool widen(uint32_t bytes, uint64_t back_ns, bool measured) {
    uint64_t wanted = static_cast<uint64_t>(rate * (kWindowSeconds + static_cast<double>(back_ns) * 1e-9));
    wanted = std::min(std::max(wanted, kMinWindow), kMaxWindow);
    bool started = false;
    if (slow_start) {
      window += bytes;  // doubles each round trip
      if (window >= wanted) {
        slow_start = false;
        started = true;
      }
    }
    if (measured && !slow_start) window = wanted;
    return started;
  }

 private:
  static constexpr double kChunkSeconds = 0.004;           // a chunk takes about this long on its lane
  static constexpr double kWindowSeconds = 0.025;          // bytes in flight on a lane, as time
  static constexpr uint32_t kRateSampleBytes = 32 * 1024;  // smaller chunks measure latency, not rate
  static constexpr uint64_t kRateForgetNs = 200'000'000;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_LANE_FLOW_H_
