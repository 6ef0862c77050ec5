"""Two hosts of one name, and a sidecar that is only restarted."""

import msgspec
import pytest
from tests.unit.clocksync.coordinator.test_fleet import HOSTS, NOW_NS, placed, report

from fabricpulse.clocksync.coordinator.duplicate_hosts import NameHeldError, NameTakenError
from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.wire.messages import Line, RoundReport


def other(host: str, epoch: int = 2) -> RoundReport:
    """Of another sidecar of this name, whose clock is 0.5 s ahead."""
    return msgspec.structs.replace(report(host), epoch=epoch, host_ns=NOW_NS + 500_000_000)


@pytest.fixture
def fleet() -> Fleet:
    """Of three hosts that report at 0 s."""
    made = Fleet()
    for host in HOSTS:
        made.report(report(host), 0.0)
    made.solve_round(0.1)
    assert placed(made) == HOSTS
    return made


def test_a_second_host_of_a_name_never_gets_the_place_of_the_first(fleet: Fleet) -> None:
    """Neither is a member once both have reported; the others go on, and the name is suspect."""
    with pytest.raises(NameHeldError):
        fleet.report(other("h2"), 0.3)
    for host in HOSTS:
        fleet.report(report(host), 1.0)
    fleet.solve_round(1.1)
    assert placed(fleet) == HOSTS
    with pytest.raises(NameTakenError, match=r"two hosts report as 'h2'.*name of its own"):
        fleet.report(other("h2"), 1.3)
    for at in range(2, 15):
        for host in HOSTS[:2]:
            fleet.report(report(host, Line(NOW_NS, 0, 0, 100)), at)
        with pytest.raises(NameTakenError):
            fleet.report(report("h2"), at)
        fleet.solve_round(at + 0.1)
        with pytest.raises(NameTakenError):
            fleet.report(other("h2"), at + 0.3)
        assert placed(fleet) == HOSTS[:2]
        assert fleet.suspects() == {"h2": "two hosts report under this name"}
        assert fleet.roster.duplicates == ("h2",)


def test_when_one_of_two_is_gone_the_other_is_a_member(fleet: Fleet) -> None:
    """After a lease without the other, though it reports all the time."""
    for at in (0.3, 1.0):
        with pytest.raises(NameHeldError):
            fleet.report(other("h2"), at)
        fleet.report(report("h2"), at + 0.1)
    with pytest.raises(NameTakenError):
        fleet.report(other("h2"), 1.3)
    for at in range(2, 12):
        with pytest.raises(NameTakenError):
            fleet.report(report("h2"), float(at))
    for host in HOSTS:
        fleet.report(report(host), 12.5)
    fleet.solve_round(12.6)
    assert placed(fleet) == HOSTS
    assert fleet.suspects() == {}


def test_a_restarted_sidecar_waits_for_the_silence_of_the_one_before(fleet: Fleet) -> None:
    """It is no duplicate hosts, also when it is restarted again while it waits, and when a last report comes late."""
    for at, epoch in ((0.3, 2), (1.0, 3), (2.4, 3)):
        with pytest.raises(NameHeldError):
            fleet.report(other("h2", epoch), at)
        if at < 1:
            fleet.report(report("h2"), at + 0.01)
    for host in HOSTS[:2]:
        fleet.report(report(host), 2.6)
    fleet.report(other("h2", 3), 2.9)
    assert fleet.roster.members["h2"].epoch == 3
    assert fleet.roster.duplicates == ()


def test_who_waited_in_vain_long_ago_makes_no_namesake(fleet: Fleet) -> None:
    """One report of another, and a restart much later."""
    with pytest.raises(NameHeldError):
        fleet.report(other("h2", 7), 0.3)
    for at in range(1, 30):
        fleet.report(report("h2"), float(at))
    with pytest.raises(NameHeldError):
        fleet.report(other("h2", 8), 29.5)
    assert fleet.roster.duplicates == ()
    assert fleet.report(other("h2", 8), 32.0).epoch == 8
