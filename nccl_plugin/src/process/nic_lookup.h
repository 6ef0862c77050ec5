// Looks up this host's NICs on a thread of its own.
//
// getifaddrs() and ethtool's ioctl wait for RTNL, the kernel's lock of all network configuration, which others hold for
// long at times: a container runtime that removes interfaces, a driver that resets its NIC. While the service thread
// waited for it no lane would be given up, and none dialled.
#ifndef FABRICPULSE_PROCESS_NIC_LOOKUP_H_
#define FABRICPULSE_PROCESS_NIC_LOOKUP_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/transport.h"
#include "process/nic_table.h"

namespace fabricpulse {

class NicLookup {
 public:
  struct Answer {
    uint32_t nic = 0;
    NicInfo found;
    std::optional<bool> there;  // as Transport::look_up()
  };
  struct Answers {
    std::vector<Answer> nics;
    std::vector<NicInfo> others;  // as Transport::discover()
  };

  // answered : called on the thread once take() has something.
  NicLookup(const Transport* transport, const NicTable* nics, std::function<void()> answered)
      : transport_(transport), nics_(nics), answered_(std::move(answered)) {}
  ~NicLookup() { stop(); }
  NicLookup(const NicLookup&) = delete;
  NicLookup& operator=(const NicLookup&) = delete;

  // Until start(), and where no thread can be made, ask() answers itself.
  void start();
  void stop();

  // nics : a bit each. scan : look for NICs that are not in the table, too. What is asked while an answer is under way
  // is looked up anew after it.
  void ask(uint32_t nics, bool scan);
  // What has been answered since the last call, in order.
  Answers take();

 private:
  void run();
  Answers look(uint32_t nics, bool scan) const;
  void keep(Answers answers);  // with lock_ held

  const Transport* const transport_;
  const NicTable* const nics_;
  const std::function<void()> answered_;
  std::mutex lock_;
  std::condition_variable asked_;
  uint32_t wanted_ = 0;
  bool scan_ = false, stop_ = false;
  Answers answers_;
  std::thread thread_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_PROCESS_NIC_LOOKUP_H_
