"""Pairing: rounds are disjoint, few, and cover all pairs of leaves that fit into them."""

import itertools
import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabricpulse.audit.pair_tests.pairing import PairingPlan, most_rounds, plan_rounds


def check(leaves: list[str], plan: PairingPlan, most: int) -> None:
    """What holds for every plan."""
    assert len(plan.rounds) <= most
    met = set()
    for pairs in plan.rounds:
        ends = [end for pair in pairs for end in pair]
        assert len(set(ends)) == len(ends)
        assert all(0 <= end < len(leaves) for end in ends)
        met |= {frozenset((leaves[a] or str(a), leaves[b] or str(b))) for a, b in pairs}
    names = {leaf or str(index) for index, leaf in enumerate(leaves)}
    between = {pair for pair in met if len(pair) == 2}
    assert plan.leaf_pairs == math.comb(len(names), 2)
    assert plan.covered == len(between)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["", "a", "b", "c", "d", "e"]), max_size=40), st.integers(0, 12))
def test_rounds_are_disjoint_and_coverage_is_true(leaves: list[str], most: int) -> None:
    """For any leaves: nobody is twice in a round, and what the plan says of itself is so."""
    check(leaves, plan_rounds(leaves, most), most)


@pytest.mark.parametrize("hosts", [2, 3, 7, 16, 33, 64])
def test_with_time_for_all_every_pair_meets(hosts: int) -> None:
    """Hosts whose leaves are not known: n - 1 rounds (n if n is odd) are all pairs, each once."""
    plan = plan_rounds([""] * hosts, hosts)
    pairs = [frozenset(pair) for pairs in plan.rounds for pair in pairs]
    assert sorted(map(sorted, pairs)) == sorted(map(sorted, itertools.combinations(range(hosts), 2)))
    assert len(plan.rounds) == hosts - 1 + hosts % 2
    assert plan.covered == plan.leaf_pairs


@pytest.mark.parametrize(("leaves", "size"), [(8, 16), (125, 32), (63, 64), (782, 64)])
def test_leaf_pairs_are_covered_within_the_bound(leaves: int, size: int) -> None:
    """2·log2 n rounds cover all pairs of leaves; up to 50,048 hosts below 782 leaves."""
    names = [f"leaf{index // size}" for index in range(leaves * size)]
    random.Random(1).shuffle(names)
    plan = plan_rounds(names)
    assert len(plan.rounds) <= most_rounds(len(names)) == math.floor(2 * math.log2(len(names)))
    assert plan.covered == plan.leaf_pairs


def test_a_few_small_leaves_cost_no_coverage() -> None:
    """Leaves with one host or a host too few meet all others, too."""
    names = [*(f"leaf{index // 32}" for index in range(32 * 40 - 3)), "small", "tiny"]
    plan = plan_rounds(names, 60)
    assert plan.covered == plan.leaf_pairs


def test_planning_grows_with_what_is_planned() -> None:
    """Four times the hosts take less than eight times the CPU time: planning is no worse than n log n."""

    def seconds(hosts: int) -> float:
        names = [f"leaf{index // 64}" for index in range(hosts)]
        begun = time.process_time()
        plan_rounds(names)
        return time.process_time() - begun

    seconds(3200)
    small, large = min(seconds(3200) for _ in range(3)), min(seconds(12_800) for _ in range(2))
    # Pairs of leaves grow by 16: what is planned is they, until each host has had its rounds.
    assert large < 32 * small
