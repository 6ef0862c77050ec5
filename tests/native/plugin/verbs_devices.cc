// Whoever looks for a port, or takes a device that is in use, does not wait for memory that is being registered: pinning
// it may take seconds, and the service thread looks for ports at each dial and each answer.
//
// And what a device does not take is said, by name, and nothing is left of it at the others.
//
// A device that the kernel has ended (a reset, a driver loaded anew) ends no job: it takes no more memory and has no port,
// and one that comes by its name takes what is registered. An error of a device that is there is none of those.
//
// Usage: plugin_verbs_devices; exit 1 with a line of what broke.
#include <errno.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
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

// The second of two devices does not take memory, but answers.
bool refusal_is_said(stand_in::Fabric* fabric, VerbsDevices* devices, VerbsLibrary* library, int error,
                     const char* words) {
  if (!devices->use(devices->all()[1].get())) return false;
  static int refused_by;
  refused_by = error;
  static const auto full = devices->all()[1]->context;
  static const auto usual = library->reg_mr;
  library->reg_mr = [](ib::ProtectionDomain* domain, void* data, size_t size, int access) {
    errno = refused_by;
    return domain->context == full ? nullptr : usual(domain, data, size, access);
  };
  const size_t before = fabric->regions();
  std::vector<uint8_t> data(4096);
  std::string why;
  if (devices->register_memory(data.data(), data.size(), &why) != nullptr || fabric->regions() != before) {
    fprintf(stderr, "memory that one device has refused is registered\n");
    return false;
  }
  const bool said = why.find("rdma1") != std::string::npos && why.find(words) != std::string::npos;
  if (!said) fprintf(stderr, "not said who has refused, and what may help: %s\n", why.c_str());
  return said;
}

// What the kernel reports of a device.
std::vector<uint32_t> events;
int end_errno = EAGAIN;

bool is(bool what, const char* otherwise) {
  if (!what) fprintf(stderr, "%s\n", otherwise);
  return what;
}

NicAddress address_of(uint8_t device) {
  NicAddress address{};
  address[10] = address[11] = 0xff;
  address[12] = 10;
  address[15] = device;
  return address;
}

// By what the end of a device shows: it says so, its descriptor has an error, it answers no question any more, or it takes
// no memory and answers none.
enum class Sign { kEvent, kDescriptor, kNoAnswer, kMemory };

