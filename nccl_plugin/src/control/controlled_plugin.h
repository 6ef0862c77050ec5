// What the control socket shows and changes. The engine implements it.
#ifndef FABRICPULSE_CONTROL_CONTROLLED_PLUGIN_H_
#define FABRICPULSE_CONTROL_CONTROLLED_PLUGIN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/connection.h"
#include "core/runtime.h"

namespace fabricpulse {

// All of it may be called from the control socket's thread.
class ControlledPlugin : public Runtime {
 public:
  // Local NICs, by their number in commands and telemetry.
  virtual uint32_t nic_count() const = 0;
  virtual bool link_up(uint32_t nic) const = 0;
  // False: there is no NIC of this name.
  virtual bool find_nic(const std::string& name, uint32_t* index) const = 0;
  virtual void set_avoided(uint32_t nic, bool avoided) = 0;
  virtual std::vector<std::shared_ptr<Connection>> connections() const = 0;
  // How much the profiler asks of NCCL: 0 nothing, 1 collectives, 2 and proxy steps.
  virtual uint32_t detail() const = 0;
  virtual void set_detail(uint32_t level) = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CONTROL_CONTROLLED_PLUGIN_H_
