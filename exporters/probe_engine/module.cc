// fabricpulse.mesh._probe_engine: the engine for Python.
#include <malloc.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <tuple>

#include "edge_text.h"
#include "module_pure_parts.h"
#include "probe_engine.h"
#include "python_module.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace fabricpulse;

namespace {

template <typename Array>
nb::tuple bounds(const Array& array) {
  nb::list out;
  for (const std::int64_t bound : array) out.append(bound);
  return nb::tuple(out);
}

// The edge records of a snapshot for `edges` edges. A copy, because bytes need not be aligned for the
// records. Throws std::invalid_argument when it has another number of them.
std::vector<EdgeRecord> edges_of(nb::bytes snapshot, std::size_t edges) {
  SnapshotHeader header;
  if (snapshot.size() < sizeof(header)) throw std::invalid_argument("not a snapshot");
  std::memcpy(&header, snapshot.c_str(), sizeof(header));
  const std::size_t offset = sizeof(header) + header.nics * sizeof(NicRecord);
  if (header.edges != edges || snapshot.size() != offset + header.edges * sizeof(EdgeRecord)) {
    throw std::invalid_argument("the snapshot is of another configuration");
  }
  std::vector<EdgeRecord> out(header.edges);
  std::memcpy(static_cast<void*>(out.data()), snapshot.c_str() + offset, out.size() * sizeof(EdgeRecord));
  return out;
}

using NicTuple = std::tuple<std::string, std::string, std::string>;
using EdgeTuple = std::tuple<std::uint32_t, std::string, std::string, std::string, std::string>;

}  // namespace

