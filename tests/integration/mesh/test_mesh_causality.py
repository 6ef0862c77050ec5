"""A machine that was paused: its clocks agree with each other, and its fleet time is wrong by the pause."""

import threading
from pathlib import Path

import pytest
from tests.fixtures.mesh.probe_samples import read_samples
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.clocksync.edge.samples import SampleReader
from fabricpulse.core.shm.probe_ring import FLEET_VALID, HEADER, INBOUND

pytestmark = pytest.mark.root

BOUND_NS = 2_000


def contradictions(fleet: MeshFleet, host: str) -> int:
    """What the engine of a host reports to its sidecar."""
    with (fleet.lab.host(host).run_dir / "probes").open("rb") as file:
        return int(HEADER.unpack(file.read(HEADER.size))[14])


def wait_contradicted(ring: Path) -> None:
    """Returns when a waiting reader is woken by the contradiction; without that it looks after ten minutes."""
    reader = SampleReader(ring)
    while not reader.contradictions:
        reader.wait_notice(600)


@pytest.mark.parametrize("pause_ns", [20_000, 1_000_000, 2_000_000_000])
def test_the_paused_host_is_reported_and_nobody_else(make_lab, pause_ns: int) -> None:
    """After two trains of most peers the host's own engine stops to believe the page, and says so in the ring; the
    others, each of which sees it on one edge, believe their own. Nothing of that happens before.
    """
    lab = make_lab(hosts=4, rails=1)
    fleet = MeshFleet(lab)
    fleet.start()
    fleet.true_clock(BOUND_NS)
    fleet.wait_green()
    reader = SampleReader(lab.host("h1").run_dir / "probes")

    def valid() -> list[int]:
        return [s.owd_ns for s in read_samples(reader) if s.direction == INBOUND and s.flags & FLEET_VALID]

    wait_for(valid, 10, "delays")
    fleet.wait_probing(2)
    assert {name: contradictions(fleet, name) for name in fleet.daemons} == dict.fromkeys(fleet.daemons, 0)
    valid()
    waiter = threading.Thread(
        target=wait_contradicted, args=(lab.host("h1").run_dir / "probes",), daemon=True
    )
    waiter.start()
    fleet.true_clock(BOUND_NS, {"h1": pause_ns})
    wait_for(lambda: contradictions(fleet, "h1"), 10, "the contradiction")
    waiter.join(10)
    assert not waiter.is_alive()
    false = [owd_ns for owd_ns in valid() if owd_ns < -2 * BOUND_NS]
    # Two trains of two peers, and what the others had under way.
    assert 2 <= len(false) <= 12
    fleet.wait_probing(2)
    assert valid() == []
    assert contradictions(fleet, "h1") == 1
    assert {contradictions(fleet, name) for name in ("h0", "h2", "h3")} == {0}
