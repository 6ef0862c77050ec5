#include "process/nic_table.h"

#include <cstdio>
#include <cstring>

namespace fabricpulse {
namespace {

uint64_t nic_guid(const NicInfo& nic) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);  // FNV-1a; must differ between the NICs of a host
  auto add = [&hash](const void* data, size_t size) {
    for (size_t i = 0; i < size; ++i)
      hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * UINT64_C(0x100000001b3);
  };
  add(nic.address.data(), nic.address.size());
  add(nic.name.data(), nic.name.size());
  return hash;
}

}  // namespace

NicAddress NicTable::address(uint32_t index) const {
  std::lock_guard<std::mutex> lock(addresses_lock_);
  return nics_[index]->address;
}

void NicTable::set_place(uint32_t index, const NicInfo& found) {
  std::lock_guard<std::mutex> lock(addresses_lock_);
  nics_[index]->address = found.address;
  nics_[index]->ifindex = found.ifindex;
}

Nic* NicTable::find(const std::string& name, uint32_t* index) const {
  for (uint32_t i = 0; i < count(); ++i) {
    if (nics_[i]->name != name) continue;
    *index = i;
    return nics_[i].get();
  }
  return nullptr;
}

void NicTable::fill(WireNic* nics, uint32_t* count_out) const {
  *count_out = count();
  for (uint32_t i = 0; i < *count_out; ++i) {
    snprintf(nics[i].device, sizeof(nics[i].device), "%s", nics_[i]->name.c_str());
    NicAddress own = address(i);
    memcpy(nics[i].address, own.data(), own.size());
    nics[i].spare_use = static_cast<uint8_t>(nics_[i]->spare_use);
  }
}

bool NicTable::same_family(NicPair pair, const std::vector<WireNic>& peer) const {
  return is_mapped_v4(address(pair.first).data()) == is_mapped_v4(peer[pair.second].address);
}

bool NicTable::reaches(NicPair pair, const std::vector<WireNic>& peer) const {
  constexpr auto kOnly = static_cast<uint8_t>(SpareUse::kOnly);
  return nics_[pair.first]->spare_use != SpareUse::kOnly && peer[pair.second].spare_use != kOnly &&
         same_family(pair, peer);
}

std::vector<NicPair> NicTable::spares(const std::vector<WireNic>& peer) const {
  std::vector<uint8_t> here, there;
  for (uint32_t i = 0; i < count(); ++i) here.push_back(static_cast<uint8_t>(nics_[i]->spare_use));
  for (const WireNic& nic : peer) there.push_back(nic.spare_use);
  return plan_spares(here, there, [&](NicPair pair) { return same_family(pair, peer); });
}

uint32_t NicTable::devices() const {
  uint32_t first = 0;
  while (first < count() && nics_[first]->spare_use != SpareUse::kOnly) ++first;
  return first;
}

std::vector<std::string> NicTable::names() const {
  std::vector<std::string> all;
  for (uint32_t i = 0; i < count(); ++i) all.push_back(nics_[i]->name);
  return all;
}

Nic& NicTable::add(const NicInfo& info, bool link_up) {
  uint32_t index = count();
  auto nic = std::make_unique<Nic>();
  static_cast<NicInfo&>(*nic) = info;
  nic->link_up = link_up;
  nic->guid = nic_guid(info);
  nics_[index] = std::move(nic);
  count_.store(index + 1, std::memory_order_release);
  return *nics_[index];
}

NicInfo NicTable::info(uint32_t index) const {
  std::lock_guard<std::mutex> lock(addresses_lock_);
  return *nics_[index];
}

}  // namespace fabricpulse
