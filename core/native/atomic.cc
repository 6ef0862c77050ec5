// The one thing that Python lacks for sharing memory with other processes: a barrier.
#include <nanobind/nanobind.h>

#include <atomic>

NB_MODULE(_atomic, m) {
  m.def(
      "fence", [] { std::atomic_thread_fence(std::memory_order_seq_cst); },
      "Loads and stores before it are done, for all processors, before those after it begin.");
}
