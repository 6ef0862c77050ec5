"""Exporters that are restarted or stopped send nothing. No component is named for that; one that is faulty is."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.unit.diagnosis.test_random_faults import names, steady
from tests.unit.diagnosis.virtual_fleet import PORTS, VirtualFleet

from fabricpulse.diagnosis.evidence.loss_log import LossTable
from fabricpulse.diagnosis.evidence.presence import Absences, vouched

pytestmark = pytest.mark.simulation

Away = Callable[[VirtualFleet, str, float, float], None]


@pytest.mark.parametrize("away", [VirtualFleet.restart, VirtualFleet.stop])
@pytest.mark.parametrize("traced", [True, False])
def test_a_rack_that_is_away_is_no_fault(away: Away, traced: bool) -> None:
    """All exporters below a leaf for some seconds, as in an upgrade: its uplinks, a pair, or a NIC were named, and
    once more two minutes later.
    """
    fleet = VirtualFleet(4, 12, 1, 4, 3, traced)
    for number, nic in enumerate(fleet.below("leaf1-r0")):
        away(fleet, nic.partition("/")[0], 12.2 + 0.3 * number, 17.5 + 0.4 * number)
    assert names(fleet.play(60)) == set()


@pytest.mark.parametrize("seed", [2, 3])
def test_a_fleet_that_is_restarted_is_no_fault(seed: int) -> None:
    """All of it, each at its own moment; then one after the other, in batches."""
    fleet = VirtualFleet(seed, 9, 1, 3, 2)
    for number, host in enumerate(fleet.hosts):
        fleet.restart(host, 12.1 + 0.2 * number, 16.1 + 0.7 * (number % 4))
        fleet.restart(host, 30.1 + 4 * (number // 2), 34.3 + 4 * (number // 2))
    assert names(fleet.play(60)) == set()


def test_what_is_dead_amid_a_rolling_restart_is_named() -> None:
    """One way of a cable; the hosts that send over it are restarted one after the other."""
    fleet = VirtualFleet(7, 12, 1, 4, 3)
    link = "link", "leaf2-r0", "spine1-r0"
    fleet.faults = [steady("loss", 1.0, link)]
    for number, host in enumerate(fleet.hosts):
        fleet.restart(host, 14.0 + 3 * number, 16.5 + 3 * number)
    assert names(fleet.play(25)) == {link}


def test_a_nic_of_a_host_that_stalls_again_and_again_is_named() -> None:
    """Each stall explains what was lost in it, not what was lost before and goes on. It is reported 20 s after it was
    first found in successive rounds, as it may be a host that is away.
    """
    fleet = VirtualFleet(8, 9, 1, 3, 3)
    fleet.faults = [steady("loss", 0.2, ("nic_tx", "h4/r0"))]
    for begins_s in range(12, 39, 3):
        fleet.stop("h4", begins_s, begins_s + 1.6)
    assert names(fleet.play(39)) == {("nic_tx", "h4/r0", "")}


def test_a_dead_nic_beside_a_host_that_is_restarted_is_no_leaf() -> None:
    """Both are all that sends from their leaf; one of them is dead, the other comes back."""
    fleet = VirtualFleet(25, 10, 1, 5, 3)
    nic = "nic_tx", "h0/r0"
    fleet.faults = [steady("loss", 1.0, nic)]
    fleet.restart("h5", 15.2, 21.6)
    assert names(fleet.play(50)) == {(*nic, "")}


def test_a_host_that_stays_away_is_reported_after_twenty_seconds() -> None:
    """Nobody can stand for it: its NIC is what is dead. It was reported after 40 s, as one direction was found
    first.
    """
    fleet = VirtualFleet(6, 9, 1, 3, 3)
    fleet.restart("h3", 12.2, 99.0)
    assert names(fleet.play(32)) == set()
    assert names(fleet.play(3)) == {("nic", "h3/r0", "")}


def losses(*rows: tuple[float, int, int, int]) -> LossTable:
    """Moment, flow, packets sent and lost of each report."""
    at_s, flow, sent, lost = zip(*rows, strict=True)
    n = len(rows)
    return LossTable(
        np.array(at_s),
        np.array(flow, np.int32),
        np.array(sent, np.float32),
        np.array(lost, np.float32),
        many=np.ones(n, bool),
        reports=np.ones(n, np.uint8),
        excused=np.zeros(n, bool),
    )


@pytest.mark.parametrize(
    ("rows", "last_report_s", "sure"),
    [
        (
            [(9.0, 3, 90, 90), (10.0, 3, 90, 90)],
            9.5,
            True,
        ),  # the source was there while the first ones were lost
        ([(9.0, 3, 90, 90), (10.0, 3, 90, 90)], 8.5, False),
        ([(9.0, 3, 90, 40), (10.0, 3, 90, 50)], 8.5, True),  # some arrive, second after second
        ([(8.0, 3, 90, 40), (9.0, 3, 90, 90), (10.0, 3, 90, 50)], 7.5, False),  # gone, and back
        ([(9.0, 3, 90, 40), (9.5, 5, 90, 50)], 8.5, False),  # two flows
        ([(1.0, 3, 90, 40), (2.0, 3, 90, 50)], 9.0, False),  # long ago
        ([(9.0, 4, 90, 40), (10.0, 4, 90, 50)], 9.5, False),  # another flow
        ([(4.0, 3, 90, 1), (9.5, 3, 90, 90), (10.0, 5, 90, 90)], 5.0, False),  # one packet is not most
        ([(8.0, 3, 90, 90), (9.0, 3, 90, 90), (9.0, 5, 90, 90), (10.0, 5, 90, 90)], 8.5, False),  # half of it
    ],
)
def test_who_stands_for_a_loss(
    rows: list[tuple[float, int, int, int]], last_report_s: float, sure: bool
) -> None:
    """Of flows 3 and 5 of one host, at 10.5 s."""
    flows, source, reported_s = np.array([3, 5]), np.array([1, 1]), np.array([last_report_s, last_report_s])
    assert vouched(losses(*rows), flows, source, reported_s, 10.5) is sure


def test_nobody_stands_for_another_host() -> None:
    """One of two has reported since, or some of its packets arrive; the other may be away."""
    flows, source, reported_s = np.array([3, 5]), np.array([1, 2]), np.array([9.5, 8.5])
    silent = [(9.0, 3, 90, 90), (9.0, 5, 90, 90), (10.0, 3, 90, 90), (10.0, 5, 90, 90)]
    assert not vouched(losses(*silent), flows, source, reported_s, 10.5)
    assert vouched(losses(*silent), flows, source, reported_s + 1, 10.5)
    some = [(9.0, 3, 90, 50), (9.0, 5, 90, 90), (10.0, 3, 90, 50), (10.0, 5, 90, 90)]
    assert not vouched(losses(*some), flows, source, reported_s - 1, 10.5)
    assert vouched(losses(*some), flows, np.array([1, 1]), reported_s - 1, 10.5)


def test_a_rack_that_is_away_as_the_coordinator_starts_is_no_fault() -> None:
    """It has never reported there: that it is away is known only once it comes back."""
    fleet = VirtualFleet(5, 9, 1, 3, 2)
    for number, nic in enumerate(fleet.below("leaf2-r0")):
        fleet.restart(nic.partition("/")[0], 12.1 + 0.2 * number, 18.6 + number)
    fleet.play(14)
    fleet.restart_coordinator()
    assert names(fleet.play(20)) == set()


def test_a_process_that_is_started_again_and_again_is_no_fault() -> None:
    """What it lost as it was away was no loss before: each time it is there for a second."""
    fleet = VirtualFleet(4, 6, 1, 3, 2)
    for number in range(4):
        fleet.restart("h2", 12.0 + 4 * number, 15.0 + 4 * number)
    assert names(fleet.play(34)) == set()


def test_two_faults_amid_a_rolling_restart_are_no_pair() -> None:
    """A dead NIC and a lossy leaf. Two hosts that came back a moment ago: what was lost while they were away is
    excused, and the rest was a pair.
    """
    fleet = VirtualFleet(2, 9, 1, 3, 2)
    nic = ("nic_tx", "h6/r0"), ("nic_rx", "h6/r0")
    fleet.faults = [
        steady("loss", 0.02, ("switch", "leaf0-r0"), begins_s=25),
        steady("loss", 1.0, *nic, begins_s=23.6),
    ]
    for number, host in enumerate(fleet.hosts):
        begins_s = 18.4 + 2.6 * number
        fleet.restart(host, begins_s, begins_s + 2.4 + 1.8 * (number % 3))
    assert {kind for kind, _, _ in names(fleet.play(50))} <= {"nic", "switch"}


def test_of_a_host_that_is_away_nothing_is_known() -> None:
    """What it sends and what it would have received: neither lost nor received, for as long as it is away."""
    fleet = VirtualFleet(1, 6, 1, 3, 2)
    fleet.play(10)
    layout, found = fleet.evidence._layout, fleet.evidence._names
    assert layout is not None
    table, absences = layout.table, Absences()
    assert not len(absences.unseen(table, found, [], 30.0, 30.0).flows)
    absences.returned("h2", 10.0, 14.0, anew=False)
    unseen = absences.unseen(table, found, [], 30.0, 30.0)
    ends = [np.array(layout.names)[nodes] for nodes in table.ends_of(unseen.flows)]
    assert all("h2/r0" in pair for pair in zip(*ends, strict=True))
    assert len(unseen.flows) == 2 * 5 * PORTS  # to and from each of the others
    sends = ends[0] == "h2/r0"
    # Peers report what they missed two seconds late.
    assert np.allclose(unseen.packets[sends], 6.0 * table.rate_of(unseen.flows[sends]))
    assert np.allclose(unseen.packets[~sends], 4.0 * table.rate_of(unseen.flows[~sends]))
    # Of the last five seconds it is long ago.
    assert not len(absences.unseen(table, found, [], 30.0, 5.0).flows)
    # One that is away now.
    now = absences.unseen(table, found, [("h4", 27.0)], 30.0, 5.0)
    assert np.allclose(now.packets, 3.0 * table.rate_of(now.flows))
