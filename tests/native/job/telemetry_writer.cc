// Changes one lane record of a telemetry file as fast as it can, under its seqlock, until it is killed: three
// fields that are always equal. For tests/unit/qp/test_telemetry.py.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "fabricpulse/plugin_telemetry.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  int fd = open(argv[1], O_RDWR);
  struct stat status;
  if (fd < 0 || fstat(fd, &status) != 0) return 2;
  void* map = mmap(nullptr, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return 2;
  auto* header = static_cast<fp_plugin_header*>(map);
  auto* lane = reinterpret_cast<volatile fp_plugin_lane*>(static_cast<char*>(map) +
                                                          header->tables[FP_TABLE_LANES].offset);
  for (uint64_t value = 1;; ++value) {
    __atomic_store_n(&lane->sequence, lane->sequence + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    lane->sent_bytes = value;
    lane->received_bytes = value;
    lane->rtt_ns = value;
    __atomic_store_n(&lane->sequence, lane->sequence + 1, __ATOMIC_RELEASE);
    // A pause of some microseconds, as between chunks: a reader needs a moment of rest.
    for (volatile int spin = 0; spin < 4000; spin = spin + 1) {
    }
  }
}
