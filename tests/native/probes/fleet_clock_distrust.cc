// `fleet_clock_distrust PAGE`: whether the engine's reader takes the page: at once; after it has been distrusted, at
// once and nine seconds later; eleven seconds later.
#include <cstdio>

#include "clocks/fleet_clock_reader.h"

int main(int, char** argv) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  fabricpulse::FleetClockReader reader(argv[1], 0);
  const auto takes = [&reader](std::int64_t at_s) {
    reader.refresh(at_s * kSecond);
    return reader.ok() ? 1 : 0;
  };
  const int before = takes(1);
  reader.distrust();
  const int once = reader.ok() ? 1 : 0, soon = takes(10), late = takes(12);
  std::printf("%d %d %d %d\n", before, once, soon, late);
}
