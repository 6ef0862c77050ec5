"""Two pods are the two ends of one branch: both are reported."""

import numpy as np
import pytest
from tests.fixtures.hostinfo.live_tree import LiveSurvey
from tests.fixtures.mesh.distant_nics import Fabric, Plan

from fabricpulse.diagnosis.tree.branches import other_end
from fabricpulse.diagnosis.tree.levels import Kind

pytestmark = pytest.mark.simulation

WHOLE, POD, LEAF = Kind.FABRIC, Kind.POD, Kind.LEAF


def test_leaves_beside_one_pod_are_in_a_pod() -> None:
    """What was below the whole is below a new group, which comes before it; NICs stay in their leaves."""
    parents, offsets, group_of = other_end(
        [-1, 0, 0, 0, 1, 1],
        [0.0, -1000.0, -3000.0, -3001.0, -4000.0, -4001.0],
        [WHOLE, POD, LEAF, LEAF, LEAF, LEAF],
        np.array([0, 2, 3, 4, 5]),
    )
    assert parents == [-1, 0, 0, 1, 1, 2, 2]
    assert offsets == [0.0, 0.0, -1000.0, -3000.0, -3001.0, -4000.0, -4001.0]
    assert group_of.tolist() == [0, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "kinds", [[WHOLE, POD, POD, LEAF, LEAF], [WHOLE, POD, LEAF], [WHOLE, LEAF, LEAF], [WHOLE]]
)
def test_other_trees_stay(kinds: list[Kind]) -> None:
    """Beside two pods a leaf has its own branch; a pod and a leaf have two ends already; without pods there is none."""
    parents = [-1] + [0] * (len(kinds) - 1)
    offsets = [0.0] * len(kinds)
    assert other_end(parents, offsets, kinds, np.zeros(3, np.int64))[0] == parents


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(Plan(hosts=64, per_leaf=8, leaves_per_pod=4), id="hosts"),
        pytest.param(Plan(hosts=256, on_machine=4, per_leaf=8, leaves_per_pod=4), id="virtual-machines"),
    ],
)
def test_both_of_two_pods_are_reported(plan: Plan) -> None:
    """One was reported, and the leaves of the other one as if they were in none; virtual machines, four on each
    machine, had no leaf, as the pairs of a few machines are fewer than what was asked for as many NICs. On the way
    nothing is reported wrongly.
    """
    survey = LiveSurvey(Fabric(plan, 1))
    while survey.assigned.number and survey.rounds < 20:
        survey.play_round()
        assert survey.never_reported_wrongly(Kind.POD) or not survey.document["placed"]
        assert not survey.reported_wrongly()
    assert survey.document["placed"] >= 0.98 * plan.hosts
    kinds = [group["kind"] for group in survey.document["groups"]]
    assert (kinds.count("pod"), kinds.count("leaf"), kinds.count("group")) == (2, 8, 0)
    assert survey.right(Kind.POD) >= 0.95
    assert survey.right(Kind.LEAF) >= 0.95
    assert survey.right(Kind.MACHINE) == 1.0
