// A lane type (core/transport.h) that has no NICs, hears nothing and makes nothing: tests overrule what they need.
#ifndef FABRICPULSE_TESTS_NATIVE_IDLE_TRANSPORT_H_
#define FABRICPULSE_TESTS_NATIVE_IDLE_TRANSPORT_H_

#include <string>
#include <vector>

#include "core/transport.h"

namespace fabricpulse {

class IdleTransport : public Transport {
 public:
  fp_lane_transport kind() const override { return FP_LANE_TCP; }
  int memory_kinds() const override { return kMemoryHost; }
  std::vector<NicInfo> discover(const std::vector<std::string>&) const override { return {}; }
  bool wants(const std::string&) const override { return false; }
  std::optional<bool> look_up(NicInfo*) const override { return true; }
  std::optional<bool> link_up(const std::string&) const override { return true; }
  uint16_t listen(uint32_t, const NicInfo&, uint16_t) override { return 1; }
  bool listens(uint32_t) const override { return true; }
  void stop_listening(uint32_t) override {}
  void dial(const NicInfo&, const DialRequest&, uint64_t) override {}
  bool dialling() const override { return false; }
  void serve(uint64_t, uint64_t) override {}
  void tick(uint64_t) override {}
  RegisteredMemory* register_memory(void*, size_t, int, std::string*) override { return nullptr; }
  void deregister_memory(RegisteredMemory*) override {}
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TESTS_NATIVE_IDLE_TRANSPORT_H_
