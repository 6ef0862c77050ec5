"""Delay that comes and goes on a real link: judged against the edge's own habit, and visible though nobody looked."""

import pytest
from tests.fixtures.mesh.probe_samples import read_samples
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.clocksync.edge.samples import SampleReader
from fabricpulse.core.shm.probe_ring import FLEET_VALID, INBOUND

pytestmark = pytest.mark.root

ELEVATED = "fabricpulse_edge_latency_elevated"
# Below the 194 kbit/s that one peer's probes are (150 a second, 162 bytes each): the queue fills, and a packet waits
# for two full frames before it, which is 0.16 s. Three packets in four arrive.
SLOW_MBIT = 0.15
LONG_NS = 50_000_000


def two_hosts(make_lab, window_s):
    """h0 and h1 on one rail, on fleet time; no delay here reaches the ceiling. Size probes would fill the queue."""
    fleet = MeshFleet(
        make_lab(hosts=2, rails=1), {"size_probes": False}, latency={"window_s": window_s, "ceiling_s": 5}
    )
    fleet.start().true_clock()
    fleet.wait_green()
    return fleet


def wait_for_delay(fleet, host, condition, what):
    """The first delay, ns, that `host` has measured since the call on its edge's main path, which alone the edge's
    summary is of, and that is as `condition` says; asks no metrics."""
    reader = SampleReader(fleet.lab.host(host).run_dir / "probes")
    reader.read()

    def found():
        new = (
            s
            for s in read_samples(reader)
            if s.direction == INBOUND and s.path == 0 and s.flags & FLEET_VALID
        )
        return next((s.owd_ns for s in new if condition(s.owd_ns)), None)

    return wait_for(found, 10, what)


def test_an_edge_is_measured_by_its_own_habit(make_lab):
    """A delay far above the baseline is elevated, far below the ceiling; the other direction and the NIC are well."""
    fleet = two_hosts(make_lab, 0.2)
    for host in ("h0", "h1"):  # ten windows
        wait_for(lambda host=host: fleet.scrape(host).value(ELEVATED) == 0, 15, f"{host} knows its habit")
    with fleet.lab.host("h0").nic("rail0").limit(SLOW_MBIT):
        wait_for(lambda: fleet.scrape("h0").value(ELEVATED) == 1, 10, "elevated")
        (edge,) = fleet.edges("h0").values()
        assert edge["state"] == "up"
        assert edge["latency"]["baseline_ns"] < 5_000_000
        assert edge["latency"]["limit_ns"] < edge["owd_ns"]["p50"] < 5_000_000_000
        assert fleet.connected("h0", "rail0") == 1
        assert fleet.scrape("h1").value(ELEVATED) == 0
        with fleet.lab.host("h0").nic("rail0").black_hole("rx"):
            wait_for(lambda: fleet.scrape("h0").value(ELEVATED) is None, 10, "no delay of what does not come")
            (edge,) = fleet.edges("h0").values()
            assert (edge["inbound"], edge["latency"]["elevated"]) == ("down", None)
    wait_for(lambda: fleet.scrape("h0").value(ELEVATED) == 0, 10, "well again")


def test_a_burst_between_two_scrapes_is_seen(make_lab):
    """Nobody scrapes while it lasts, and it is over when somebody does: the maximum and the histogram have it."""
    fleet = two_hosts(make_lab, 15)
    slow = "fabricpulse_probe_owd_seconds"

    def above(scrape, bound):
        return scrape.value(f"{slow}_count") - scrape.value(f"{slow}_bucket", le=bound)

    before = above(fleet.scrape("h0"), "0.01")
    with fleet.lab.host("h0").nic("rail0").limit(SLOW_MBIT):
        long_ns = wait_for_delay(fleet, "h0", lambda ns: ns > LONG_NS, "a long delay")
    wait_for_delay(fleet, "h0", lambda ns: ns < 5_000_000, "a short one")
    after = fleet.scrape("h0")
    assert above(after, "0.01") > before
    assert after.value("fabricpulse_edge_owd_seconds", quantile="1") >= long_ns / 1e9
    assert after.value("fabricpulse_edge_owd_seconds", quantile="0.5") < 0.01
