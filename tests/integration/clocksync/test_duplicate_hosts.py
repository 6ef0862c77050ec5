"""Two hosts whose sidecars report under one name, as after `host` was copied to another host's settings."""

from pathlib import Path

from tests.fixtures.waiting import wait_for
from tests.integration.clocksync.daemons import HOSTS, Daemons, Watch, all_have
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.core.shm.clock_page import ClockPageReader, ClockStatus


def test_duplicate_hosts_are_refused_and_the_fleet_goes_on(
    fleet: SyntheticFleet, daemons: Daemons, tmp_path: Path
) -> None:
    """h3, whose clock is a second off, never gets the line of h2; both logs and the coordinator say what is wrong."""
    run_dir = tmp_path / "without-mesh"
    daemons.coordinator()
    for host in HOSTS[:3]:
        daemons.sidecar(host)
    wait_for(lambda: all_have(fleet, HOSTS[:3], ClockStatus.SYNCHRONIZED), 20, "all but h3 synchronized")
    watch = Watch(fleet, HOSTS[:3])
    # With a mesh beside it it would know its name.
    daemons.sidecar("h3", settings=["host: h2"], environment={"FABRICPULSE_RUN_DIR": str(run_dir)})

    def refused() -> bool:
        return all("two hosts report as 'h2'" in daemons.log(host) for host in ("h2", "h3"))

    watch.until(refused, 20, "both are refused")
    watch.run(3, 100_000)
    page = ClockPageReader(run_dir / "clock")
    assert page.now().status == ClockStatus.UNKNOWN
    page.close()
    assert daemons.metrics("coordinator")['fabricpulse_clocksync_suspect{peer="h2"}'] == 1
    assert "this name" in daemons.log("coordinator")
