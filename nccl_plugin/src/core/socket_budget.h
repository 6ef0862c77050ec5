// How many unacknowledged bytes a stream lane keeps in its socket. Pure.
//
// Twice what the path holds, but at least so many. The kernel would take several MiB, which leave the processor's cache
// before the NIC (or, between two processes of one host, the peer) reads them: halves the throughput of 1 MiB messages;
// and all of it is sent again when the lane fails. By time: what waits in the socket when a lane fails is what a fence
// and the next chunk wait behind.
//
// kEnough limits a lane of 1 Gbit/s while both directions are full: its way back is as long as what waits
// there (a surviving NIC then carries 0.90 of what it could, 0.92 with 1 MiB, simulated). It stays, since 1
// MiB costs all who are not limited by the link: over one unshaped veth pair, 13 interleaved rounds on 2
// cores, messages of 1 MiB went 0.59 times as fast for 1.67 times the processor time a GB, of 4 MiB 0.81
// times for 1.25; of 64 KiB no difference.
#ifndef FABRICPULSE_CORE_SOCKET_BUDGET_H_
#define FABRICPULSE_CORE_SOCKET_BUDGET_H_

#include <algorithm>
#include <cstddef>

namespace fabricpulse {

class SocketBudget {
 public:
  // What the transport has measured: bytes a second delivered, and the least round trip, seconds.
  void measured(double rate, double least_rtt) {
    rate_ = rate;
    least_rtt_ = least_rtt;
    update();
  }
  // Acknowledgements of the kernel are delayed as long as our state frames are; seconds.
  void way_back(double seconds) {
    way_back_ = seconds;
    if (rate_ > 0) update();
  }
  size_t limit() const { return limit_; }

 private:
  static constexpr size_t kLeast = 48 * 1024, kEnough = 512 * 1024, kMost = 64 * 1024 * 1024;
  static constexpr double kSeconds = 0.006;
  void update() {
    double least = std::clamp(rate_ * (kSeconds + way_back_), double{kLeast}, double{kEnough});
    limit_ = static_cast<size_t>(std::min(std::max(2 * rate_ * least_rtt_, least), double{kMost}));
  }

  double rate_ = 0, least_rtt_ = 0, way_back_ = 0;
  size_t limit_ = 2 * kLeast;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_SOCKET_BUDGET_H_
