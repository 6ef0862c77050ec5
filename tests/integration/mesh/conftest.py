"""A fleet that all tests of a module share."""

from collections.abc import Iterator

import pytest
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.lab import Lab


@pytest.fixture(scope="module")
def fleet(shared_lab: Lab) -> MeshFleet:
    """All hosts probing, interval 0.5 s, virtual clocks apart, fleet time exact."""
    for number, host in enumerate(shared_lab.hosts):
        host.clock.set(offset_ns=number * 7_000_000_000 - 3_000_000, drift_ppm=(-1) ** number * 12.5 * number)
    started = MeshFleet(shared_lab, latency={"window_s": 2}).start()
    started.true_clock()
    started.wait_green()
    wait_for(
        lambda: all(e["owd_ns"] for name in started.daemons for e in started.edges(name).values()),
        5,
        "delays",
    )
    return started


@pytest.fixture
def green_again(fleet: MeshFleet) -> Iterator[None]:
    """Each test starts and ends with a healthy fleet."""
    fleet.wait_green()
    yield
    fleet.lab.heal()
    fleet.wait_green()
