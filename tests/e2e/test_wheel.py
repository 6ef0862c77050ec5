"""The wheel, built and installed in an empty environment, passes its own tests (tests/wheel) without the sources."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)  # builds everything when the build folder is empty
def test_the_wheel_works_in_an_empty_environment() -> None:
    """As `make wheel-test` says it."""
    done = subprocess.run(
        [ROOT / "scripts" / "wheel_test.sh"],
        env=os.environ | {"VENV": sys.prefix, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
