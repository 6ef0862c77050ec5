// Every way to compute CRC-32C that this processor can run. Without arguments: reads lines "SEED SIZE SPLIT",
// prints the checksum by each way of SIZE bytes of a generator, computed in two parts and from an odd address.
// With "speed": GB/s of each way over 256 KiB, which stay in the cache as a chunk does between NIC and buffer.
#include "core/crc32c.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <vector>

using namespace fabricpulse;

namespace {

double cpu_seconds() {
  timespec ts;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
  return static_cast<double>(ts.tv_sec) + static_cast<double>(ts.tv_nsec) * 1e-9;
}

void speed() {
  std::vector<uint8_t> data(256 * 1024, 0x5a);
  for (const Crc32cWay* way = crc32c_ways(); way->name != nullptr; ++way) {
    double best = 0;
    uint32_t crc = 0;
    for (int round = 0; round < 20; ++round) {
      double start = cpu_seconds();
      for (int i = 0; i < 40; ++i) crc = way->extend(crc, data.data(), data.size());
      best = std::max(best, 40.0 * static_cast<double>(data.size()) / (cpu_seconds() - start));
    }
    printf("%s %.2f %08x\n", way->name, best / 1e9, crc);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "speed") == 0) {
    speed();
    return 0;
  }
  unsigned seed = 0;
  size_t size = 0, split = 0;
  while (std::cin >> seed >> size >> split) {
    std::vector<uint8_t> data(size + 1);
    uint32_t state = seed;
    for (size_t i = 0; i < size; ++i) {
      state = state * 1664525u + 1013904223u;
      data[i + 1] = static_cast<uint8_t>(state >> 24);
    }
    split = std::min(split, size);
    for (const Crc32cWay* way = crc32c_ways(); way->name != nullptr; ++way) {
      uint32_t crc =
          way->extend(way->extend(0, data.data() + 1, split), data.data() + 1 + split, size - split);
      printf("%s%08x", way == crc32c_ways() ? "" : " ", crc);
    }
    printf("\n");
  }
  return 0;
}
