"""The fencing state machines under every interleaving (tests/native/plugin/fencing_explore.cc)."""

import json
import subprocess

import pytest
from tests.fixtures.native.programs import native


def _explore(*arguments: int | str) -> subprocess.CompletedProcess[str]:
    command = [str(native("plugin_fencing_explore")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# The last one, 6.8 million states, takes 40 s and half a gigabyte; the others find a fault sooner.
@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("lanes", "chunks", "faults", "mode", "least"),
    [
        (1, 2, 2, (), 1_000),
        (2, 2, 1, (), 10_000),
        (2, 1, 2, (), 50_000),
        pytest.param(2, 3, 2, (), 6_500_000, marks=pytest.mark.slow),
        (1, 2, 2, ("one-sided",), 2_000),
        (2, 2, 1, ("one-sided",), 20_000),
        pytest.param(2, 2, 2, ("one-sided",), 1_000_000, marks=pytest.mark.slow),
        (1, 2, 2, ("queued",), 2_000),
        (2, 2, 1, ("queued",), 20_000),
        pytest.param(2, 2, 2, ("queued",), 1_000_000, marks=pytest.mark.slow),
    ],
)
def test_every_chunk_once_in_every_interleaving(
    lanes: int, chunks: int, faults: int, mode: tuple[str, ...], least: int
) -> None:
    """No state in which a chunk is written twice or lost, or nothing can happen before all is delivered.

    With one-sided writes: nor one in which a write lands in memory that the application may have back. With lanes that
    keep what they cannot send yet: nor one in which a lane still holds what is delivered.
    """
    done = _explore(lanes, chunks, faults, *mode)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["states"] >= least
    assert result["delivered"] > 0


@pytest.mark.build
def test_a_receiver_that_speaks_before_it_has_drained_is_found_out() -> None:
    """A queue pair that is only about to end lets a write land in memory that the application has back."""
    done = _explore(2, 2, 1, "hasty")
    assert done.returncode == 1
    assert "memory that the application may have back" in done.stderr


@pytest.mark.build
def test_a_lane_that_sends_on_after_it_has_failed_is_found_out() -> None:
    """It would read memory that the application has back."""
    done = _explore(2, 2, 1, "lingering")
    assert done.returncode == 1
    assert "a lane still holds a chunk that is delivered" in done.stderr
