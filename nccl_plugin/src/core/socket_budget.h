// How many unacknowledged bytes a stream lane keeps in its socket. Pure.
//
// Twice what the path holds, but at least so many. The kernel would take several MiB, which leave the processor's cache
// before the NIC (or, between two processes of one host, the peer) reads them: halves the throughput of 1 MiB messages;
// and all of it is sent again when the lane fails. By time: what waits in the socket when a lane fails is what a fence
// and the next chunk wait behind.
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
  // Acknowledgements wait on their way back as long as the words about chunks do; seconds.
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
