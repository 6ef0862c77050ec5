"""Gray failures on real links: loss in one direction, half of the paths gone, silence that must be counted."""

import pytest
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import events, grown

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("green_again")]

LOST = "fabricpulse_edge_probes_lost_total"
OUTBOUND_LOST = "fabricpulse_edge_outbound_probes_lost_total"
RECEIVED = "fabricpulse_edge_probes_received_total"


@pytest.mark.parametrize("percent", [20, 60])
def test_loss_in_one_direction_is_counted_by_both_ends(fleet, percent):
    """What h1 sends on rail0 is lost in part: its peers count it, and h1 learns it from them; nothing is down."""
    rail0 = {"peer": "h1", "peer_device": "rail0"}
    downs = events(fleet, "edge_down")
    with fleet.lab.host("h1").nic("rail0").loss(percent, "tx"):
        before = {name: fleet.scrape(name) for name in ("h0", "h1")}
        fleet.wait_probing(8)
        after = {name: fleet.scrape(name) for name in ("h0", "h1")}
    lost = grown(before["h0"], after["h0"], LOST, **rail0)
    received = grown(before["h0"], after["h0"], RECEIVED, **rail0)
    assert abs(100 * lost / (lost + received) - percent) < 8
    sent = grown(before["h1"], after["h1"], "fabricpulse_edge_probes_sent_total", device="rail0")
    outbound = grown(before["h1"], after["h1"], OUTBOUND_LOST, device="rail0")
    assert abs(100 * outbound / sent - percent) < 8
    assert grown(before["h1"], after["h1"], LOST, device="rail0") <= 0.01 * received
    assert grown(before["h1"], after["h1"], OUTBOUND_LOST, device="rail1") <= 0.01 * received
    assert events(fleet, "edge_down") == downs
    assert (
        after["h0"].value("fabricpulse_edge_worst_path_loss_ratio", device="rail0", **rail0) > percent / 200
    )
    # Delays go on: every second train or so has what it needs.
    delays = grown(before["h0"], after["h0"], "fabricpulse_edge_owd_seconds_count", **rail0)
    assert delays > 0.3 * (lost + received) / 3 * 0.9


def test_the_lost_counter_moves_while_nothing_arrives(fleet):
    """A NIC's packets all vanish: each second of it costs what its peer sends in a second, then and not afterwards."""
    edge = {"device": "rail1", "peer": "h3", "peer_device": "rail1"}
    with fleet.lab.host("h3").nic("rail1").black_hole("tx"):
        wait_for(lambda: fleet.scrape("h0").value("fabricpulse_edge_up", **edge) == 0, 5, "down")
        before = fleet.scrape("h0")
        fleet.wait_probing(4)
        after = fleet.scrape("h0")
        lost = grown(before, after, LOST, **edge)
        sent = grown(before, after, "fabricpulse_edge_probes_sent_total", **edge)  # both send alike
        assert 0.7 * sent < lost < 1.3 * sent
        assert grown(before, after, RECEIVED, **edge) == 0
    fleet.wait_green()
    end = fleet.scrape("h0")
    sent = grown(before, end, "fabricpulse_edge_probes_sent_total", **edge)
    assert grown(before, end, LOST, **edge) + grown(before, end, RECEIVED, **edge) < 1.1 * sent + 100


def test_a_dead_spine_takes_no_edge_down(fleet):
    """One of two spines swallows everything for several intervals: paths are down, edges are not, and nothing flaps."""
    ups, downs = events(fleet, "edge_up"), events(fleet, "edge_down")
    with fleet.lab.spine(0).black_hole():
        fleet.wait_probing(12)
        found = [e for name in fleet.daemons for e in fleet.edges(name).values() if e["evidence"]]
        assert {edge["evidence"] for edge in found} == {"paths_down"}
        fleet.wait_probing(4)
    fleet.wait_probing(2)
    assert events(fleet, "edge_down") == downs
    assert events(fleet, "edge_up") == ups


def test_the_round_trip_needs_no_fleet_time(fleet):
    """The hosts' clocks are seconds apart: the round trip is the sum of both one-way delays all the same."""

    def measured():
        there = fleet.edges("h0")["rail0", "h1", "rail0"]
        back = fleet.edges("h1")["rail0", "h0", "rail0"]
        return (there, back) if all(edge["owd_ns"] and edge["rtt_ns"] for edge in (there, back)) else None

    there, back = wait_for(measured, 30, "delays of both directions")
    total = there["owd_ns"]["p50"] + back["owd_ns"]["p50"]
    for edge in (there, back):
        assert 0.3 * total < edge["rtt_ns"] < 10 * total + 1_000_000
