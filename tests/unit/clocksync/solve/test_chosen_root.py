"""Which root goes on where reports of one round name several."""

from dataclasses import replace

import numpy as np
import pytest

from fabricpulse.clocksync.solve.quorum import Election
from fabricpulse.clocksync.wire.limits import MAX_ROUND_S, NAMED_S
from fabricpulse.clocksync.wire.report_table import ROW_DTYPE

HERE = (10, 20, 30, 40, 50)  # name hashes of the hosts that report
OURS, LESS = 30, 1


def elected(known: tuple[int, ...], *named: int, hosts: int = len(HERE), later_s: int = 0) -> Election:
    """known : hashes whose names this coordinator knows. named : the root that each host names, at the same moment, and
    `later_s` before the solve. hosts : of the last quorum.
    """
    rows = np.zeros(len(HERE), ROW_DTYPE)
    rows["quorum_s"], rows["quorum_hosts"], rows["quorum_root"] = 100, hosts, named
    every = np.ones(len(HERE), np.bool_)
    return Election.of(
        rows,
        np.array(HERE, np.uint64),
        None,
        lambda hashed: f"host {hashed}" if hashed in known else "",
        rested=every,
        reporting=every,
        away_s=10.0,
        fleet_s=100 + later_s,
    )


def test_a_host_of_two_fleets_takes_no_root_away() -> None:
    """It reports to the coordinators of both, and brings the other fleet's root, which nobody here has ever been."""
    election = elected(HERE, OURS, OURS, OURS, OURS, LESS)
    assert election.root == HERE.index(OURS)
    assert election.quorum is not None
    assert election.quorum.root == f"host {OURS}"


@pytest.mark.parametrize("absent", [LESS, 25])
def test_coordinators_choose_the_same_of_two_roots(absent: int) -> None:
    """The one that most name, and of two that as many name the least, also where it does not report here: another
    coordinator has it.
    """
    of_two = elected((*HERE, absent), OURS, OURS, absent, absent, 40)
    most = elected((*HERE, absent), OURS, absent, absent, absent, 20)
    for election in (of_two, most):
        assert election.root is None
        assert election.quorum is not None
        assert election.quorum.root == f"host {absent}"


def test_a_root_counts_where_a_quorum_names_it_lately() -> None:
    """More than half of the hosts of the last quorum, or half of them with it: no two can have it."""
    every = np.ones(len(HERE), np.bool_)
    ours = HERE.index(OURS)
    assert elected(HERE, OURS, OURS, OURS, 10, 10).names(every, ours)
    assert not elected(HERE, OURS, OURS, 10, 10, 20).names(every, ours)
    halves = every & (np.array(HERE) < 40)
    assert elected(HERE, OURS, OURS, OURS, OURS, OURS, hosts=6).names(halves, ours)
    assert not elected(HERE, OURS, OURS, OURS, OURS, OURS, hosts=7).names(halves, ours), (
        "it is only announced"
    )
    assert not elected(HERE, OURS, OURS, OURS, 10, 10, hosts=6).names(every, ours), (
        "two are named: one is announced"
    )
    lost = round(2 * MAX_ROUND_S)
    assert elected(HERE, OURS, OURS, OURS, OURS, OURS, later_s=lost).names(every, ours), "a reply was lost"
    assert not elected(HERE, OURS, OURS, OURS, OURS, OURS, later_s=NAMED_S + 1).names(every, ours)
    assert elected(HERE, OURS, OURS, OURS, OURS, OURS, later_s=NAMED_S + 1).has_quorum(every, False)


def test_of_half_a_fleet_none_names_another_root() -> None:
    """It may count at another coordinator, of the other half."""
    half = np.array(HERE) < 40
    assert elected(HERE, OURS, OURS, OURS, OURS, OURS, hosts=6).has_quorum(half, False)
    later = elected(HERE, OURS, OURS, OURS, OURS, OURS, hosts=6)
    assert later.named is not None
    named = later.named.copy()
    named[0] = 10
    assert not replace(later, named=named).has_quorum(half, False)


def test_a_root_that_nobody_knows_is_waited_for_where_none_is_here() -> None:
    """A coordinator that has just begun knows no names of hosts that have not reported yet."""
    assert elected(HERE, LESS, LESS, LESS, LESS, LESS).root is None
