"""A skip fails the run in continuous integration, and only there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CASES = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason="no root")
def test_marked():
    pass

def test_inside():
    pytest.skip("no promtool")

@pytest.mark.xfail(reason="known")
def test_expected_failure():
    assert False

def test_hardware():
    pytest.skip("hardware: no RDMA device")
"""


@pytest.mark.parametrize(
    ("ci", "code", "outcome"),
    [
        ("", 0, "1 passed, 4 skipped, 1 xfailed"),
        ("true", 1, "1 failed, 1 passed, 1 skipped, 1 xfailed, 2 errors"),
    ],
)
def test_gate(tmp_path: Path, ci: str, code: int, outcome: str) -> None:
    """With CI set, skips by mark, call and module fail with their reason; hardware may be missing everywhere."""
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "test_module.py").write_text(
        "import pytest\npytest.skip('no tool', allow_module_level=True)\n"
    )

    pytest_options = ["-c", os.devnull, "--rootdir", str(tmp_path), "-q", "--continue-on-collection-errors"]
    result = subprocess.run(
        [sys.executable, "-Im", "pytest", *pytest_options, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"CI": ci},
        timeout=60,
    )

    assert outcome in result.stdout
    assert result.returncode == code
    for reason in ("no root", "no promtool", "no tool"):
        words = f"skipped in CI, where everything must run: {reason}"
        assert (words in result.stdout) == bool(ci)
