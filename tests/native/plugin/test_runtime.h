// What a connection needs from a process (core/runtime.h), without one: NICs are up, nothing is shared.
#ifndef FABRICPULSE_TESTS_NATIVE_TEST_RUNTIME_H_
#define FABRICPULSE_TESTS_NATIVE_TEST_RUNTIME_H_

#include <cstdint>
#include <string>

#include "core/runtime.h"

namespace fabricpulse {

class TestRuntime : public Runtime {
 public:
  TestRuntime() {
    config_.telemetry = false;
    std::string complaint;
    telemetry_.open(config_, "test", &complaint);
  }
  const Config& config() const override { return config_; }
  Telemetry* telemetry() override { return &telemetry_; }
  int64_t host_clock() const override { return static_cast<int64_t>(now()); }
  bool fleet_clock(int64_t*) const override { return false; }
  bool nic_up(uint32_t) const override { return true; }
  bool nic_avoided(uint32_t) const override { return false; }
  const char* nic_name(uint32_t) const override { return "nic"; }
  uint64_t nic_bytes_per_second(uint32_t) const override { return 1'000'000'000; }
  void wake() override {}
  void warn(const std::string& text) override { warned = text; }
  void info(const std::string&) override {}

  std::string warned;  // the last one

 protected:
  Config config_;

 private:
  Telemetry telemetry_;
};

// Its time stands still unless the test moves it.
class SteppedRuntime : public TestRuntime {
 public:
  uint64_t now() const override { return now_ns; }

  uint64_t now_ns = 1'000'000'000;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TESTS_NATIVE_TEST_RUNTIME_H_