bool gone_device_is_replaced(Sign sign) {
  stand_in::Fabric fabric(1);
  VerbsLibrary library = fabric.library();
  library.get_async_event = [](ib::Context*, ib::AsyncEvent* event) {
    errno = end_errno;
    if (events.empty()) return -1;
    event->type = events.back();
    events.pop_back();
    return 0;
  };
  static bool refuses = false;
  static const auto usual = library.reg_mr;
  static const ib::Context* ended = nullptr;
  library.reg_mr = [](ib::ProtectionDomain* domain, void* data, size_t size, int access) {
    errno = EIO;
    return refuses && domain->context == ended ? nullptr : usual(domain, data, size, access);
  };
  // The kernel ends what a process has of a device, and the new one is opened anew.
  static ib::Context again;
  static const auto usual_open = library.open_device;
  library.open_device = [](ib::Device* device) -> ib::Context* {
    if (ended == nullptr || ended->device != device) return usual_open(device);
    again = *ended;
    return &again;
  };
  static bool answers = true;
  static const auto usual_table = library.query_gid_table;
  static const auto usual_port = library.query_port;
  library.query_gid_table = [](ib::Context* context, ib::GidEntry* out, size_t most, uint32_t flags,
                               size_t size) -> ssize_t {
    return answers || context != ended ? usual_table(context, out, most, flags, size) : -EIO;
  };
  library.query_port = [](ib::Context* context, uint8_t port, ib::PortAttributes* out) {
    return answers || context != ended ? usual_port(context, port, out) : EIO;
  };
  ended = nullptr;
  answers = true;
  refuses = false;
  VerbsDevices devices(&library);
  devices.refresh();
  VerbsDevice* other = devices.all()[0].get();
  VerbsDevice* device = devices.all()[1].get();
  if (!devices.use(other) || !devices.use(device)) return false;
  bool changed = false;
  end_errno = EAGAIN;
  events = {ib::kEventPortError};
  bool well =
      is(devices.read_events(device, &changed) && changed, "the error of a port is the end of its device");
  std::vector<uint8_t> data(4096), more(4096), last(4096);
  std::string why;
  VerbsMemory* before = devices.register_memory(data.data(), data.size(), &why);

  ended = device->context;
  refuses = true;
  answers = sign != Sign::kNoAnswer && sign != Sign::kMemory;
  VerbsMemory* between = before;
  if (sign == Sign::kMemory) {
    between = devices.register_memory(more.data(), more.size(), &why);
    well &= is(between != nullptr && between->regions[0] != nullptr && between->regions[1] == nullptr,
               "memory is not registered because a device has just ended");
    well &= is(device->gone, "the end of a device is not seen when it takes no memory");
  }
  if (sign == Sign::kEvent) events = {ib::kEventDeviceFatal};
  end_errno = sign == Sign::kDescriptor ? EIO : EAGAIN;
  VerbsPort port;
  well &= is(answers ? !devices.read_events(device, &changed) : !devices.find(address_of(1), &port),
             "the end of a device is not seen");
  well &= is(device->gone, "a device that has ended is there");
  well &= is(!devices.port_active({device, 1, 1}), "the port of a device that is gone is active");
  well &= is(!devices.find(address_of(1), &port), "a device that is gone has a port");
  well &= is(devices.find(address_of(0), &port) && devices.port_active(port), "the other device is gone too");

  devices.refresh();
  well &= is(devices.all().size() == 3, "the device that has come is not opened");
  if (!well) return false;
  refuses = false;
  VerbsDevice* came = devices.all()[2].get();
  well &= is(came->number == 2 && !came->gone && devices.use(came), "the device that has come is of no use");
  well &= is(before->regions[2] != nullptr && between->regions[2] != nullptr,
             "the device that has come lacks memory that was there");
  VerbsMemory* after = devices.register_memory(last.data(), last.size(), &why);
  well &= is(after != nullptr && after->regions[2] != nullptr && after->regions[1] == nullptr,
             "memory is registered with the device that is gone");
  devices.refresh();
  well &= is(devices.all().size() == 3, "a device is opened twice");
  devices.deregister_memory(before);
  if (between != before) devices.deregister_memory(between);
  if (after != nullptr) devices.deregister_memory(after);
  return well;
}

// A job whose only device has just ended gets its memory, as it would when that is known: its lanes may be on spare
// NICs, and the device that comes takes it.
bool job_outlives_its_only_device() {
  stand_in::Fabric fabric(1);
  VerbsLibrary library = fabric.library();
  static bool ended;
  ended = false;
  static const auto usual = library.reg_mr;
  static const auto usual_port = library.query_port;
  library.reg_mr = [](ib::ProtectionDomain* domain, void* data, size_t size, int access) {
    errno = EIO;
    return ended ? nullptr : usual(domain, data, size, access);
  };
  library.query_port = [](ib::Context* context, uint8_t port, ib::PortAttributes* out) {
    return ended ? EIO : usual_port(context, port, out);
  };
  VerbsDevices devices(&library);
  devices.refresh();
  VerbsDevice* device = devices.all()[0].get();
  if (!devices.use(device)) return false;
  ended = true;
  std::vector<uint8_t> data(4096);
  std::string why;
  VerbsMemory* memory = devices.register_memory(data.data(), data.size(), &why);
  ended = false;
  devices.refresh();
  bool well = is(memory != nullptr && memory->regions[0] == nullptr && device->gone,
                 "the end of a job's only device is an error of its memory");
  well &= is(devices.all().size() == 3 && devices.use(devices.all()[2].get()), "no device has come for it");
  if (!well) return false;
  well = is(memory->regions[2] != nullptr, "the device that has come lacks memory that was there");
  devices.deregister_memory(memory);
  return well;
}

