// Offsets and sizes of the shared-memory layouts, for tests/unit/core/test_layouts.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <map>
#include <string>

#include "fabricpulse/clock_page.h"
#include "fabricpulse/probe_ring.h"
#include "fabricpulse/virtual_clock.h"

namespace nb = nanobind;

using Layout = std::map<std::string, std::size_t>;

#define FIELD(type, field) {#field, offsetof(type, field)}

static std::map<std::string, Layout> layouts() {
  return {
      {"virtual_clock",
       {{"sizeof", sizeof(fp_virtual_clock)},
        FIELD(fp_virtual_clock, count),
        FIELD(fp_virtual_clock, segments)}},
      {"virtual_clock_segment", {{"sizeof", sizeof(fp_virtual_clock_segment)}}},
      {"clock_page",
       {{"sizeof", sizeof(fp_clock_page)},
        FIELD(fp_clock_page, sequence),
        FIELD(fp_clock_page, status),
        FIELD(fp_clock_page, current),
        FIELD(fp_clock_page, previous),
        FIELD(fp_clock_page, bound_ref_host_ns),
        FIELD(fp_clock_page, disruptions)}},
      {"probe_ring_header",
       {{"sizeof", sizeof(fp_probe_ring_header)},
        FIELD(fp_probe_ring_header, host),
        FIELD(fp_probe_ring_header, edges_sequence),
        FIELD(fp_probe_ring_header, next)}},
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

NB_MODULE(_layouts, m) { m.def("layouts", &layouts, "Layout name -> field -> byte offset, and sizeof."); }
