"""The fencing state machines under every interleaving (tests/native/plugin_fencing_explore.cc)."""

import json
import subprocess

import pytest
from tests.fixtures.native import native


# The last one, 6.8 million states, takes 40 s and half a gigabyte; the others find a fault sooner.
@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("lanes", "chunks", "faults", "least"),
    [
        (1, 2, 2, 1_000),
        (2, 2, 1, 10_000),
        (2, 1, 2, 50_000),
        pytest.param(2, 3, 2, 6_500_000, marks=pytest.mark.slow),
    ],
)
def test_every_chunk_once_in_every_interleaving(lanes: int, chunks: int, faults: int, least: int) -> None:
    """No state in which a chunk is written twice or lost, or nothing can happen before all is delivered."""
    done = subprocess.run(
        [native("plugin_fencing_explore"), str(lanes), str(chunks), str(faults)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["states"] >= least
    assert result["delivered"] > 0
