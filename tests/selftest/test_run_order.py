"""The longest modules begin first, then those that wait among those that compute."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from tests.fixtures.suite.long_modules import LONG
from tests.fixtures.suite.run_order import run_order

ROOT = Path(__file__).parents[2]


def test_each_is_there() -> None:
    """A module that was renamed would begin late again, unnoticed."""
    assert [module for module in LONG if not (ROOT / module).is_file()] == []
    assert len(set(LONG)) == len(LONG)


def ordered(nodeids: list[str]) -> list[str]:
    """As conftest.py sorts them."""
    order = run_order(nodeids)
    return sorted(nodeids, key=lambda nodeid: order[nodeid.partition("::")[0]])


def test_their_tests_come_first_and_nothing_else_moves() -> None:
    """Tests of one module stay together and in order, with all their parameters."""
    first, second = LONG[:2]
    nodeids = ["tests/a.py::x", f"{second}::y[a::b]", "tests/b.py::z", f"{first}::w", f"{second}::v"]

    assert ordered(nodeids) == [
        f"{first}::w", f"{second}::y[a::b]", f"{second}::v", "tests/a.py::x", "tests/b.py::z",
    ]  # fmt: skip


def test_modules_that_wait_are_spread_over_the_run() -> None:
    """Evenly, each in its order, and one that computes is the last."""
    waiting = [f"tests/integration/test_{number:02}.py::x" for number in range(10)]
    computing = [f"tests/unit/test_{number:02}.py::x" for number in range(30)]
    found = ordered([*waiting, *computing])

    assert [nodeid for nodeid in found if nodeid in waiting] == waiting
    assert [nodeid for nodeid in found if nodeid in computing] == computing
    places = [found.index(nodeid) for nodeid in waiting]
    assert {after - before for before, after in pairwise(places)} <= {3, 4}
    assert places[-1] < len(found) - 4


def test_a_run_begins_with_them() -> None:
    """Whatever was asked for first."""
    collected = subprocess.run(
        [
            sys.executable,
            "-Im",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "no:cacheprovider",
            __file__,
            LONG[-1],
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    modules = [line.partition("::")[0] for line in collected.splitlines() if "::" in line]
    assert list(dict.fromkeys(modules)) == [LONG[-1], "tests/selftest/test_run_order.py"]
