#include "transport/verbs/verbs_device.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace fabricpulse {
namespace {

constexpr uint8_t kMostPorts = 4;
constexpr size_t kMostGids = 1024;
constexpr int kMostGidsWithoutTable = 64;

// Where the library is too old to report it.
bool roce_v2_by_sysfs(const std::string& device, uint8_t port, int index) {
  std::string path = "/sys/class/infiniband/" + device + "/ports/" + std::to_string(port) +
                     "/gid_attrs/types/" + std::to_string(index);
  char text[32] = {};
  FILE* file = fopen(path.c_str(), "re");
  if (file == nullptr) return false;
  bool read = fgets(text, sizeof(text), file) != nullptr;
  fclose(file);
  return read && strncmp(text, "RoCE v2", 7) == 0;
}

std::string refusal(size_t size, int error) {
  std::string text = "does not register " + std::to_string(size) + " bytes: " + strerror(error);
  if (error == ENOMEM) text += "; has the process a limit of locked memory (ulimit -l, LimitMEMLOCK=)?";
  return text;
}

}  // namespace

VerbsDevices::~VerbsDevices() {
  for (auto& entry : memory_)
    for (auto& region : entry.second->regions)
      if (region.load() != nullptr) library_.dereg_mr(region);
  for (auto& device : devices_) {
    if (ib::ProtectionDomain* domain = device->domain) library_.dealloc_pd(domain);
    library_.close_device(device->context);
  }
}

std::vector<std::string> VerbsDevices::present() {
  std::vector<std::string> names;
  DIR* folder = opendir("/sys/class/infiniband");
  if (folder == nullptr) return names;
  while (dirent* entry = readdir(folder))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  closedir(folder);
  std::sort(names.begin(), names.end());
  return names;
}

void VerbsDevices::refresh() {
  std::string left_out;
  {
    std::lock_guard<std::mutex> held(lock_);
    left_out = open_new();
  }
  if (!left_out.empty() && warn_)
    warn_("the RDMA device " + left_out + " stays unused: this process has had " +
          std::to_string(VerbsMemory::kMostDevices) + ", with those that have ended, and opens no more");
}

std::string VerbsDevices::open_new() {
  std::string left_out;
  int count = 0;
  ib::Device** list = library_.get_device_list(&count);
  if (list == nullptr) return left_out;
  for (int i = 0; i < count; ++i) {
    std::string name = library_.get_device_name(list[i]);
    bool known =
        std::any_of(devices_.begin(), devices_.end(), [&](auto& d) { return d->name == name && !d->gone; });
    if (!known && devices_.size() == VerbsMemory::kMostDevices) {
      if (!std::exchange(full_, true)) left_out = name;
      continue;
    }
    ib::Context* context = known ? nullptr : library_.open_device(list[i]);
    if (context == nullptr) continue;
    int flags = fcntl(context->async_fd, F_GETFL);
    if (flags >= 0) (void)fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK);
    auto device = std::make_unique<VerbsDevice>();
    device->name = name;
    device->context = context;
    device->number = static_cast<uint32_t>(devices_.size());
    devices_.push_back(std::move(device));
  }
  library_.free_device_list(list);
  return left_out;
}

bool VerbsDevices::find_in_table(VerbsDevice* device, const NicAddress& address, VerbsPort* out) const {
  auto match = [&](const ib::Gid& gid) { return memcmp(gid.raw, address.data(), sizeof(gid.raw)) == 0; };
  if (library_.query_gid_table != nullptr) {
    std::vector<ib::GidEntry> entries(kMostGids);
    ssize_t count =
        library_.query_gid_table(device->context, entries.data(), entries.size(), 0, sizeof(ib::GidEntry));
    for (ssize_t i = 0; i < count; ++i) {
      const ib::GidEntry& entry = entries[static_cast<size_t>(i)];
      if (entry.type != ib::kGidRoceV2 || entry.index > 255 || !match(entry.gid)) continue;
      *out = {device, static_cast<uint8_t>(entry.port), static_cast<uint8_t>(entry.index)};
      return true;
    }
    if (count >= 0) return false;
  }
  for (uint8_t port = 1; port <= kMostPorts; ++port) {
    ib::PortAttributes attributes{};
    if (library_.query_port(device->context, port, &attributes) != 0) break;
    int length = std::min(attributes.gid_table_length, kMostGidsWithoutTable);
    for (int index = 0; index < length; ++index) {
      ib::Gid gid{};
      if (library_.query_gid(device->context, port, index, &gid) != 0 || !match(gid)) continue;
      if (!roce_v2_by_sysfs(device->name, port, index)) continue;
      *out = {device, port, static_cast<uint8_t>(index)};
      return true;
    }
  }
  return false;
}

