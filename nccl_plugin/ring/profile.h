// The plugin's profiler, called for collectives as NCCL calls it.
#ifndef FABRICPULSE_RING_PROFILE_H_
#define FABRICPULSE_RING_PROFILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "abi/profiler.h"

namespace fabricpulse::ring {

class Profile {
 public:
  struct Collective {
    const char *function, *algorithm;  // as NCCL names them
  };
  static constexpr Collective kAllReduce{"AllReduce", "RING"}, kAllToAll{"AlltoAll", ""};

  // Throws std::runtime_error where the library has no profiler (ABI v5) or it refuses.
  Profile(const std::string& library, uint64_t communicator, uint32_t ranks, uint32_t rank,
          Collective collective);
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // One collective of `bytes`, from the moment at which this rank enters it.
  void begin(uint64_t sequence, size_t bytes);
  void end();

 private:
  using D = abi::DescriptorV5;

  const abi::ProfilerV5<D>* table_;
  uint32_t rank_;
  Collective collective_;
  void* context_ = nullptr;
  void* channel_ = nullptr;
  int mask_ = -1;  // written by the plugin at any time, from another thread
};

}  // namespace fabricpulse::ring

#endif  // FABRICPULSE_RING_PROFILE_H_
