// What Python lacks for sharing memory with other processes: a barrier, and a wait that costs next to nothing.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace nb = nanobind;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// Copies to `seen` what differs in `words`; true if anything did.
bool changed(const nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::device::cpu>& words,
             const nb::ndarray<std::uint64_t, nb::ndim<1>, nb::device::cpu>& seen) {
  bool any = false;
  for (std::size_t i = 0; i < words.shape(0); ++i) {
    const std::uint64_t now =
        __atomic_load_n(words.data() + static_cast<std::int64_t>(i) * words.stride(0), __ATOMIC_ACQUIRE);
    std::uint64_t& before = seen.data()[static_cast<std::int64_t>(i) * seen.stride(0)];
    any |= now != before;
    before = now;
  }
  return any;
}

}  // namespace

NB_MODULE(_atomic, m) {
  m.def(
      "fence", [] { std::atomic_thread_fence(std::memory_order_seq_cst); },
      "Loads and stores before it are done, for all processors, before those after it begin.");
  m.def(
      "wait_changed",
      [](const nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::device::cpu>& words,
         const nb::ndarray<std::uint64_t, nb::ndim<1>, nb::device::cpu>& seen, double every_s,
         double most_s) {
        if (words.shape(0) != seen.shape(0)) throw nb::value_error("as many words seen as there are");
        if (!(every_s > 0 && every_s < 1e6)) throw nb::value_error("every_s: above 0");
        const auto every = static_cast<std::int64_t>(every_s * 1e9);
        const timespec pause{every / kSecond, every % kSecond};
        const nb::gil_scoped_release others_run;
        for (double waited = 0; !changed(words, seen); waited += every_s) {
          if (waited >= most_s) return false;
          nanosleep(&pause, nullptr);
        }
        return true;
      },
      nb::arg("words"), nb::arg("seen"), nb::arg("every_s"), nb::arg("most_s"),
      "Waits until one of `words`, which other processes write, is another than in `seen`, which becomes "
      "what "
      "they are now: True, or False after `most_s` without. Looks each `every_s`; other threads run "
      "meanwhile.");
}
