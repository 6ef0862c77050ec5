"""Hosts that carry UTC: the truth is the kernel's time, and every host's fleet time must hold it within its bound."""

from tests.fixtures.waiting import wait_for
from tests.integration.clocksync.daemons import HOSTS, Daemons, Watch, all_have, errors_ns, read
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.core.shm.clock_page import ClockStatus

# How far the clocks of three UTC hosts are from it, and what they admit: the second one is wrong by less than it says,
# but by far more than the others.
ANCHORS = {"h0": (400, 1_000), "h1": (-40_000, 60_000), "h2": (-300, 1_000)}


def widest_ns(fleet: SyntheticFleet, hosts: list[str]) -> int:
    """The widest bound."""
    return max(t.bound_ns for host in hosts if (t := read(fleet, host)) is not None)


def test_several_hosts_that_carry_utc(fleet: SyntheticFleet, daemons: Daemons) -> None:
    """All hosts show UTC within their bounds, and the bad anchor harms nobody; left alone, its bound is what counts."""
    for host, (error_ns, _) in ANCHORS.items():
        fleet.set_clock(host, error_ns)
    daemons.coordinator()
    for host in HOSTS:
        kind = "none" if host not in ANCHORS else f"reference, uncertainty_ns: {ANCHORS[host][1]}"
        daemons.sidecar(host, settings=[f"anchor: {{kind: {kind}}}"])
    wait_for(lambda: all_have(fleet, HOSTS, ClockStatus.SYNCHRONIZED), 20, "all synchronized")
    watch = Watch(fleet)
    watch.until(lambda: max(map(abs, errors_ns(fleet, HOSTS))) < 1_500, 20, "UTC within 1.5 us")
    watch.until(
        lambda: errors_ns(fleet, HOSTS) != [] and widest_ns(fleet, HOSTS) < 10_000, 10, "bounds are small"
    )
    # Both good ones end; what is left is off by 40 us and says 60.
    daemons.kill("h0")
    daemons.kill("h2")
    left = ["h1", "h3"]
    wait_for(
        lambda: max(map(abs, errors_ns(fleet, left))) > 30_000 and widest_ns(fleet, left) < 70_000,
        30,
        "the last anchor rules",
    )
