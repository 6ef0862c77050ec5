#include "module_pure_parts.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <tuple>

#include "clocks/phc_line.h"
#include "evidence/causality.h"
#include "probe_engine.h"
#include "python_module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fabricpulse {
namespace {

// One edge end without a socket: what the parser and the session make of any bytes. For the tests of
// forgery.
struct Gate {
  std::vector<FleetKey> keys;
  std::uint32_t our_epoch;
  std::uint32_t our_train = 0;
  Session session;
};

}  // namespace

void bind_pure_parts(nb::module_& m) {
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
      .def("received", &Presence::received)
      .def("received_by_peer", &Presence::received_by_peer)
      .def_ro("received_at", &Presence::received_at)
      .def_ro("received_by_peer_at", &Presence::received_by_peer_at)
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
          [](NicHealth& health, std::int64_t now, int edges, std::int64_t received, std::int64_t both,
             bool link_down, int peers, bool others_connected, std::optional<std::int64_t> received_by_peer,
             bool cannot_probe) {
            NicEvidence e;
            e.edges = edges;
            e.received = received;
            e.both = both;
            e.received_by_peer = received_by_peer.value_or(both);
            e.cannot_probe = cannot_probe;
            e.link_down = link_down;
            e.peers = static_cast<PeerLoss>(peers);
            e.others_connected = others_connected;
            return static_cast<int>(health.update(e, now));
          },
          "now"_a, "edges"_a, "received"_a, "both"_a, "link_down"_a = false, "peers"_a = 0,
          "others_connected"_a = false, "received_by_peer"_a = nb::none(), "cannot_probe"_a = false)
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
          for (const auto& [host, received, both] : from) made.push_back({host, received, both});
          return made;
        };
        const std::vector<PeerSighting> a = sightings(own), b = sightings(others);
        return static_cast<int>(peer_loss(a.data(), a.size(), b.data(), b.size(), now, interval));
      },
      "own"_a, "others"_a, "now"_a, "interval"_a);
  nb::class_<PathHealth>(m, "PathHealth")
      .def(nb::init<>())
      .def("received", &PathHealth::received)
      .def("missed", &PathHealth::missed)
      .def("reset", &PathHealth::reset)
      .def_prop_ro("state", [](const PathHealth& h) { return static_cast<int>(h.state()); });
  nb::class_<LatencyHealth>(m, "LatencyHealth")
      .def(nb::init<std::int64_t, double, std::int64_t>(), "ceiling_ns"_a, "factor"_a, "slack_ns"_a)
      .def("update", &LatencyHealth::update, "median_ns"_a)
      .def_prop_ro("limit_ns", &LatencyHealth::limit)
      .def_prop_ro("baseline_ns", &LatencyHealth::baseline)
      .def_prop_ro("state", [](const LatencyHealth& h) { return static_cast<int>(h.state()); });
  nb::class_<EdgeDelays>(m, "EdgeDelays")
      .def(
          "__init__",
          [](EdgeDelays* delays, std::int64_t ceiling, double factor, std::int64_t slack) {
            new (delays) EdgeDelays(LatencyHealth(ceiling, factor, slack));
          },
          "ceiling_ns"_a, "factor"_a, "slack_ns"_a)
      .def("usual_stamps", &EdgeDelays::usual_stamps, "sent_by_nic"_a, "received_by_nic"_a)
      .def("add", &EdgeDelays::add, "path"_a, "owd_ns"_a, "bound_ns"_a)
      .def("second", &EdgeDelays::second)
      .def(
          "state",
          [](const EdgeDelays& delays, int path) { return static_cast<int>(delays.path_latency(path)); },
          "path"_a);
  nb::class_<RoundTrip>(m, "RoundTrip")
      .def(nb::init<>())
      .def("out", &RoundTrip::out, "ns"_a, "at_ns"_a)
      .def("back", &RoundTrip::back, "ns"_a, "at_ns"_a)
      .def("forget", &RoundTrip::forget)
      .def_prop_ro("latest", &RoundTrip::latest)
      .def_prop_ro("median", &RoundTrip::median);
  nb::class_<SizeLoss>(m, "SizeLoss")
      .def(nb::init<>())
      .def("add", nb::overload_cast<const SizeLoss&>(&SizeLoss::add), "other"_a)
      .def("most", &SizeLoss::most, "place"_a);
  nb::class_<PathSizes>(m, "PathSizes")
      .def(nb::init<>())
      .def(
          "due",
          [](PathSizes& sizes, std::uint32_t train, std::uint16_t size, std::uint16_t mtu,
             std::uint32_t expected, std::uint32_t lost) {
            sizes.due(train, size, mtu, {expected, lost});
          },
          "train"_a, "size"_a, "mtu"_a, "small_expected"_a = 0, "small_lost"_a = 0)
      .def(
          "arrived",
          [](PathSizes& sizes, std::uint32_t train, std::uint16_t size, std::uint32_t expected,
             std::uint32_t lost, std::uint16_t hole) {
            sizes.arrived(train, size, {expected, lost}, hole);
          },
          "train"_a, "size"_a, "small_expected"_a = 0, "small_lost"_a = 0, "hole"_a = 0)
      .def("black_hole", &PathSizes::black_hole, "loss_ppm"_a, "beside"_a)
      .def("maybe_black_hole", &PathSizes::maybe_black_hole, "loss_ppm"_a, "beside"_a)
      .def_prop_ro("loss", &PathSizes::loss);
  nb::class_<StampingChecks>(m, "StampingChecks", "What the checks of a NIC find (nic_stamping.h).")
      .def(nb::init<>())
      .def(
          "reopen",
          [](StampingChecks& checks, std::tuple<int, int> found, std::tuple<int, int> used) {
            NicStamping in_use{std::get<0>(used), std::get<1>(used)};
            const bool reopen = checks.reopen({std::get<0>(found), std::get<1>(found)}, &in_use);
            return std::make_tuple(reopen, std::make_tuple(in_use.phc, in_use.error));
          },
          "found"_a, "used"_a);
  nb::class_<StampingDevices>(m, "StampingDevices", "Which devices stamp by one PHC (nic_stamping.h).")
      .def(nb::init<>())
      .def("known", &StampingDevices::known, "index"_a)
      .def("answer", &StampingDevices::answer, "phc"_a, "found"_a)
      .def_prop_ro("asked", &StampingDevices::asked);
  // One end of an edge: its trains, all sent at 0 ns of both clocks.
  nb::class_<EdgeTrains>(m, "EdgeTrains")
      .def(nb::init<>())
      .def(
          "begin",
          [](EdgeTrains& trains, std::uint8_t paths, std::uint8_t sweep) {
            const std::uint8_t used = trains.sweep(sweep);
            const std::uint32_t train = trains.begin(paths, used, 0, 0);
            return std::make_tuple(train, used, path_of_train(train, paths, used));
          },
          "paths"_a, "sweep"_a)
      .def("finish", &EdgeTrains::finish, "sent"_a)
      .def("stamp_sent", &EdgeTrains::stamp_sent, "train"_a, "position"_a, "kernel_ns"_a, "stamp_ns"_a,
           "error_ns"_a)
      // The TX stamps of an earlier train of ours: (its number, the positions that are stamped, bit by bit, their
      // error, the stamps).
      .def(
          "sent_report",
          [](const EdgeTrains& trains, int position) {
            const TrainStamps sent = trains.sent_report(position);
            return std::make_tuple(sent.train, sent.valid, sent.error_ns,
                                   std::vector<std::int64_t>(sent.ns, sent.ns + kTrain));
          },
          "position"_a)
      .def("forget_stamps", &EdgeTrains::forget_stamps)
      .def(
          "receive",
          [](EdgeTrains& trains, std::uint32_t train, std::uint8_t position, std::uint8_t paths,
             std::uint8_t sweep, std::int64_t now) {
            Packet packet;
            packet.train = train;
            packet.position = position;
            packet.paths = paths;
            packet.sweep = sweep;
            packet.path = path_of_train(train, paths, sweep);
            trains.receive(packet, now, 0, now);
          },
          "train"_a, "position"_a, "paths"_a, "sweep"_a, "now"_a)
      // What packet `position` of `trains` reports to the other end, which has sent what was received.
      .def(
          "report",
          [](const EdgeTrains& trains, int position, std::int64_t now, EdgeTrains& other,
             std::uint32_t received) { other.confirm(trains.reception_report(position, now), received); },
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

  nb::class_<EdgeCausality>(m, "EdgeCausality", "What delays of one edge say of its clocks (causality.h).")
      .def(nb::init<>())
      .def(
          "add",
          [](EdgeCausality& edge, int direction, bool main_path, std::int64_t owd_ns, std::int64_t bound_ns,
             std::int64_t at_ns) {
            return edge.add(static_cast<Direction>(direction & 1), main_path, owd_ns, bound_ns, at_ns);
          },
          "direction"_a, "main_path"_a, "owd_ns"_a, "bound_ns"_a, "at_ns"_a)
      .def(
          "hidden_ns",
          [](const EdgeCausality& edge, int direction, std::int64_t now_ns) {
            return edge.hidden_ns(static_cast<Direction>(direction & 1), now_ns);
          },
          "direction"_a, "now_ns"_a)
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
           "A stamp of the host clock on the stamp clock; 0 where that is not known.")
      .def(
          "holds",
          [](const StampClock& clock, std::int64_t host_ns, std::int64_t raw_ns, std::int64_t width_ns) {
            return clock.holds({host_ns, raw_ns, width_ns});
          },
          nb::arg("host_ns"), nb::arg("raw_ns"), nb::arg("width_ns"),
          "Whether the host clock still shows what the readings before this one say.")
      .def("agrees", &StampClock::agrees, nb::arg("host_ns"), nb::arg("stamp_ns"), nb::arg("error_ns"),
           "Whether a reception can have been at stamp_ns, as a NIC says, and at host_ns, as the kernel "
           "does.");
  nb::class_<PhcLine>(m, "PhcLine", "The clock of a NIC against the raw clock (phc_line.h).")
      .def(nb::init<>())
      .def(
          "observe",
          [](PhcLine& line, std::int64_t phc_ns, std::int64_t raw_low_ns, std::int64_t raw_high_ns) {
            return line.observe({phc_ns, raw_low_ns, raw_high_ns});
          },
          nb::arg("phc_ns"), nb::arg("raw_low_ns"), nb::arg("raw_high_ns"),
          "False when it shows that the PHC was steered since the last reading, or is no clock.")
      .def(
          "from_phc",
          [](const PhcLine& line, std::int64_t phc_ns) {
            const RawStamp stamp = line.from_phc(phc_ns);
            return std::make_tuple(stamp.raw_ns, stamp.error_ns);
          },
          nb::arg("phc_ns"), "(raw clock, how far that may be off, ns); an error of 0 = not known.")
      .def_prop_ro("good", &PhcLine::good)
      .def_prop_ro("error_ns", &PhcLine::error_ns);
  nb::class_<HostCausality>(m, "HostCausality")
      .def(nb::init<>())
      .def("received", &HostCausality::received, "peer"_a, "edge"_a, "now_ns"_a)
      .def("own_clock", &HostCausality::own_clock, "now_ns"_a)
      .def_prop_ro("peers", &HostCausality::peers)
      .def("clear", &HostCausality::clear);
  m.def(
      "told_correction",
      [](std::int64_t sent_ns, std::int64_t correction_ns, std::int64_t rx_ns, std::int64_t then_ns,
         std::int64_t at_ns) {
        Packet packet;
        packet.sender = packet.receiver = packet.train = 1;
        packet.sent.valid = 1;
        packet.sent.ns[0] = sent_ns;
        packet.correction_ns = correction_ns;
        packet.correction_slope = correction_slope(then_ns - correction_ns, rx_ns - sent_ns);
        const std::vector<FleetKey> keys = {make_fleet_key(SipKey{})};
        std::uint8_t bytes[kPacketSize];
        encode_packet(packet, keys[0], bytes);
        Packet copy;
        if (decode_packet(bytes, sizeof(bytes), keys, &copy) != Decoded::kOk)
          throw std::runtime_error("no packet");
        return correction_at(copy, at_ns);
      },
      "sent_ns"_a, "correction_ns"_a, "rx_ns"_a, "then_ns"_a, "at_ns"_a,
      "Fleet time minus the stamp clock at at_ns, by a packet that tells it at two stamps.");
  nb::class_<EdgeShift>(m, "EdgeShift", "Whether a clock of an edge seems to move (clock_shift.h).")
      .def(nb::init<>())
      .def("add", &EdgeShift::add, "outbound"_a, "owd_ns"_a, "bound_ns"_a, "at_ns"_a, "now_ns"_a)
      .def("add_elsewhere", &EdgeShift::add_elsewhere, "outbound"_a, "owd_ns"_a, "bound_ns"_a, "now_ns"_a)
      .def_prop_ro("limit_ns", &EdgeShift::limit_ns)
      .def_prop_ro("shifted", &EdgeShift::shifted);
  nb::class_<HostShift>(m, "HostShift")
      .def(nb::init<>())
      .def("received", &HostShift::received, "peer"_a, "shifted"_a, "limit_ns"_a, "now_ns"_a)
      .def("own_clock", &HostShift::own_clock, "now_ns"_a)
      .def_prop_ro("peers", &HostShift::peers);
  nb::class_<HiddenJump>(m, "HiddenJump")
      .def(nb::init<>())
      .def("begin", &HiddenJump::begin)
      .def(
          "edge",
          [](HiddenJump& jump, std::uint64_t peer, const EdgeCausality& edge, std::int64_t now_ns) {
            jump.edge(peer, edge.hidden_ns(Direction::kInbound, now_ns),
                      edge.hidden_ns(Direction::kOutbound, now_ns));
          },
          "peer"_a, "edge"_a, "now_ns"_a)
      .def("ns", &HiddenJump::ns);

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
      [](nb::bytes key, std::uint32_t epoch, std::uint32_t train, int position, std::uint32_t rx_epoch,
         std::uint32_t rx_train, std::uint64_t sender, std::uint64_t receiver) {
        Packet packet;
        packet.epoch = epoch;
        packet.sender = sender;
        packet.receiver = receiver;
        packet.train = train;
        packet.position = static_cast<std::uint8_t>(position);
        packet.rx_epoch = rx_epoch;
        packet.rx.train = rx_train;
        std::uint8_t out[kPacketSize];
        encode_packet(packet, make_fleet_key(to_key(key)), out);
        return nb::bytes(reinterpret_cast<const char*>(out), sizeof(out));
      },
      "key"_a, "epoch"_a, "train"_a, "position"_a, "rx_epoch"_a = 0, "rx_train"_a = 0, "sender"_a = 1,
      "receiver"_a = 2);
}

}  // namespace fabricpulse
