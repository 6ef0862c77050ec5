"""Time stamps that never come: what is lost is counted, what is left is right, and nobody is accused."""

import subprocess
from pathlib import Path

import pytest
from tests.fixtures.mesh.probe_samples import read_samples
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.clocksync.edge.samples import SampleReader
from fabricpulse.core.shm.probe_ring import FLEET_VALID, INBOUND

pytestmark = pytest.mark.root

TRAIN_PERIOD_NS = 20_000_000
STAMPS_LOST = "fabricpulse_probe_tx_stamps_lost_total"
SOURCE = Path(__file__).parents[2] / "native" / "clocks" / "lost_stamps_preload.c"


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """The library that loses stamps."""
    target = tmp_path_factory.mktemp("shim") / "lost_stamps_preload.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", SOURCE, "-ldl", "-o", target], check=True
    )
    return target


@pytest.fixture
def start(make_lab, shim):
    """Starts two hosts on fleet time; h1 loses these percentages of its stamps."""

    def start(tx_percent, rx_percent):
        fleet = MeshFleet(make_lab(hosts=2, rails=1))
        fleet.environments["h1"] = {
            "LD_PRELOAD": str(shim),
            "LOST_TX_STAMPS": str(tx_percent),
            "LOST_RX_STAMPS": str(rx_percent),
        }
        fleet.start().true_clock()
        fleet.wait_green()
        return fleet

    return start


def inbound(fleet, host, enough):
    """The next samples of what `host` receives, at least `enough` of them."""
    reader = SampleReader(fleet.lab.host(host).run_dir / "probes")
    samples = []

    def read():
        samples.extend(s for s in read_samples(reader) if s.direction == INBOUND)
        return len(samples) >= enough

    wait_for(read, 20, f"{enough} samples of {host}")
    return samples


def assert_nobody_is_accused(fleet):
    """No disconnect, no dead edge, no fault, no dead path, on either host."""
    for name in fleet.daemons:
        scrape = fleet.scrape(name)
        assert scrape.values("fabricpulse_nic_connected") == [1]
        assert scrape.values("fabricpulse_nic_disconnects_total") == [0]
        assert scrape.value("fabricpulse_mesh_events_total", kind="edge_down") == 0
        assert scrape.values("fabricpulse_edge_up") == [1]
        assert scrape.values("fabricpulse_edge_paths_down") == [0]
        assert not scrape.labels("fabricpulse_edge_evidence")


def test_a_stamp_in_three_is_lost(start):
    """Trains miss stamps, none gets that of another packet: no delay is off by a train's period."""
    fleet = start(33, 33)
    # What h1 sends: of the coded pair, whose TX stamps are asked for, a third is missing.
    stamped = [bin(s.tx_valid & 0b110).count("1") for s in inbound(fleet, "h0", 200)]
    # Two packets in three: 400 stamps are expected to be 267, with a deviation of 9; none missing would be 400.
    assert 0.5 < sum(stamped) / (2 * len(stamped)) < 0.85
    # What h1 receives: of all three packets a third has no RX stamp.
    received = [bin(s.rx_valid).count("1") for s in inbound(fleet, "h1", 200)]
    assert 0.5 < sum(received) / (3 * len(received)) < 0.85
    for host in ("h0", "h1"):
        delays = [s.owd_ns for s in inbound(fleet, host, 200) if s.flags & FLEET_VALID]
        assert len(delays) > 50
        assert all(-1_000_000 < delay < TRAIN_PERIOD_NS for delay in delays)
    wait_for(lambda: fleet.scrape("h1").value(STAMPS_LOST) > 100, 20, "lost stamps are counted")
    assert_nobody_is_accused(fleet)


def test_no_stamp_ever_comes(start):
    """Without any stamp of h1 there is no delay between the two, and both receive all the same."""
    fleet = start(100, 100)
    before = fleet.scrape("h1").value("fabricpulse_edge_probes_received_total")
    wait_for(
        lambda: fleet.scrape("h1").value("fabricpulse_edge_probes_received_total") > before + 450,
        20,
        "three seconds of probes",
    )
    wait_for(lambda: fleet.scrape("h1").value(STAMPS_LOST) > 200, 20, "lost stamps are counted")
    assert fleet.scrape("h0").value(STAMPS_LOST) == 0
    for name in fleet.daemons:
        (edge,) = fleet.edges(name).values()
        assert edge["owd_ns"] is None
        assert edge["lost"] == 0
        assert edge["latency"]["elevated"] is None
        assert {path["owd_ns"] for path in edge["paths"]} == {None}
    assert_nobody_is_accused(fleet)
