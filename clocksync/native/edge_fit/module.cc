// fabricpulse.clocksync._edge_fit: the trains of an edge, and the fit of a window, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>

#include "edge_fit.h"
#include "gaps.h"
#include "separating_line.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace fabricpulse;

namespace {

using Floats = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Times = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Stamps = nb::ndarray<const std::int64_t, nb::shape<-1, FP_PROBE_TRAIN>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<const bool, nb::shape<-1, FP_PROBE_TRAIN>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Trains trains_of(const Times& t_ns, const Stamps& tx_ns, const Stamps& rx_ns, const Flags& valid) {
  const std::size_t count = t_ns.shape(0);
  if (tx_ns.shape(0) != count || rx_ns.shape(0) != count || valid.shape(0) != count)
    throw nb::value_error("as many rows of each");
  std::vector<Train> trains(count);
  for (std::size_t i = 0; i < count; ++i) {
    trains[i].t_ns = t_ns.data()[i];
    for (std::size_t k = 0; k < FP_PROBE_TRAIN; ++k) {
      trains[i].tx_ns[k] = tx_ns.data()[i * FP_PROBE_TRAIN + k];
      trains[i].rx_ns[k] = rx_ns.data()[i * FP_PROBE_TRAIN + k];
      trains[i].valid[k] = valid.data()[i * FP_PROBE_TRAIN + k];
    }
  }
  return Trains(std::move(trains));
}

// A field of all trains as an array, which keeps them.
template <typename Field>
auto column(Field Train::*field) {
  return [field](nb::handle_t<Trains> self) {
    using Scalar = std::remove_all_extents_t<Field>;
    constexpr std::size_t kRank = std::rank_v<Field>;
    static Train none;
    const auto& trains = nb::cast<const Trains&>(self);
    const std::size_t shape[] = {trains.size(), FP_PROBE_TRAIN};
    const std::int64_t strides[] = {sizeof(Train) / sizeof(Scalar), 1};
    Train* first = trains.size() ? trains.begin() : &none;
    return nb::ndarray<nb::numpy, Scalar, nb::ndim<kRank + 1>>(&(first->*field), kRank + 1, shape, self,
                                                               strides);
  };
}

double number(nb::handle object, const char* name) { return nb::cast<double>(object.attr(name)); }

std::int64_t integer(nb::handle object, const char* name) {
  return nb::cast<std::int64_t>(object.attr(name));
}

OffsetLine line_of(nb::handle fit) {
  return {integer(fit, "t_ns"), integer(fit, "offset_ns"), number(fit, "rate_ppb")};
}

std::optional<Prior> prior_of(nb::handle prior) {
  if (prior.is_none()) return {};
  Prior known{number(prior, "rate_ppb"),
              number(prior, "drift_ppb_s"),
              number(prior, "most_ppb_s"),
              integer(prior, "t_ns"),
              {}};
  for (nb::handle one : nb::cast<nb::tuple>(prior.attr("extremes"))) {
    const auto [a, b, c, d] = nb::cast<std::array<std::int64_t, 4>>(one);
    known.extremes.push_back({a, b, c, d});
  }
  return known;
}

nb::object as_python(const std::optional<EdgeFit>& fit) {
  if (!fit) return nb::none();
  nb::list floors;
  for (const Floor& floor : fit->floors)
    floors.append(nb::make_tuple(floor.upper_ns, floor.upper_s, floor.lower_ns, floor.lower_s));
  const Extremes& e = fit->extremes;
  return nb::make_tuple(
      fit->t_ns, fit->t_last_ns, fit->offset_ns, fit->rate_ppb, fit->half_gap_ns, fit->above_ns,
      fit->below_ns, fit->rate_low_ppb, fit->rate_high_ppb, fit->bound_ns, fit->sigma_ns, fit->rate_sigma_ppb,
      fit->trains, fit->window_s, static_cast<int>(fit->quality),
      nb::make_tuple(e.upper_t_ns, e.upper_ns, e.lower_t_ns, e.lower_ns), fit->base_ns, floors);
}

Cloud cloud_of(const Floats& t, const Floats& y) {
  if (t.shape(0) != y.shape(0)) throw nb::value_error("as many times as points");
  return {{t.data(), t.data() + t.shape(0)}, {y.data(), y.data() + y.shape(0)}};
}

}  // namespace

