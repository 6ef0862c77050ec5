"""More than a fifth of the fleet dies at once: three of twelve hosts, all of them real daemons."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.waiting import wait_for
from tests.integration.clocksync.daemons import Daemons, Watch, all_have, all_publish, disagreement
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.core.shm.clock_page import ClockStatus

HOSTS = [f"h{k}" for k in range(12)]
KILLED = ["h0", "h5", "h9"]
LEFT = [host for host in HOSTS if host not in KILLED]


@pytest.fixture
def twelve(tmp_path: Path) -> Iterator[SyntheticFleet]:
    """Each connected with each, at a rate that two cores write beside twelve daemons."""
    made = SyntheticFleet(tmp_path, HOSTS, rate=15.0)
    made.start()
    yield made
    made.stop()


def kill(fleet: SyntheticFleet, daemons: Daemons, host: str) -> None:
    """As a machine without power: no sidecar, and no probes."""
    for link in fleet.links:
        if host in (link.a, link.b):
            link.up = False
    daemons.kill(host)


@pytest.mark.slow
def test_the_others_keep_their_bounds(twelve: SyntheticFleet, tmp_path: Path) -> None:
    """The nine others stay synchronized within small bounds, also once the leases of the dead have run out."""
    daemons = Daemons(tmp_path, twelve)
    try:
        daemons.coordinator()
        for host in HOSTS:
            daemons.sidecar(host)
        wait_for(lambda: all_have(twelve, HOSTS, ClockStatus.SYNCHRONIZED), 60, "all synchronized")
        wait_for(lambda: disagreement(twelve, HOSTS)[0] < 2_000, 30, "agreement within 2 us")
        watch = Watch(twelve, LEFT)
        watch.run(2, 5_000)
        for host in KILLED:
            kill(twelve, daemons, host)
        began = time.monotonic()

        def beyond_leases() -> bool:
            assert all_publish(twelve, LEFT, ClockStatus.SYNCHRONIZED)
            spread, _, times = disagreement(twelve, LEFT)
            assert spread < 5_000
            assert max(shown.bound_ns for shown in times) < 50_000
            return time.monotonic() - began > 14

        watch.until(beyond_leases, 20, "leases of 10 s have run out")
        document = daemons.get(f"{daemons.url()}/api/v1/clocksync/status")
        assert all(f'"{host}"' in document for host in LEFT)
        assert not any(f'"host": "{host}"' in document for host in KILLED)
    finally:
        daemons.stop()