// A device that comes into use takes all memory of the job, or is not used: a lane of it would end with the first message.
bool device_takes_all_memory_or_none() {
  stand_in::Fabric fabric(1);
  VerbsLibrary library = fabric.library();
  static size_t most;
  most = 4096;
  static const auto usual = library.reg_mr;
  library.reg_mr = [](ib::ProtectionDomain* domain, void* data, size_t size, int access) {
    errno = ENOMEM;
    return size > most ? nullptr : usual(domain, data, size, access);
  };
  std::vector<std::string> said;
  VerbsDevices devices(&library, [&](const std::string& text) { said.push_back(text); });
  devices.refresh();
  VerbsDevice* device = devices.all()[0].get();
  std::string why;
  std::vector<std::vector<uint8_t>> data(3);
  std::vector<VerbsMemory*> memory;
  for (size_t i = 0; i < data.size(); ++i) {
    data[i].resize(4096 << i);
    memory.push_back(devices.register_memory(data[i].data(), data[i].size(), &why));
  }
  bool well = true;
  for (int attempt = 0; attempt < 3; ++attempt) {
    errno = 0;
    well &= is(!devices.use(device) && errno == ENOMEM && device->domain == nullptr,
               "a device that lacks memory of the job is used");
    for (VerbsMemory* each : memory)
      well &= is(each->regions[0] == nullptr, "memory is left at an unused device");
  }
  well &= is(fabric.regions() == 0, "the device keeps memory");
  well &= is(said.size() == 1 && said[0].find("rdma0") != std::string::npos &&
                 said[0].find("ulimit -l") != std::string::npos,
             "it is not said once which device does not take memory, and what may help");
  most = SIZE_MAX;
  well &= is(devices.use(device), "a device that takes memory later is not used");
  for (VerbsMemory* each : memory) {
    well &= is(each->regions[0] != nullptr, "a device is used without memory of the job");
    devices.deregister_memory(each);
  }
  return well;
}

// Each device keeps its number, and the process has so many.
bool full_table_is_said_once() {
  stand_in::Fabric fabric(1);
  const VerbsLibrary library = fabric.library();
  std::vector<std::string> said;
  VerbsDevices devices(&library, [&](const std::string& text) { said.push_back(text); });
  for (uint32_t round = 0; round < 2 * VerbsMemory::kMostDevices; ++round) {
    devices.refresh();
    if (!is(said.empty() == (devices.all().size() < VerbsMemory::kMostDevices || !devices.all().back()->gone),
            "a full table is said too early, or not at all"))
      return false;
    devices.all().back()->gone = true;
  }
  devices.refresh();
  return is(devices.all().size() == VerbsMemory::kMostDevices && said.size() == 1 &&
                said[0].find("rdma1") != std::string::npos,
            "it is not said once which device stays unused");
}

}  // namespace

int main() {
  for (const Sign sign : {Sign::kEvent, Sign::kDescriptor, Sign::kNoAnswer, Sign::kMemory})
    if (!gone_device_is_replaced(sign)) return 1;
  if (!job_outlives_its_only_device() || !device_takes_all_memory_or_none() || !full_table_is_said_once())
    return 1;
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
  const bool said = refusal_is_said(&fabric, &devices, &library, ENOMEM, "ulimit -l") &&
                    refusal_is_said(&fabric, &devices, &library, EIO, strerror(EIO)) &&
                    is(!devices.all()[1]->gone, "a device that answers is taken for one that has ended");
  return in_time && found && memory != nullptr && said ? 0 : 1;
}
