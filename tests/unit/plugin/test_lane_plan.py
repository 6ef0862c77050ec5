"""Which pairs of NICs the lanes of a connection go over (nccl_plugin/src/core/lane_plan.h)."""

import itertools
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.native.programs import native

ROOT = Path(__file__).parents[3]
Plan = Callable[..., list[str]]


@pytest.fixture
def plan() -> Plan:
    program = native("plugin_lane_plan", "address")

    def ask(
        local: int,
        remote: int,
        device: int = 0,
        peer: int = 0,
        most: int = 8,
        paths: int = 2,
        present: tuple[str, ...] = (),
    ) -> list[str]:
        numbers = map(str, (local, remote, device, peer, most, paths))
        done = subprocess.run([program, *numbers, *present], capture_output=True, text=True, check=True)
        return done.stdout.split()

    return ask


@pytest.fixture
def plan_spares() -> Callable[[str, str], list[str]]:
    """What each NIC is for at either end, a digit each (enum SpareUse), to pairs."""
    program = native("plugin_lane_plan", "address")

    def ask(here: str, there: str) -> list[str]:
        done = subprocess.run([program, "spares", here, there], capture_output=True, text=True, check=True)
        return done.stdout.split()

    return ask


def test_rail_to_rail_first_then_across(plan: Plan) -> None:
    """The pair that NCCL chose is the first lane."""
    assert plan(2, 2) == ["0-0", "1-1", "0-1", "1-0"]
    assert plan(2, 2, device=1, peer=1) == ["1-1", "0-0", "1-0", "0-1"]
    assert plan(2, 2, device=0, peer=1)[:2] == ["0-1", "1-0"]


def test_a_single_nic_has_lanes_over_other_paths(plan: Plan) -> None:
    assert plan(1, 1) == ["0-0", "0-0"]
    assert plan(1, 1, paths=3) == ["0-0"] * 3
    assert plan(1, 1, paths=16, most=4) == ["0-0"] * 4


@pytest.mark.parametrize(("local", "remote"), list(itertools.product((1, 2, 3, 8), (1, 2, 5))))
def test_never_more_than_there_may_be(plan: Plan, local: int, remote: int) -> None:
    for most in (1, 3, 8):
        lanes = plan(local, remote, device=local - 1, peer=remote - 1, most=most)
        assert len(lanes) <= most
        assert lanes[0] == f"{local - 1}-{remote - 1}"


def test_a_nic_that_comes_here_gets_lanes(plan: Plan) -> None:
    """And what is there stays."""
    assert plan(2, 1, present=("0-0", "0-0")) == ["1-0", "1-0"]


def test_with_both_ends_grown_it_has_what_it_would_have_had(plan: Plan) -> None:
    """All pairs of the plan for two NICs a side, whichever end was first."""
    for first in ((2, 1), (1, 2)):
        present: tuple[str, ...] = ("0-0", "0-0")
        present += tuple(plan(*first, present=present))
        present += tuple(plan(2, 2, present=present))
        assert set(present) == {"0-0", "1-1", "0-1", "1-0"}
        assert len(present) <= 8
        assert not Counter(plan(2, 2)) - Counter(present)


def test_a_full_connection_gets_none(plan: Plan) -> None:
    assert plan(3, 3, most=4, present=tuple(plan(2, 2))) == []


def test_nothing_new_adds_nothing(plan: Plan) -> None:
    """A plan that was carried out plans no more."""
    assert plan(2, 2, present=tuple(plan(2, 2))) == []


def test_spare_lanes_go_over_nics_without_an_rdma_device_first(
    plan_spares: Callable[[str, str], list[str]],
) -> None:
    """The n-th of a kind faces the n-th of that kind; a NIC that one end does not name has none."""
    assert plan_spares("002", "002") == ["2-2"]
    assert plan_spares("112", "211") == ["2-0", "0-1", "1-2"]
    assert plan_spares("002", "110") == []
    assert plan_spares("1111111", "1111111") == ["0-0", "1-1", "2-2", "3-3"]
    assert plan_spares("9", "9") == []
