"""MTU black holes on real links, of a fleet whose rails speak IPv4 and IPv6. No other test loses packets here: while
all sizes are lost, a black hole is named later.
"""

import pytest
import yaml
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet, events, grown

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("green_again")]

BLACK_HOLE = "fabricpulse_edge_mtu_black_hole_bytes"
LOST = "fabricpulse_edge_probes_lost_total"
RECEIVED = "fabricpulse_edge_probes_received_total"


@pytest.fixture(scope="module")
def fleet(shared_lab):
    """Four hosts: rail0 is IPv4, rail1 is IPv6."""
    started = MeshFleet(shared_lab, {"cross_peers": 0})

    def nic(n):
        address = n.address6 if n.device == "rail1" else n.address
        return {"device": n.device, "address": address, "network": n.device}

    hosts = [{"name": host.name, "nics": [nic(n) for n in host.nics]} for host in shared_lab.hosts]
    started.membership.write_text(yaml.safe_dump({"hosts": hosts}))
    started.start().wait_green()
    return started


@pytest.mark.slow
def test_packets_above_a_size_are_missed_and_the_size_is_named(fleet):
    """What h1 sends by IPv4 is dropped if it is large: its peers name the size, small packets and the other way are
    well. What h2 sends and receives by IPv6 is, too: both ends name it. It is over when it is repaired.
    """
    downs = events(fleet, "edge_down")
    before = fleet.scrape("h0")
    hole = "meta length > 4096"

    def named():
        found = {
            (name, rail): fleet.scrape(name).values(BLACK_HOLE, device=rail)
            for name in fleet.daemons
            for rail in ("rail0", "rail1")
        }
        enough = all(found[name, "rail0"] for name in ("h0", "h2", "h3"))
        enough = enough and all(found[name, "rail1"] for name in ("h0", "h1", "h3"))
        return found if enough and len(found["h2", "rail1"]) == 3 else None

    h1, h2 = fleet.lab.host("h1").nic("rail0"), fleet.lab.host("h2").nic("rail1")
    with h1.black_hole("tx", hole), h2.black_hole("both", hole):
        found = wait_for(named, 60, "named at both ends")
        after = fleet.scrape("h0")
    assert found == {
        **{(name, rail): [4200] for name in ("h0", "h1", "h2", "h3") for rail in ("rail0", "rail1")},
        ("h1", "rail0"): [],
        ("h2", "rail1"): [4200] * 3,
    }
    for peer in ({"peer": "h1", "peer_device": "rail0"}, {"peer": "h2", "peer_device": "rail1"}):
        assert grown(before, after, LOST, **peer) < 0.02 * grown(before, after, RECEIVED, **peer)
    wait_for(lambda: not any(fleet.scrape(name).values(BLACK_HOLE) for name in fleet.daemons), 60, "repaired")
    assert events(fleet, "edge_down") == downs
