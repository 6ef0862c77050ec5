// fabricpulse.mesh._probe_engine: the engine for Python, and its pure parts for the tests.
#include <malloc.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "causality.h"
#include "edge_text.h"
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
  m.attr("OUTAGE_BUCKETS_NS") = bounds(kOutageBuckets);
  m.attr("MAX_PATHS") = kMaxPaths;
  m.attr("PACKET_SIZE") = kPacketSize;
  m.attr("RECORD_SIZES") = nb::make_tuple(sizeof(SnapshotHeader), sizeof(NicRecord), sizeof(EdgeRecord));
  m.attr("NEVER_HEARD") = kNeverHeard;

  nb::class_<Settings>(m, "Settings")
      .def(nb::init<>())
      .def_rw("host", &Settings::host)
      .def_rw("ring_path", &Settings::ring_path)
      .def_rw("clock_path", &Settings::clock_path)
      .def_rw("port", &Settings::port)
      .def_rw("dscp", &Settings::dscp)
      .def_rw("paths", &Settings::paths)
      .def_rw("sweep", &Settings::sweep)
      .def_rw("bind_device", &Settings::bind_device)
      .def_rw("hardware", &Settings::hardware)
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
             return std::make_tuple(nics_out, summary.troubled);
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
  m.def("path_of_train", &path_of_train, "train"_a, "paths"_a, "sweep"_a);

  // The pure parts.
  nb::class_<UnstalledClock>(m, "UnstalledClock")
      .def(nb::init<std::int64_t>(), "max_gap_ns"_a)
      .def("advance",
           [](UnstalledClock& clock, std::int64_t monotonic_ns) {
             std::int64_t stall = 0;
             const std::int64_t now = clock.advance(monotonic_ns, &stall);
             return std::make_tuple(now, stall);
           })
      .def_prop_ro("now", &UnstalledClock::now);
  nb::class_<Presence>(m, "Presence")
      .def(nb::init<>())
      .def("heard", &Presence::heard)
      .def("heard_by", &Presence::heard_by)
      .def_ro("heard_at", &Presence::heard_at)
      .def_ro("heard_by_at", &Presence::heard_by_at)
      .def("both", &Presence::both, "interval"_a)
      .def("states", [](const Presence& presence, std::int64_t now, std::int64_t interval) {
        const EdgeStates s = edge_states(presence, now, interval);
        return std::make_tuple(static_cast<int>(s.edge), static_cast<int>(s.inbound),
                               static_cast<int>(s.outbound));
      });
  nb::class_<EdgeHealth>(m, "EdgeHealth")
      .def(nb::init<>())
      .def("update",
           [](EdgeHealth& health, const Presence& presence, std::int64_t now, std::int64_t interval) {
             return static_cast<int>(health.update(presence, now, interval).edge);
           });
  nb::class_<NicHealth>(m, "NicHealth")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t>(), "interval_ns"_a, "grace_ns"_a, "now"_a)
      .def(
          "update",
          [](NicHealth& health, std::int64_t now, int edges, std::int64_t heard, std::int64_t both,
             bool link_down, int peers, bool others_connected, std::optional<std::int64_t> heard_by,
             bool cannot_probe) {
            NicEvidence e;
            e.edges = edges;
            e.heard = heard;
            e.both = both;
            e.heard_by = heard_by.value_or(both);
            e.cannot_probe = cannot_probe;
            e.link_down = link_down;
            e.peers = static_cast<PeerLoss>(peers);
            e.others_connected = others_connected;
            return static_cast<int>(health.update(e, now));
          },
          "now"_a, "edges"_a, "heard"_a, "both"_a, "link_down"_a = false, "peers"_a = 0,
          "others_connected"_a = false, "heard_by"_a = nb::none(), "cannot_probe"_a = false)
      .def("exchanged", &NicHealth::exchanged, "both"_a)
      .def("restart", &NicHealth::restart, "now"_a)
      .def_prop_ro("lost_at", &NicHealth::lost_at)
      .def_prop_ro("state", [](const NicHealth& h) { return static_cast<int>(h.state()); })
      .def_prop_ro("cause", [](const NicHealth& h) { return static_cast<int>(h.cause()); })
      .def_prop_ro("seen", &NicHealth::seen);
  // The table of NicHealth: (next state, cause or None where it is kept, event) for each row and observation.
  m.def("nic_transitions", [] {
    std::vector<std::vector<std::tuple<int, std::optional<int>, int>>> rows;
    for (std::size_t row = 0; row < kNicRows; ++row) {
      rows.emplace_back();
      for (std::size_t column = 0; column < kNicObservations; ++column) {
        const NicTransition& t =
            nic_transition(static_cast<NicRow>(row), static_cast<NicObservation>(column));
        std::optional<int> cause;
        if (!t.keep_cause) cause = static_cast<int>(t.cause);
        rows.back().emplace_back(static_cast<int>(t.next), cause, static_cast<int>(t.event));
      }
    }
    return rows;
  });
  using SightingTuple = std::tuple<std::uint64_t, std::int64_t, std::int64_t>;
  m.def(
      "peer_loss",
      [](const std::vector<SightingTuple>& own, const std::vector<SightingTuple>& others, std::int64_t now,
         std::int64_t interval) {
        auto sightings = [](const std::vector<SightingTuple>& from) {
          std::vector<PeerSighting> made;
          for (const auto& [host, heard, both] : from) made.push_back({host, heard, both});
          return made;
        };
        const std::vector<PeerSighting> a = sightings(own), b = sightings(others);
        return static_cast<int>(peer_loss(a.data(), a.size(), b.data(), b.size(), now, interval));
      },
      "own"_a, "others"_a, "now"_a, "interval"_a);
  nb::class_<PathHealth>(m, "PathHealth")
      .def(nb::init<>())
      .def("heard", &PathHealth::heard)
      .def("missed", &PathHealth::missed)
      .def("reset", &PathHealth::reset)
      .def_prop_ro("state", [](const PathHealth& h) { return static_cast<int>(h.state()); });
  nb::class_<LatencyHealth>(m, "LatencyHealth")
      .def(nb::init<std::int64_t, double, std::int64_t>(), "ceiling_ns"_a, "factor"_a, "slack_ns"_a)
      .def("update", &LatencyHealth::update, "median_ns"_a)
      .def_prop_ro("limit_ns", &LatencyHealth::limit)
      .def_prop_ro("baseline_ns", &LatencyHealth::baseline)
      .def_prop_ro("state", [](const LatencyHealth& h) { return static_cast<int>(h.state()); });
  nb::class_<RoundTrip>(m, "RoundTrip")
      .def(nb::init<>())
      .def("out", &RoundTrip::out, "ns"_a, "at_ns"_a)
      .def("back", &RoundTrip::back, "ns"_a, "at_ns"_a)
      .def("forget", &RoundTrip::forget)
      .def_prop_ro("latest", &RoundTrip::latest)
      .def_prop_ro("median", &RoundTrip::median);
  // One end of an edge: its trains without stamps.
  nb::class_<EdgeTrains>(m, "EdgeTrains")
      .def(nb::init<>())
      .def(
          "begin",
          [](EdgeTrains& trains, std::uint8_t paths, std::uint8_t sweep) {
            const std::uint8_t used = trains.sweep(sweep);
            const std::uint32_t train = trains.begin(paths, used, 0);
            return std::make_tuple(train, used, path_of_train(train, paths, used));
          },
          "paths"_a, "sweep"_a)
      .def("finish", &EdgeTrains::finish, "sent"_a)
      .def(
          "hear",
          [](EdgeTrains& trains, std::uint32_t train, std::uint8_t position, std::uint8_t paths,
             std::uint8_t sweep, std::int64_t now) {
            Packet packet;
            packet.train = train;
            packet.position = position;
            packet.paths = paths;
            packet.sweep = sweep;
            packet.path = path_of_train(train, paths, sweep);
            trains.hear(packet, now, false, now);
          },
          "train"_a, "position"_a, "paths"_a, "sweep"_a, "now"_a)
      // What packet `position` of `trains` tells the other end, which has sent what was heard.
      .def(
          "tell",
          [](const EdgeTrains& trains, int position, std::int64_t now, EdgeTrains& other,
             std::uint32_t received) { other.confirm(trains.heard_report(position, now), received); },
          "position"_a, "now"_a, "other"_a, "received"_a)
      .def("silence", &EdgeTrains::silence, "silent_ns"_a)
      .def("restart", &EdgeTrains::restart)
      .def("rotate_loss", &EdgeTrains::rotate_loss)
      .def_prop_ro("lost", &EdgeTrains::lost)
      .def_prop_ro("outbound_lost", &EdgeTrains::outbound_lost)
      .def("path", [](const EdgeTrains& trains, int index) {
        const PathTally& path = trains.path(index);
        return std::make_tuple(path.expected, path.lost, static_cast<int>(path.health.state()),
                               path.window.lossy(), path.window.ratio_ppm());
      });
  nb::class_<OwdWindow>(m, "OwdWindow")
      .def(nb::init<>())
      .def("add", &OwdWindow::add)
      .def("rotate", &OwdWindow::rotate)
      .def("quantile", &OwdWindow::quantile)
      .def_prop_ro("count", &OwdWindow::count)
      .def_prop_ro("min", &OwdWindow::min)
      .def_prop_ro("max", &OwdWindow::max);

  nb::class_<EdgeCausality>(m, "EdgeCausality")
      .def(nb::init<>())
      .def(
          "add",
          [](EdgeCausality& edge, int direction, bool main_path, std::int64_t owd_ns, std::int64_t bound_ns) {
            return edge.add(static_cast<Direction>(direction & 1), main_path, owd_ns, bound_ns);
          })
      .def_prop_ro("violated", &EdgeCausality::violated);
  nb::class_<StampClock>(m, "StampClock", "The stamp clock (stamp_clock.h).")
      .def(nb::init<std::int64_t>(), nb::arg("epoch_ns"))
      .def(
          "observe",
          [](StampClock& clock, std::int64_t host_ns, std::int64_t raw_ns, std::int64_t width_ns) {
            return clock.observe({host_ns, raw_ns, width_ns});
          },
          nb::arg("host_ns"), nb::arg("raw_ns"), nb::arg("width_ns"),
          "False when it shows that the host clock was steered since the last reading.")
      .def("from_host", &StampClock::from_host, nb::arg("host_ns"),
           "A stamp of the host clock on the stamp clock; 0 where that cannot be told.");
  nb::class_<HostCausality>(m, "HostCausality")
      .def(nb::init<>())
      .def("heard", &HostCausality::heard)
      .def("own_clock", &HostCausality::own_clock);

  // One edge end without a socket: what the parser and the session make of any bytes. For the tests of
  // forgery.
  struct Gate {
    std::vector<FleetKey> keys;
    std::uint32_t our_epoch;
    std::uint32_t our_train = 0;
    Session session;
  };
  nb::class_<Gate>(m, "Gate")
      .def("__init__",
           [](Gate* gate, const std::vector<nb::bytes>& raw, std::uint32_t our_epoch) {
             new (gate) Gate{};
             for (const nb::bytes& key : raw) gate->keys.push_back(make_fleet_key(to_key(key)));
             gate->our_epoch = our_epoch;
           })
      .def_rw("our_train", &Gate::our_train)
      .def("take", [](Gate& gate, nb::bytes data) -> std::string {
        Packet packet;
        switch (decode_packet(reinterpret_cast<const std::uint8_t*>(data.c_str()), data.size(), gate.keys,
                              &packet)) {
          case Decoded::kMalformed:
            return "malformed";
          case Decoded::kWrongFleet:
            return "wrong_fleet";
          case Decoded::kBadMac:
            return "bad_mac";
          case Decoded::kOk:
            break;
        }
        switch (gate.session.admit(packet, gate.our_epoch, gate.our_train)) {
          case Admitted::kFresh:
            return "accepted";
          case Admitted::kReplay:
            return "replay";
          case Admitted::kUnconfirmed:
            break;
        }
        return "unconfirmed";
      });
  m.def(
      "encode",
      [](nb::bytes key, std::uint32_t epoch, std::uint32_t train, int position, std::uint32_t heard_epoch,
         std::uint32_t heard_train, std::uint64_t sender, std::uint64_t receiver) {
        Packet packet;
        packet.epoch = epoch;
        packet.sender = sender;
        packet.receiver = receiver;
        packet.train = train;
        packet.position = static_cast<std::uint8_t>(position);
        packet.heard_epoch = heard_epoch;
        packet.heard.train = heard_train;
        std::uint8_t out[kPacketSize];
        encode_packet(packet, make_fleet_key(to_key(key)), out);
        return nb::bytes(reinterpret_cast<const char*>(out), sizeof(out));
      },
      "key"_a, "epoch"_a, "train"_a, "position"_a, "heard_epoch"_a = 0, "heard_train"_a = 0, "sender"_a = 1,
      "receiver"_a = 2);
}
