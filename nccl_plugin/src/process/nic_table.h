// The NICs that this process uses. It grows when one comes while the job runs; none ever leaves, nor changes
// its number.
#ifndef FABRICPULSE_PROCESS_NIC_TABLE_H_
#define FABRICPULSE_PROCESS_NIC_TABLE_H_

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/lane_plan.h"
#include "core/nic.h"
#include "core/spare_lanes.h"
#include "core/wire.h"

namespace fabricpulse {

struct Nic : NicInfo {  // its address only by NicTable::address()
  std::atomic<bool> link_up{false};
  std::atomic<bool> addressed{true};  // it has its address
  std::atomic<bool> avoided{false};
  uint64_t guid = 0;  // differs between the NICs of a host, and stays when one comes back as another
  uint64_t link_downs = 0;
};

class NicTable {
 public:
  // Any thread.
  uint32_t count() const { return count_.load(std::memory_order_acquire); }
  const Nic& at(uint32_t index) const { return *nics_[index]; }
  // Its link is up and it has its address.
  bool usable(uint32_t index) const {
    return nics_[index]->link_up.load(std::memory_order_relaxed) &&
           nics_[index]->addressed.load(std::memory_order_relaxed);
  }
  NicAddress address(uint32_t index) const;
  // nullptr: no NIC of that name.
  Nic* find(const std::string& name, uint32_t* index) const;
  // For a hello or the answer to one.
  void fill(WireNic* nics, uint32_t* count) const;
  // Whether both ends of a pair have addresses of one family, and none is for TCP lanes beside queue pairs alone.
  bool reaches(NicPair pair, const std::vector<WireNic>& peer) const;
  // Pairs for spare lanes to that peer, see core/spare_lanes.h.
  std::vector<NicPair> spares(const std::vector<WireNic>& peer) const;
  // How many NICs from the first on may be devices of NCCL's: those that are not for TCP alone.
  uint32_t devices() const;
  std::vector<std::string> names() const;

  // Service thread, or before it starts.
  Nic& mutable_at(uint32_t index) { return *nics_[index]; }
  Nic& add(const NicInfo& info, bool link_up);  // fewer than kMaxNics before
  // A NIC may come back with another address, or another index. NCCL's threads read them by info().
  void set_place(uint32_t index, const NicInfo& found);
  NicInfo info(uint32_t index) const;

 private:
  bool same_family(NicPair pair, const std::vector<WireNic>& peer) const;

  std::array<std::unique_ptr<Nic>, kMaxNics> nics_;
  std::atomic<uint32_t> count_{0};
  mutable std::mutex addresses_lock_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_PROCESS_NIC_TABLE_H_
