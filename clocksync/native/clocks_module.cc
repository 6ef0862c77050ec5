// Python's way to the host's clocks: from Python itself a reading takes long enough for caches to go cold in
// it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "clocks_together.h"

namespace {

std::tuple<int64_t, int64_t> as_tuple(const fabricpulse::ClockMoment& moment) {
  return {moment.real, moment.raw};
}

}  // namespace

NB_MODULE(_clocks, m) {
  m.def(
      "read_together", [](int tries) { return as_tuple(fabricpulse::read_clocks_together(tries)); },
      nanobind::arg("tries"),
      "CLOCK_REALTIME and CLOCK_MONOTONIC_RAW at one moment, ns: the mean of those of `tries` readings that "
      "were hardly slower than the fastest. Raises ValueError when `tries` is not positive, RuntimeError "
      "when the raw clock ran backward in all of them.");
  m.def(
      "moment_of",
      [](const std::vector<std::tuple<int64_t, int64_t, int64_t>>& readings) {
        std::vector<fabricpulse::ClockReading> taken;
        taken.reserve(readings.size());
        for (const auto& [before, real, after] : readings) taken.push_back({before, real, after});
        return as_tuple(fabricpulse::moment_of(taken));
      },
      nanobind::arg("readings"),
      "What `read_together` makes of readings (raw clock before, real clock, raw clock after), ns.");
}
