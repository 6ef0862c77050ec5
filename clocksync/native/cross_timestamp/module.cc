// Python's way to the host's clocks: from Python itself a reading takes long enough for caches to go cold in
// it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "cross_timestamp.h"

namespace {

std::tuple<int64_t, int64_t, int64_t> as_tuple(const fabricpulse::CrossTimestamp& moment) {
  return {moment.real, moment.raw, moment.error};
}

}  // namespace

NB_MODULE(_cross_timestamp, m) {
  m.def(
      "cross_timestamp", [](int tries) { return as_tuple(fabricpulse::cross_timestamp(tries)); },
      nanobind::arg("tries"),
      "CLOCK_REALTIME and CLOCK_MONOTONIC_RAW at one moment, and how far the second may be off, ns: the mean "
      "of "
      "those of `tries` readings that were hardly slower than the fastest. Raises ValueError when `tries` is "
      "not positive, RuntimeError "
      "when the raw clock ran backward in all of them.");
  m.def(
      "combine",
      [](const std::vector<std::tuple<int64_t, int64_t, int64_t>>& readings) {
        std::vector<fabricpulse::ClockReading> taken;
        taken.reserve(readings.size());
        for (const auto& [before, real, after] : readings) taken.push_back({before, real, after});
        return as_tuple(fabricpulse::combine(taken));
      },
      nanobind::arg("readings"),
      "What `cross_timestamp` makes of readings (raw clock before, real clock, raw clock after), ns.");
}
