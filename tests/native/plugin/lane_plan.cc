// Prints which pairs of NICs the lanes of a connection go over (nccl_plugin/src/core/lane_plan.h);
// tests/unit/plugin/test_lane_plan.py asks.
//
// Usage: plugin_lane_plan LOCAL REMOTE DEVICE PEER_DEVICE MOST PATHS [PRESENT...]
//        plugin_lane_plan spares HERE THERE, a digit (SpareUse) a NIC: core/spare_lanes.h
// Pairs are written LOCAL-REMOTE. With PRESENT (of another plan): what is added to them.
#include "core/lane_plan.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/spare_lanes.h"

namespace {

void print(const std::vector<fabricpulse::NicPair>& pairs) {
  for (const auto& pair : pairs) printf("%u-%u\n", pair.first, pair.second);
}

std::vector<uint8_t> digits(const std::string& text) {
  std::vector<uint8_t> found;
  for (char digit : text) found.push_back(static_cast<uint8_t>(digit - '0'));
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "spares") {
    print(fabricpulse::plan_spares(digits(argv[2]), digits(argv[3]),
                                   [](fabricpulse::NicPair) { return true; }));
    return 0;
  }
  if (argc < 7) return 2;
  auto number = [&](int at) { return static_cast<uint32_t>(strtoul(argv[at], nullptr, 10)); };
  fabricpulse::LanePlan plan{number(1), number(2), number(3), number(4), number(5), number(6)};
  auto all = [](fabricpulse::NicPair) { return true; };
  std::vector<fabricpulse::NicPair> present;
  for (int at = 7; at < argc; ++at) {
    char* rest = nullptr;
    auto local = static_cast<uint32_t>(strtoul(argv[at], &rest, 10));
    if (*rest != '-') return 2;
    present.emplace_back(local, static_cast<uint32_t>(strtoul(rest + 1, nullptr, 10)));
  }
  print(present.empty() ? fabricpulse::plan_lanes(plan, all) : fabricpulse::lanes_to_add(present, plan, all));
  return 0;
}