bool VerbsDevices::find(const NicAddress& address, VerbsPort* out) {
  std::lock_guard<std::mutex> held(lock_);
  for (auto& device : devices_)
    if (!device->gone && find_in_table(device.get(), address, out)) return true;
  // Events are read of devices in use alone: of others this shows that they have ended. Only now, as a driver of a device
  // in software may make it wait.
  for (auto& device : devices_)
    if (!device->gone) (void)find_ended(device.get());
  return false;
}

bool VerbsDevices::find_ended(VerbsDevice* device) const {
  ib::PortAttributes attributes{};
  const int error = library_.query_port(device->context, 1, &attributes);
  if (error == EIO || error == ENODEV) device->gone = true;
  return device->gone;
}

bool VerbsDevices::read_events(VerbsDevice* device, bool* changed) const {
  ib::AsyncEvent event{};
  errno = EAGAIN;
  while (library_.get_async_event(device->context, &event) == 0) {
    *changed |= event.type == ib::kEventPortActive || event.type == ib::kEventPortError ||
                event.type == ib::kEventGidChange;
    if (event.type == ib::kEventDeviceFatal) device->gone = true;
    library_.ack_async_event(&event);
    errno = EAGAIN;
  }
  // From then on the descriptor has an error, and is ready all the time.
  if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) device->gone = true;
  return !device->gone;
}

std::vector<VerbsDevice*> VerbsDevices::devices() {
  std::lock_guard<std::mutex> held(lock_);
  std::vector<VerbsDevice*> all;
  for (const auto& device : devices_)
    if (!device->gone) all.push_back(device.get());
  return all;
}

bool VerbsDevices::port_active(const VerbsPort& port) const {
  if (port.device->gone) return false;
  ib::PortAttributes attributes{};
  return library_.query_port(port.device->context, port.port, &attributes) != 0 ||
         attributes.state == ib::kPortActive;
}

uint32_t VerbsDevices::mtu(const VerbsPort& port) const {
  ib::PortAttributes attributes{};
  if (library_.query_port(port.device->context, port.port, &attributes) != 0) return 0;
  return attributes.active_mtu;
}

bool VerbsDevices::use(VerbsDevice* device) {
  if (device->domain.load(std::memory_order_acquire) != nullptr) return true;
  std::lock_guard<std::mutex> held(memory_lock_);
  if (device->domain.load(std::memory_order_relaxed) != nullptr) return true;
  ib::ProtectionDomain* domain = library_.alloc_pd(device->context);
  if (domain == nullptr) return false;
  for (auto& entry : memory_) {
    if (add_region(entry.second.get(), device->number, domain)) continue;
    const int error = errno;
    refuse(device, domain, entry.second->size, error);
    errno = error;
    return false;
  }
  device->domain.store(domain, std::memory_order_release);
  return true;
}

// Each lane of it would be made, and end with the first message from the memory that it lacks.
void VerbsDevices::refuse(VerbsDevice* device, ib::ProtectionDomain* domain, size_t size, int error) {
  for (auto& entry : memory_)
    if (ib::MemoryRegion* region = entry.second->regions[device->number].exchange(nullptr))
      library_.dereg_mr(region);
  library_.dealloc_pd(domain);
  if (!find_ended(device) && !std::exchange(device->refused, true) && warn_)
    warn_("the RDMA device " + device->name + " stays unused for now: it " + refusal(size, error));
}

bool VerbsDevices::add_region(VerbsMemory* memory, uint32_t device, ib::ProtectionDomain* domain) {
  ib::MemoryRegion* region =
      library_.reg_mr(domain, memory->data, memory->size, ib::kLocalWrite | ib::kRemoteWrite);
  memory->regions[device].store(region, std::memory_order_release);
  return region != nullptr;
}

VerbsMemory* VerbsDevices::register_memory(void* data, size_t size, std::string* why) {
  std::lock_guard<std::mutex> held(memory_lock_);
  auto [at, fresh] = memory_.try_emplace({data, size});
  if (fresh) {
    at->second = std::make_unique<VerbsMemory>();
    at->second->data = data;
    at->second->size = size;
    for (VerbsDevice* device : devices()) {
      ib::ProtectionDomain* domain = device->domain;
      if (domain == nullptr || add_region(at->second.get(), device->number, domain)) continue;
      // One may have ended that the kernel has not reported yet: the job goes on without. A device that is there may have
      // an EIO of its firmware.
      const int error = errno;
      if ((error == EIO || error == ENODEV) && find_ended(device)) continue;
      *why = device->name + " " + refusal(size, error);
      for (auto& region : at->second->regions)
        if (region.load() != nullptr) library_.dereg_mr(region);
      memory_.erase(at);
      return nullptr;
    }
  }
  ++at->second->users;
  return at->second.get();
}

void VerbsDevices::deregister_memory(VerbsMemory* memory) {
  std::lock_guard<std::mutex> held(memory_lock_);
  if (--memory->users > 0) return;
  for (auto& region : memory->regions)
    if (region.load() != nullptr) library_.dereg_mr(region);
  memory_.erase({memory->data, memory->size});
}

}  // namespace fabricpulse
