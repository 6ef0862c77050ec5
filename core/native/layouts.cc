// The shared-memory headers as the C++ compiler sees them, for tests/unit/core/test_layouts.py: offsets,
// sizes, and the conversions that Python does too.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "fabricpulse/clock_page.h"
#include "fabricpulse/probe_ring.h"
#include "fabricpulse/virtual_clock.h"

namespace nb = nanobind;

using Layout = std::map<std::string, std::size_t>;

#define FIELD(type, field) \
  { #field, offsetof(type, field) }

static std::map<std::string, Layout> layouts() {
  return {
      {"virtual_clock",
       {{"sizeof", sizeof(fp_virtual_clock)},
        FIELD(fp_virtual_clock, count),
        FIELD(fp_virtual_clock, raw_count),
        FIELD(fp_virtual_clock, segments)}},
      {"virtual_clock_segment", {{"sizeof", sizeof(fp_virtual_clock_segment)}}},
      {"clock_page",
       {{"sizeof", sizeof(fp_clock_page)},
        FIELD(fp_clock_page, status),
        FIELD(fp_clock_page, current),
        FIELD(fp_clock_page, previous),
        FIELD(fp_clock_page, bound_ref_raw_ns),
        FIELD(fp_clock_page, host),
        FIELD(fp_clock_page, host_previous),
        FIELD(fp_clock_page, host_since_ns),
        FIELD(fp_clock_page, disruptions),
        FIELD(fp_clock_page, time_namespace),
        FIELD(fp_clock_page, vmclock_marker)}},
      {"clock_file",
       {{"sizeof", sizeof(fp_clock_file)},
        FIELD(fp_clock_file, sequence),
        FIELD(fp_clock_file, watched_until_raw_ns),
        FIELD(fp_clock_file, pages)}},
      {"probe_ring_header",
       {{"sizeof", sizeof(fp_probe_ring_header)},
        FIELD(fp_probe_ring_header, host),
        FIELD(fp_probe_ring_header, edges_sequence),
        FIELD(fp_probe_ring_header, next),
        FIELD(fp_probe_ring_header, contradictions),
        FIELD(fp_probe_ring_header, stamp_epoch_ns),
        FIELD(fp_probe_ring_header, hidden_jump_ns),
        FIELD(fp_probe_ring_header, doubts)}},
      {"probe_edge",
       {{"sizeof", sizeof(fp_probe_edge)},
        FIELD(fp_probe_edge, device),
        FIELD(fp_probe_edge, peer),
        FIELD(fp_probe_edge, peer_network)}},
      {"probe_sample",
       {{"sizeof", sizeof(fp_probe_sample)},
        FIELD(fp_probe_sample, tx_valid),
        FIELD(fp_probe_sample, tx_ns),
        FIELD(fp_probe_sample, rx_ns),
        FIELD(fp_probe_sample, owd_ns)}},
  };
}

static std::int64_t virtual_clock_apply(const nb::bytes& page, std::int64_t kernel_ns) {
  return fp_virtual_clock_apply(reinterpret_cast<const fp_virtual_clock*>(page.c_str()), kernel_ns);
}

static std::int64_t virtual_raw_clock_apply(const nb::bytes& page, std::int64_t kernel_ns) {
  return fp_virtual_raw_clock_apply(reinterpret_cast<const fp_virtual_clock*>(page.c_str()), kernel_ns);
}

static fp_clock_page clock_page_of(const nb::bytes& file) {
  fp_clock_page copy;
  if (file.size() < sizeof(fp_clock_file)) throw nb::value_error("shorter than the file of a clock page");
  fp_clock_file_copy(reinterpret_cast<const fp_clock_file*>(file.c_str()), &copy);
  return copy;
}

static nb::tuple clock_convert(const nb::bytes& file, std::int64_t host_ns) {
  const fp_clock_page copy = clock_page_of(file);
  const fp_fleet_time t = fp_clock_convert(&copy, host_ns);
  return nb::make_tuple(t.fleet_ns, t.bound_ns, t.status, t.estimated_error_ns);
}

static nb::tuple clock_at(const nb::bytes& file, std::int64_t raw_ns) {
  const fp_clock_page copy = clock_page_of(file);
  const fp_fleet_time t = fp_clock_at(&copy, raw_ns);
  return nb::make_tuple(t.fleet_ns, t.bound_ns, t.status, t.estimated_error_ns);
}

NB_MODULE(_layouts, m) {
  m.def("layouts", &layouts, "Layout name -> field -> byte offset, and sizeof.");
  m.def("virtual_clock_apply", &virtual_clock_apply, nb::arg("page"), nb::arg("kernel_ns"),
        "Host clock by a virtual clock page.");
  m.def("virtual_raw_clock_apply", &virtual_raw_clock_apply, nb::arg("page"), nb::arg("kernel_ns"),
        "CLOCK_MONOTONIC_RAW of the host by a virtual clock page.");
  m.def("clock_convert", &clock_convert, nb::arg("file"), nb::arg("host_ns"),
        "(fleet_ns, bound_ns, status, estimated_error_ns) of a stamp of the host clock, by a clock page.");
  m.def("clock_at", &clock_at, nb::arg("file"), nb::arg("raw_ns"),
        "(fleet_ns, bound_ns, status, estimated_error_ns) at a moment of CLOCK_MONOTONIC_RAW, by a clock "
        "page.");
}
