"""The fencing state machines under every interleaving (tests/native/plugin/fencing_explore.cc)."""

import json
import subprocess

import pytest
from tests.fixtures.native.programs import native


def _explore(*arguments: int | str, program: str = "explore") -> subprocess.CompletedProcess[str]:
    command = [str(native(f"plugin_fencing_{program}")), *map(str, arguments)]
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
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("lanes", "chunks", "faults", "least"),
    [(1, 6, 1, 2_000), (2, 4, 1, 140_000), pytest.param(2, 3, 2, 4_500_000, marks=pytest.mark.slow)],
)
def test_a_write_is_never_taken_for_another_chunk(lanes: int, chunks: int, faults: int, least: int) -> None:
    """Its announcement has the low bits of its number alone, and more chunks go than these tell apart: a window of two
    here."""
    done = _explore(lanes, chunks, faults, "one-sided", program="explore_window")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["states"] >= least


@pytest.mark.build
def test_an_announcement_with_a_bit_too_few_is_found_out() -> None:
    """Two chunks of a window then look alike."""
    done = _explore(2, 2, 0, "coarse", program="explore_window")
    assert done.returncode == 1
    assert "a chunk was taken for another" in done.stderr


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
