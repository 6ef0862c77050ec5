"""tests/gpu/two_ranks_one_gpu.py where it cannot run: it says so, and is no success."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu.two_ranks_one_gpu"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=ROOT,
    )


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="hardware: torch is installed here")
def test_without_torch() -> None:
    """It says what is missing, and prints no result that a script could take for one."""
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert "torch is not installed" in done.stderr


def test_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that sees no GPU, as on a machine without the driver."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/cuda.py").write_text("def is_available():\n    return False\n")
    (tmp_path / "torch/__init__.py").write_text("from torch import cuda\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert "sees no GPU" in done.stderr
