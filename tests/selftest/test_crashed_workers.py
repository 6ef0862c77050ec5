"""A test that kills its worker fails, once, and all others run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CRASH = """
import os, signal

def test_before():
    pass

def test_crash():
    with open("crashes", "a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGSEGV)

def test_after():
    pass
"""
OTHER = """
def test_1():
    pass

def test_2():
    pass
"""


@pytest.mark.parametrize(("first", "others"), [("a", 4), ("z", 2)])
def test_a_crash_is_one_failure(tmp_path: Path, first: str, others: int) -> None:
    """With the crash in the first or in the last module of the run: it ends, and reports one failure."""
    (tmp_path / f"test_{first}.py").write_text(CRASH)
    for number in range(others):
        (tmp_path / f"test_b{number}.py").write_text(OTHER)

    options = ["-c", os.devnull, "--rootdir", str(tmp_path), "-n", "2", "--dist", "loadscope", "-q"]
    plugins = ["-p", "xdist", "-p", "tests.fixtures.suite.crashed_workers", "-p", "no:cacheprovider"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--no-loadscope-reorder", *plugins, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        timeout=120,
    )

    assert re.search(rf"1 failed, {2 + 2 * others} passed", result.stdout), result.stdout + result.stderr
    assert "crashed while running" in result.stdout
    assert result.returncode == 1
    assert (tmp_path / "crashes").read_text() == "x"
