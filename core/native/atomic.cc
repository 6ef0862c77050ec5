// What Python lacks for sharing memory with other processes: a barrier, and a wait that costs next to nothing.
#include <linux/futex.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
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
         const nb::ndarray<std::uint64_t, nb::ndim<1>, nb::device::cpu>& seen, double most_s) {
        if (words.shape(0) != seen.shape(0) || words.shape(0) == 0)
          throw nb::value_error("as many words seen as there are, one or more");
        if (!(most_s > 0 && most_s < 1e6)) throw nb::value_error("most_s: above 0");
        const auto most = static_cast<std::int64_t>(most_s * 1e9);
        const timespec pause{most / kSecond, most % kSecond};
        const nb::gil_scoped_release others_run;
        if (changed(words, seen)) return true;
        // Of the first word the half that counts; a futex has 32 bits.
        const auto value = static_cast<std::uint32_t>(*seen.data());
        syscall(SYS_futex, words.data(), FUTEX_WAIT, value, &pause, nullptr, 0);
        return changed(words, seen);
      },
      nb::arg("words"), nb::arg("seen"), nb::arg("most_s"),
      "Waits until one of `words`, which other processes write, is another than in `seen`, which becomes "
      "what they are now: True, or False after `most_s` without. Writers wake the futex at the first word; "
      "what one does between look and wait is seen after `most_s`. Other threads run meanwhile.");
  m.def(
      "wake",
      [](const nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::device::cpu>& words) {
        if (words.shape(0) == 0) throw nb::value_error("no words");
        syscall(SYS_futex, words.data(), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
      },
      nb::arg("words"), "Ends each `wait_changed` for `words` that is under way, of all processes.");
}
