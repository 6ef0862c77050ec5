"""An MTU black hole on a real link, on a fleet of its own: after heavy loss a hole is named some minutes later."""

import pytest
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import events, grown

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("green_again")]

LOST = "fabricpulse_edge_probes_lost_total"
RECEIVED = "fabricpulse_edge_probes_received_total"


@pytest.mark.slow
def test_packets_above_a_size_are_missed_and_the_size_is_named(fleet):
    """What h1 sends on rail0 is dropped if it is large: its peers name the size, small packets and the other way are
    well, and it is over when it is mended."""
    black_hole = "fabricpulse_edge_mtu_black_hole_bytes"
    rail0 = {"peer": "h1", "peer_device": "rail0"}
    downs = events(fleet, "edge_down")
    before = fleet.scrape("h0")
    with fleet.lab.host("h1").nic("rail0").black_hole("tx", "meta length > 4096"):
        sizes = wait_for(lambda: fleet.scrape("h0").values(black_hole, **rail0), 60, "named")
        assert set(sizes) == {4200}
        assert fleet.scrape("h1").values(black_hole) == []
        after = fleet.scrape("h0")
        assert grown(before, after, LOST, **rail0) < 0.02 * grown(before, after, RECEIVED, **rail0)
    wait_for(lambda: not fleet.scrape("h0").values(black_hole), 60, "mended")
    assert events(fleet, "edge_down") == downs
