// Whoever looks for a port, or takes a device that is in use, does not wait for memory that is being registered: pinning
// it may take seconds, and the service thread looks for ports at each dial and each answer.
//
// And what a device does not take is said, by name, and nothing is left of it at the others.
//
// Usage: plugin_verbs_devices; exit 1 with a line of what broke.
#include <errno.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "transport/verbs/verbs_device.h"
#include "verbs_stand_in.h"

using namespace fabricpulse;

namespace {

constexpr std::chrono::seconds kPatience{20};

// A registration that has begun and ends when it is let go.
struct Gate {
  std::mutex lock;
  std::condition_variable changed;
  bool begun = false, open = false;
} gate;

bool wait_for(const bool& what) {
  std::unique_lock<std::mutex> held(gate.lock);
  return gate.changed.wait_for(held, kPatience, [&] { return what; });
}

void set(bool* what) {
  std::lock_guard<std::mutex> held(gate.lock);
  *what = true;
  gate.changed.notify_all();
}

// The second of two devices has no room left.
bool refusal_is_said(stand_in::Fabric* fabric, VerbsDevices* devices, VerbsLibrary* library) {
  if (!devices->use(devices->all()[1].get())) return false;
  static const auto full = devices->all()[1]->context;
  static const auto usual = library->reg_mr;
  library->reg_mr = [](ib::ProtectionDomain* domain, void* data, size_t size, int access) {
    errno = ENOMEM;
    return domain->context == full ? nullptr : usual(domain, data, size, access);
  };
  const size_t before = fabric->regions();
  std::vector<uint8_t> data(4096);
  std::string why;
  if (devices->register_memory(data.data(), data.size(), &why) != nullptr || fabric->regions() != before) {
    fprintf(stderr, "memory that one device has refused is registered\n");
    return false;
  }
  const bool said = why.find("rdma1") != std::string::npos && why.find("ulimit -l") != std::string::npos;
  if (!said) fprintf(stderr, "not said who has refused, and what may help: %s\n", why.c_str());
  return said;
}

}  // namespace

int main() {
  stand_in::Fabric fabric(1);
  static VerbsLibrary library = fabric.library();
  static const auto reg_mr = library.reg_mr;
  library.reg_mr = [](ib::ProtectionDomain* domain, void* data, size_t size, int access) {
    set(&gate.begun);
    (void)wait_for(gate.open);
    return reg_mr(domain, data, size, access);
  };
  VerbsDevices devices(&library);
  devices.refresh();
  if (!devices.use(devices.all()[0].get())) return 1;
  std::vector<uint8_t> data(4096);
  VerbsMemory* memory = nullptr;
  std::string why;
  std::thread registers([&] { memory = devices.register_memory(data.data(), data.size(), &why); });
  bool looked = false, found = false;
  std::thread looks([&] {
    VerbsPort port;
    NicAddress address{};
    address[10] = address[11] = 0xff;
    address[12] = 10;
    found = wait_for(gate.begun) && devices.find(address, &port) && devices.use(port.device);
    set(&looked);
  });
  const bool in_time = wait_for(looked);
  set(&gate.open);
  looks.join();
  registers.join();
  if (!in_time) fprintf(stderr, "a port is found only when memory is registered\n");
  if (!found || memory == nullptr) fprintf(stderr, "no port, or no memory\n");
  if (memory != nullptr) devices.deregister_memory(memory);
  const bool said = refusal_is_said(&fabric, &devices, &library);
  return in_time && found && memory != nullptr && said ? 0 : 1;
}
