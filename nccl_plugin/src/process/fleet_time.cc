#include "process/fleet_time.h"

#include <cstring>

namespace fabricpulse {
namespace {

constexpr int64_t kCheckNs = 1'000'000'000;

bool holds(uint32_t status) { return status == FP_CLOCK_SYNCHRONIZED || status == FP_CLOCK_HOLDOVER; }

}  // namespace

FleetTime::FleetTime(const std::string& run_dir) : page_(run_dir + "/clock", kCheckNs) {
  for (auto& word : words_) word.store(0, std::memory_order_relaxed);
}

uint32_t FleetTime::refresh(uint64_t now) {
  fp_clock_page copy;
  if (!page_.read(static_cast<int64_t>(now), &copy)) {
    valid_.store(false, std::memory_order_release);
    return FP_CLOCK_UNKNOWN;
  }
  const uint32_t status = fp_clock_at(&copy, fp_raw_clock_now()).status;
  if (holds(status)) {
    uint64_t words[kWords];
    memcpy(words, &copy, sizeof(words));
    sequence_.fetch_add(1, std::memory_order_acq_rel);
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    sequence_.fetch_add(1, std::memory_order_release);
  }
  valid_.store(holds(status), std::memory_order_release);
  return status;
}

bool FleetTime::read(int64_t* fleet_ns) const {
  fp_fleet_time time;
  if (!read(&time)) return false;
  *fleet_ns = time.fleet_ns;
  return true;
}

bool FleetTime::read(fp_fleet_time* time) const {
  if (!valid_.load(std::memory_order_acquire)) return false;
  for (int tries = 0; tries < 4; ++tries) {
    uint32_t before = sequence_.load(std::memory_order_acquire);
    if (before & 1) continue;
    uint64_t words[kWords];
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
    if (sequence_.load(std::memory_order_acquire) != before) continue;
    fp_clock_page copy;
    memcpy(&copy, words, sizeof(copy));
    // Over the raw clock, which no step and no slew of the host clock can mislead.
    *time = fp_clock_at(&copy, fp_raw_clock_now());
    return holds(time->status);
  }
  return false;
}

}  // namespace fabricpulse
