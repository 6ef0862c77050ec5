"""The longest modules begin first."""

import subprocess
import sys
from pathlib import Path

from tests.fixtures.suite.long_modules import LONG, place_of

ROOT = Path(__file__).parents[2]


def test_each_is_there() -> None:
    """A module that was renamed would begin late again, unnoticed."""
    assert [module for module in LONG if not (ROOT / module).is_file()] == []
    assert len(set(LONG)) == len(LONG)


def test_their_tests_come_first_and_nothing_else_moves() -> None:
    """Sorted by place, tests of one module stay together and in order, with all their parameters."""
    first, second = LONG[:2]
    nodeids = ["tests/a.py::x", f"{second}::y[a::b]", "tests/b.py::z", f"{first}::w", f"{second}::v"]

    assert sorted(nodeids, key=place_of) == [
        f"{first}::w", f"{second}::y[a::b]", f"{second}::v", "tests/a.py::x", "tests/b.py::z",
    ]  # fmt: skip


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
    assert list(dict.fromkeys(modules)) == [LONG[-1], "tests/selftest/test_long_modules.py"]