NB_MODULE(_edge_fit, m) {
  // Trains may be alive when the interpreter ends; nanobind would tell so on a daemon's standard error.
  nb::set_leak_warnings(false);
  m.attr("STEP_TRAINS") = kStepTrains;
  m.attr("WIDEST_RATE_PPB") = kWidestRatePpb;

  nb::class_<Trains>(m, "Trains")
      .def(nb::init<>())
      .def(
          "__init__",
          [](Trains* self, const Times& t_ns, const Stamps& tx_ns, const Stamps& rx_ns, const Flags& valid) {
            new (self) Trains(trains_of(t_ns, tx_ns, rx_ns, valid));
          },
          "t_ns"_a, "tx_ns"_a, "rx_ns"_a, "valid"_a)
      .def("__len__", &Trains::size)
      .def("__reduce__",
           [](nb::handle self) {
             return nb::make_tuple(self.type(), nb::make_tuple(self.attr("t_ns"), self.attr("tx_ns"),
                                                               self.attr("rx_ns"), self.attr("valid")));
           })
      .def_prop_ro("t_ns", column(&Train::t_ns))
      .def_prop_ro("tx_ns", column(&Train::tx_ns))
      .def_prop_ro("rx_ns", column(&Train::rx_ns))
      .def_prop_ro("valid", column(&Train::valid))
      .def_prop_ro("begin_ns",
                   [](const Trains& self) {
                     if (self.size() == 0) throw nb::value_error("no trains");
                     return self.begin()->t_ns;
                   })
      .def("find", &Trains::find, "t_ns"_a)
      .def("part", &Trains::part, "begin"_a, "end"_a)
      .def(
          "after",
          [](const Trains& self, std::int64_t cut) { return self.part(self.find(cut), self.size()); },
          "cut_ns"_a)
      .def("without", &Trains::without, "t_ns"_a)
      .def(
          "without_fastest",
          [](const Trains& self, std::size_t count, int sign, nb::handle fit) {
            return self.without_fastest(count, sign, line_of(fit));
          },
          "count"_a, "sign"_a, "fit"_a)
      .def(
          "joined",
          [](const Trains& self, const std::vector<Bytes>& blocks, int direction) {
            std::vector<std::pair<const fp_probe_sample*, std::size_t>> samples;
            for (const Bytes& block : blocks) {
              const std::size_t size = block.shape(0);
              if (size % sizeof(fp_probe_sample) ||
                  reinterpret_cast<std::uintptr_t>(block.data()) % alignof(fp_probe_sample))
                throw nb::value_error("not whole samples");
              samples.emplace_back(reinterpret_cast<const fp_probe_sample*>(block.data()),
                                   size / sizeof(fp_probe_sample));
            }
            return self.joined(samples, static_cast<fp_probe_direction>(direction));
          },
          "blocks"_a, "direction"_a)
      .def(
          "early",
          [](const Trains& self, int sign, nb::handle fit) {
            const double rate = number(fit, "rate_ppb");
            const double unsure =
                std::max({number(fit, "rate_high_ppb") - rate, rate - number(fit, "rate_low_ppb"), 0.0});
            EarlyTrains early =
                self.early(sign, line_of(fit), integer(fit, "t_last_ns"), number(fit, "bound_ns"), unsure);
            return nb::make_tuple(early.t_ns, early.fresh);
          },
          "sign"_a, "fit"_a)
      .def(
          "floor",
          [](const Trains& self, int sign, nb::handle fit) { return self.floor(sign, line_of(fit)); },
          "sign"_a, "fit"_a);

  m.def(
      "fit_edge",
      [](const Trains& outbound, const Trains& inbound, nb::handle parameters, nb::handle prior,
         std::vector<double> ranks) {
        const FitParameters how{number(parameters, "nu"),
                                nb::cast<std::size_t>(parameters.attr("fewest_points")),
                                number(parameters, "asymmetry_ns"),
                                number(parameters, "drift_ppb"),
                                number(parameters, "stamp_noise_ns"),
                                std::move(ranks)};
        const std::optional<Prior> known = prior_of(prior);
        return as_python(fit_edge(outbound, inbound, how, known ? &*known : nullptr));
      },
      "outbound"_a, "inbound"_a, "parameters"_a, "prior"_a.none(), "ranks"_a);
  m.def(
      "separate",
      [](const Floats& upper_t, const Floats& upper, const Floats& lower_t, const Floats& lower, double nu,
         double rate_ppb) {
        const SeparatingLine line =
            separate(cloud_of(upper_t, upper), cloud_of(lower_t, lower), nu, rate_ppb);
        return nb::make_tuple(line.offset_ns, line.rate_ppb, line.half_gap_ns);
      },
      "upper_t"_a, "upper"_a, "lower_t"_a, "lower"_a, "nu"_a, "rate_ppb"_a = 0.0);
  m.def("usual_gap", &usual_gap, "gaps"_a, "share"_a);
  m.def("gap_change", &gap_change, "gaps"_a);
}
