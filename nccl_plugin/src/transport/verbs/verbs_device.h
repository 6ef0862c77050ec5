// RDMA ports, found by the address that they serve, and memory registered with them.
#ifndef FABRICPULSE_TRANSPORT_VERBS_VERBS_DEVICE_H_
#define FABRICPULSE_TRANSPORT_VERBS_VERBS_DEVICE_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/lane.h"
#include "core/nic.h"
#include "transport/verbs/verbs_library.h"

namespace fabricpulse {

// An open device: its protection domain, and the last events of its ports.
struct VerbsDevice {
  std::string name;
  ib::Context* context = nullptr;
  std::atomic<ib::ProtectionDomain*> domain{nullptr};  // nullptr until a NIC of it is used
  uint32_t number = 0;
  // The kernel has ended it for this process: a reset, a driver that was loaded anew. What comes by its name then is
  // another device.
  std::atomic<bool> gone{false};
  bool refused = false;  // it has been said that it has not taken memory
  // Bytes that lanes have given to it and that no completion covers yet. Of all its ports: drivers of today make a device
  // a port.
  std::atomic<uint64_t> under_way{0};
};

struct VerbsPort {
  VerbsDevice* device = nullptr;
  uint8_t port = 0;
  uint8_t gid_index = 0;
};

// What Transport::register_memory() gives: keys by device number.
struct VerbsMemory : RegisteredMemory {
  static constexpr uint32_t kMostDevices = 32;
  // nullptr: the device is not in use, or has not taken it.
  std::atomic<ib::MemoryRegion*> regions[kMostDevices] = {};
  uint32_t users = 0;
};

// The RDMA devices of this host. Thread-safe where stated.
class VerbsDevices {
 public:
  using Warn = std::function<void(const std::string&)>;
  // warn: of what leaves a device unused. Any thread.
  explicit VerbsDevices(const VerbsLibrary* library, Warn warn = {})
      : library_(*library), warn_(std::move(warn)) {}
  ~VerbsDevices();
  VerbsDevices(const VerbsDevices&) = delete;
  VerbsDevices& operator=(const VerbsDevices&) = delete;

  // Names of the RDMA devices of this host, from /sys: whether or not libibverbs is there.
  static std::vector<std::string> present();

  // Opens those that are there and are not open yet, one that has come for one that is gone too: kMostDevices in the life
  // of the process, as each keeps its number. Any thread.
  void refresh();
  const std::vector<std::unique_ptr<VerbsDevice>>& all() const { return devices_; }

  // The port with a RoCE v2 GID of this address. Asked anew each time: its index changes when the address goes
  // and comes. Any thread. False: there is none now.
  bool find(const NicAddress& address, VerbsPort* out);
  // Takes in what a device has reported. Whether it is there still; changed : a port, or an address of one.
  bool read_events(VerbsDevice* device, bool* changed) const;
  // The port is ACTIVE. True if it cannot be asked.
  bool port_active(const VerbsPort& port) const;
  uint32_t mtu(const VerbsPort& port) const;
  // Makes a device ready for lanes: a protection domain, and all registered memory in it. False, with errno: it does not
  // take that, and has none of it; may be tried again. Service thread.
  bool use(VerbsDevice* device);

  // A region is shared by all that register the same memory. A device that has ended does without. nullptr: `why` has the
  // reason. Any thread.
  VerbsMemory* register_memory(void* data, size_t size, std::string* why);
  void deregister_memory(VerbsMemory* memory);

  const VerbsLibrary& library() const { return library_; }

 private:
  bool add_region(VerbsMemory* memory, uint32_t device, ib::ProtectionDomain* domain);
  void refuse(VerbsDevice* device, ib::ProtectionDomain* domain, size_t size, int error);
  std::vector<VerbsDevice*> devices();
  std::string open_new();  // the first time that there is no room: the device that is left out
  bool find_ended(VerbsDevice* device) const;  // by a question that a device that is there answers
  bool find_in_table(VerbsDevice* device, const NicAddress& address, VerbsPort* out) const;

  const VerbsLibrary& library_;
  const Warn warn_;
  // Of memory_ and of the domains; taken first. Held while memory is pinned, which may take seconds: who looks for a
  // port does not wait for that.
  std::mutex memory_lock_;
  std::map<std::pair<void*, size_t>, std::unique_ptr<VerbsMemory>> memory_;
  std::mutex lock_;  // of devices_, which only grows, and full_
  std::vector<std::unique_ptr<VerbsDevice>> devices_;
  bool full_ = false;  // it has been said
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_VERBS_VERBS_DEVICE_H_