NB_MODULE(_probe_engine, m) {
  raise_os_errors();

  m.attr("OWD_BUCKETS_NS") = bounds(kOwdBuckets);
  m.attr("LATENESS_BUCKETS_NS") = bounds(kLatenessBuckets);
  m.attr("MOST_SLOW_EDGES") = kMostSlowEdges;
  m.attr("OUTAGE_BUCKETS_NS") = bounds(kOutageBuckets);
  m.attr("MAX_PATHS") = kMaxPaths;
  m.attr("PACKET_SIZE") = kPacketSize;
  m.attr("RECORD_SIZES") = nb::make_tuple(sizeof(SnapshotHeader), sizeof(NicRecord), sizeof(EdgeRecord));
  m.attr("NEVER_RECEIVED") = kNeverReceived;

  nb::class_<Settings>(m, "Settings")
      .def(nb::init<>())
      .def_rw("host", &Settings::host)
      .def_rw("ring_path", &Settings::ring_path)
      .def_rw("clock_path", &Settings::clock_path)
      .def_rw("port", &Settings::port)
      .def_rw("dscp", &Settings::dscp)
      .def_rw("paths", &Settings::paths)
      .def_rw("sweep", &Settings::sweep)
      .def_rw("size_probes", &Settings::size_probes)
      .def_rw("bind_device", &Settings::bind_device)
      // "software", "auto" or "hardware".
      .def_prop_rw(
          "timestamps", [](const Settings& s) { return timestamps_name(s.timestamps); },
          [](Settings& s, const std::string& name) { s.timestamps = timestamps_named(name); })
      .def_rw("rate", &Settings::rate)
      .def_rw("interval_ns", &Settings::interval_ns)
      .def_rw("grace_ns", &Settings::grace_ns)
      .def_rw("tick_ns", &Settings::tick_ns)
      .def_rw("spacing_ns", &Settings::spacing_ns)
      .def_rw("window_ns", &Settings::window_ns)
      .def_rw("latency_ceiling_ns", &Settings::latency_ceiling_ns)
      .def_rw("latency_factor", &Settings::latency_factor)
      .def_rw("latency_slack_ns", &Settings::latency_slack_ns)
      .def_rw("receive_rate", &Settings::receive_rate)
      .def_rw("priority", &Settings::priority)
      .def_rw("ring_capacity", &Settings::ring_capacity)
      .def_rw("edge_capacity", &Settings::edge_capacity);

  nb::class_<Event>(m, "Event")
      .def_prop_ro("kind", [](const Event& e) { return static_cast<int>(e.kind); })
      .def_ro("host_ns", &Event::host_ns)
      .def_ro("duration_ns", &Event::duration_ns)
      .def_ro("cause", &Event::cause)
      .def_ro("inbound", &Event::inbound)
      .def_ro("outbound", &Event::outbound)
      .def_ro("device", &Event::device)
      .def_ro("network", &Event::network)
      .def_ro("peer", &Event::peer)
      .def_ro("peer_device", &Event::peer_device);

  nb::class_<ProbeEngine>(m, "ProbeEngine")
      .def(nb::init<const Settings&>())
      .def("set_keys",
           [](ProbeEngine& engine, const std::vector<nb::bytes>& raw) {
             std::vector<SipKey> keys;
             for (const nb::bytes& key : raw) keys.push_back(to_key(key));
             engine.set_keys(keys);
           })
      .def("configure",
           [](ProbeEngine& engine, const std::vector<NicTuple>& nics, const std::vector<EdgeTuple>& edges) {
             std::vector<NicSpec> nic_specs;
             for (const auto& [device, network, address] : nics)
               nic_specs.push_back({device, network, address});
             std::vector<EdgeSpec> edge_specs;
             for (const auto& [nic, peer, device, network, address] : edges) {
               edge_specs.push_back({nic, peer, device, network, address});
             }
             nb::gil_scoped_release release;
             return engine.configure(nic_specs, edge_specs);
           })
      .def("start", &ProbeEngine::start)
      .def("stop", &ProbeEngine::stop, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("realtime", &ProbeEngine::realtime)
      .def_prop_ro("epoch", &ProbeEngine::epoch)
      .def_prop_ro("event_fd", &ProbeEngine::event_fd)
      .def("snapshot",
           [](ProbeEngine& engine) {
             std::string out;
             {
               nb::gil_scoped_release release;
               out = engine.snapshot();
             }
             return nb::bytes(out.data(), out.size());
           })
      .def("take_events", &ProbeEngine::take_events)
      .def("trace", &ProbeEngine::trace, "edge"_a, "path"_a)
      // (generation, edge, source port, hops) of each trace that has ended.
      .def("take_traces", [](ProbeEngine& engine) {
        std::vector<std::tuple<std::uint32_t, std::uint32_t, int, std::vector<std::string>>> out;
        for (Trace& t : engine.take_traces()) {
          out.emplace_back(t.generation, t.edge, t.path, std::move(t.hops));
        }
        return out;
      });

  nb::class_<EdgeText>(m, "EdgeText")
      .def(nb::init<std::vector<std::string>, std::vector<std::string>, int>(), "names"_a, "labels"_a,
           "port"_a)
      .def("summarize",
           [](const EdgeText& text, nb::bytes snapshot, std::size_t nics) {
             const EdgeSummary summary = summarize_edges(edges_of(snapshot, text.edges()), nics);
             std::vector<std::vector<std::uint64_t>> nics_out;
             for (const NicEdges& n : summary.nics) {
               nics_out.push_back({n.up, n.down, n.unknown, n.degraded, n.send_errors, n.sent, n.received,
                                   n.lost, n.outbound_lost});
             }
             return std::make_tuple(nics_out, summary.impaired);
           })
      .def("render", [](const EdgeText& text, nb::bytes snapshot, bool only_suffering) {
        const std::vector<EdgeRecord> edges = edges_of(snapshot, text.edges());
        std::vector<EdgeText::Block> blocks;
        {
          nb::gil_scoped_release release;
          blocks = text.render(edges.data(), only_suffering);
        }
        std::vector<std::tuple<nb::str, std::uint32_t>> out;
        for (const EdgeText::Block& block : blocks) {
          out.emplace_back(nb::str(block.text.data(), block.text.size()), block.samples);
        }
        return out;
      });

  // An answer of a megabyte goes through a handful of buffers. Where the allocator gives them back after each
  // scrape, touching them anew takes longer than writing the text.
  m.def("keep_freed_memory", [](int limit) {
    return mallopt(M_MMAP_THRESHOLD, limit) == 1 && mallopt(M_TRIM_THRESHOLD, limit) == 1;
  });
  m.def("nic_identity", &nic_identity, "host"_a, "device"_a);
  m.def("size_after_train", &size_after_train, "train"_a, "paths"_a, "sweep"_a, "mtu"_a);
  m.def("path_of_train", &path_of_train, "train"_a, "paths"_a, "sweep"_a);

  bind_pure_parts(m);
}
