"""Both networks are cut in two, that of the probes and that of the coordinators, and healed: real daemons."""

import json
from functools import partial

import pytest
from tests.fixtures.waiting import wait_for
from tests.integration.clocksync.daemons import HOSTS, Daemons, Relay, Watch, all_have, disagreement, read
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.core.shm.clock_page import ClockStatus

# What the clocks of one part gain on the others' at first, and later: an air conditioning that fails. The first is less
# than what the bound allows for while measured, the sum less than in holdover.
_TURN_PPB = (200, 600)


class Divided:
    """A fleet with a coordinator in each part; `small` hosts are cut off from the rest."""

    def __init__(self, fleet: SyntheticFleet, daemons: Daemons, small: list[str]) -> None:
        self.fleet, self.daemons, self.small = fleet, daemons, small
        self.large = [host for host in HOSTS if host not in small]
        self.across: list[Relay] = []
        for name in ("first", "second"):
            daemons.coordinator(name)
        for host in HOSTS:
            ways = [daemons.relay(name) for name in ("first", "second")]
            self.across.append(ways[0] if host in small else ways[1])
            daemons.sidecar(host, *ways)
        wait_for(lambda: all_have(fleet, HOSTS, ClockStatus.SYNCHRONIZED), 20, "all synchronized")
        wait_for(lambda: disagreement(fleet, HOSTS)[0] < 1_000, 10, "agreement within 1 us")
        wait_for(lambda: len(self.members("second")) == len(HOSTS), 10, "all report to the second")
        taken = 'fabricpulse_clocksync_datagrams_total{outcome="taken"}'
        for name in ("first", "second"):
            wait_for(partial(self._has, name, taken, len(HOSTS)), 10, "reports by datagram")
        self.links = [link for link in fleet.links if (link.a in small) != (link.b in small)]

    def cut(self) -> None:
        for link in self.links:
            link.up = False
        for relay in self.across:
            relay.cut()

    def heal(self) -> None:
        for link in self.links:
            link.up = True
        for relay in self.across:
            relay.heal()

    def _has(self, name: str, metric: str, value: float) -> bool:
        return self.daemons.metrics(name)[metric] >= value

    def members(self, name: str) -> set[str]:
        document = json.loads(self.daemons.get(f"{self.daemons.url(name)}/api/v1/clocksync/status"))
        return {member["host"] for member in document["members"] if member["age_s"] < 2}

    def bound_ns(self, hosts: list[str]) -> int:
        """The widest, now."""
        return max(t.bound_ns for host in hosts if (t := read(self.fleet, host)) is not None)


# Which part is cut off is of no matter to the daemons: tests/unit/clocksync/fleet/test_divided_fleet.py has them all.
@pytest.mark.parametrize(
    "small",
    [
        pytest.param(["h2", "h3"], id="half"),
        pytest.param(["h3"], id="one", marks=pytest.mark.slow),
        pytest.param(["h0", "h1"], id="other-half", marks=pytest.mark.slow),
    ],
)
def test_the_part_that_is_not_the_fleet_is_in_holdover(
    fleet: SyntheticFleet, daemons: Daemons, small: list[str]
) -> None:
    """Its clocks turn by 800 ppb together, which it cannot see: it says holdover, its bound covers that all the time,
    and after the healing all are one fleet again, without a jump and within the slew limit.
    """
    divided = Divided(fleet, daemons, small)
    watch = Watch(fleet)
    watch.run(2, 2_000)
    divided.cut()
    for host in small:
        fleet.turn_oscillator(host, _TURN_PPB[0])

    def no_quorum(hosts: list[str]) -> bool:
        return all_have(fleet, hosts, ClockStatus.HOLDOVER)

    parts: list[list[str]] = []

    def one_is_alone() -> bool:
        # Where the machine has no time for probes all hosts are in holdover, one after the other.
        parts[:] = [part for part in (small, divided.large) if no_quorum(part)]
        watch.run(0.5, 60_000)
        return len(parts) == 1 and no_quorum(parts[0])

    watch.until(one_is_alone, 20, "one part is in holdover")
    alone, goes_on = (small, divided.large) if parts == [small] else (divided.large, small)
    if len(small) == 1:
        assert alone == small
    for host in alone:
        fleet.turn_oscillator(host, _TURN_PPB[1])
    watch.run(10, 60_000)
    assert no_quorum(alone)
    assert all_have(fleet, goes_on, ClockStatus.SYNCHRONIZED)
    # If the root is on the other side, they have another one ten seconds after the cut.
    watch.until(lambda: divided.bound_ns(goes_on) < 10_000, 10, "a root of its own")
    for host in alone if len(alone) > 1 else []:
        assert "this partition has no quorum" in daemons.get(
            f"http://127.0.0.1:{daemons.ports[host]}/api/v1/clocksync/status"
        )
    divided.heal()
    watch.until(lambda: all_have(fleet, HOSTS, ClockStatus.SYNCHRONIZED), 20, "all synchronized again")
    watch.until(lambda: disagreement(fleet, HOSTS)[0] < 1_000, 10, "all agree again")
    # Their fits hold samples of both parts for a while: a little more is open than in a fleet that was never divided.
    watch.run(2, 5_000)
    assert divided.bound_ns(HOSTS) < 20_000
