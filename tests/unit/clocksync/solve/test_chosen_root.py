"""Which root goes on where reports of one round name several."""

import numpy as np
import pytest

from fabricpulse.clocksync.solve.quorum import Election
from fabricpulse.clocksync.wire.report_table import ROW_DTYPE

HERE = (10, 20, 30, 40, 50)  # name hashes of the hosts that report
OURS, LESS = 30, 1


def elected(known: tuple[int, ...], *named: int) -> Election:
    """known : hashes whose names this coordinator knows. named : the root that each host names, at the same moment."""
    rows = np.zeros(len(HERE), ROW_DTYPE)
    rows["quorum_s"], rows["quorum_hosts"], rows["quorum_root"] = 100, len(HERE), named
    every = np.ones(len(HERE), np.bool_)
    return Election.of(
        rows,
        np.array(HERE, np.uint64),
        None,
        lambda hashed: f"host {hashed}" if hashed in known else "",
        rested=every,
        reporting=every,
        away_s=10.0,
        fleet_s=100,
    )


def test_a_host_of_two_fleets_takes_no_root_away() -> None:
    """It reports to the coordinators of both, and brings the other fleet's root, which nobody here has ever been."""
    election = elected(HERE, OURS, OURS, OURS, OURS, LESS)
    assert election.root == HERE.index(OURS)
    assert election.quorum is not None
    assert election.quorum.root == f"host {OURS}"


@pytest.mark.parametrize("absent", [LESS, 25])
def test_coordinators_choose_the_same_of_two_roots(absent: int) -> None:
    """The least, also where it does not report here: the other coordinator has it, and one of two goes on."""
    election = elected((*HERE, absent), OURS, OURS, OURS, OURS, absent)
    assert election.root is None
    assert election.quorum is not None
    assert election.quorum.root == f"host {absent}"


def test_a_root_that_nobody_knows_is_waited_for_where_none_is_here() -> None:
    """A coordinator that has just begun knows no names of hosts that have not reported yet."""
    assert elected(HERE, LESS, LESS, LESS, LESS, LESS).root is None
