"""Two hosts whose sidecars report under one name, as after `host` was copied to another host's settings."""

from tests.integration.clocksync.daemons import HOSTS, Daemons, Watch, all_have, read, wait_for
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.core.shm.clock_page import ClockStatus


def test_namesakes_are_refused_and_the_fleet_goes_on(fleet: SyntheticFleet, daemons: Daemons) -> None:
    """h3, whose clock is a second off, never gets the line of h2; both logs and the coordinator say what is wrong."""
    daemons.coordinator()
    for host in HOSTS[:3]:
        daemons.sidecar(host)
    wait_for(lambda: all_have(fleet, HOSTS[:3], ClockStatus.SYNCHRONIZED), 20, "all but h3 synchronized")
    watch = Watch(fleet, HOSTS[:3])
    daemons.sidecar("h3", settings=["host: h2"])

    def refused() -> bool:
        return all("two hosts report as 'h2'" in daemons.log(host) for host in ("h2", "h3"))

    watch.until(refused, 20, "both are refused")
    watch.run(3, 100_000)
    alone = read(fleet, "h3")
    assert alone is not None
    assert alone.status == ClockStatus.UNKNOWN
    assert daemons.metrics("coordinator")['fabricpulse_clocksync_suspect{peer="h2"}'] == 1
    assert "this name" in daemons.log("coordinator")
