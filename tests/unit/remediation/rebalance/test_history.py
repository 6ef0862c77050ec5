"""What plans of the past say about the next one."""

import pytest
from tests.unit.remediation.simulation.fabric_model import LINK, Fabric


@pytest.mark.parametrize(("spines", "best"), [(2, 2), (3, 3)])
def test_those_that_stay_behind_are_taken_apart_as_well(spines: int, best: int) -> None:
    """A plan for three jobs moves one of them. What they have then is what can be had for the three, and says nothing
    about the two that stayed: on three links a plan for these wins a third of all, on two it is undone."""
    fabric = Fabric(spines, 3, 1, 4)
    fabric.collide()
    fabric.landings = [1]
    fabric.run(900)
    first, *later = fabric.plans()
    assert (first.phase, first.scope) == ("kept", ("job0", "job1", "job2"))
    assert all(set(plan.scope) < set(first.scope) for plan in later)
    assert [plan.phase for plan in later].count("kept") == best - 2
    assert fabric.goodput() == pytest.approx(best * LINK)
