"""How a sidecar starts, gets a wrong setting, and ends."""

import signal
from pathlib import Path

from tests.fixtures.waiting import wait_for
from tests.integration.clocksync.daemons import HOSTS, Daemons, all_have, read
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.core.shm.clock_page import ClockPageReader, ClockStatus


def test_a_sidecar_that_ends_leaves_holdover_and_the_next_goes_on(
    fleet: SyntheticFleet, daemons: Daemons, tmp_path: Path
) -> None:
    """A broken reload changes nothing, a second sidecar is refused, SIGTERM ends with 0 and a page that says holdover;
    fleet time of the next goes on from it.
    """
    daemons.executed = True
    daemons.coordinator()
    for host in HOSTS:
        daemons.sidecar(host)
    wait_for(lambda: all_have(fleet, HOSTS, ClockStatus.SYNCHRONIZED), 20, "all synchronized")

    first = daemons.running["h1"]
    config = tmp_path / "h1.yaml"
    good = config.read_text()
    config.write_text(good.replace("coordinators", "coordinator"))
    daemons.signal("h1", signal.SIGHUP)
    wait_for(lambda: "did you mean 'coordinators'" in daemons.log("h1"), 10, "the reload is refused")
    config.write_text(good)
    daemons.signal("h1", signal.SIGHUP)
    wait_for(lambda: "event=reloaded" in daemons.log("h1"), 10, "the corrected file is taken")

    daemons.sidecar("h1")  # the same host and address again
    assert daemons.running["h1"].wait(60) == 1
    assert f"in use by another fabricpulse clocksync sidecar (process {first.pid})" in daemons.log("h1")
    assert all_have(fleet, HOSTS, ClockStatus.SYNCHRONIZED)

    before = read(fleet, "h1")
    first.terminate()
    assert first.wait(60) == 0
    left = read(fleet, "h1")
    assert before is not None
    assert left is not None
    assert left.status == ClockStatus.HOLDOVER
    assert left.fleet_ns > before.fleet_ns
    assert "Traceback" not in daemons.log("h1")
    reader = ClockPageReader(fleet.directory / "h1" / "clock")
    assert reader.read().drift_ppb >= 1_000
    reader.close()

    daemons.sidecar("h1")
    wait_for(lambda: all_have(fleet, ["h1"], ClockStatus.SYNCHRONIZED), 20, "the next is synchronized")
    after = read(fleet, "h1")
    assert after is not None
    assert after.fleet_ns > left.fleet_ns
