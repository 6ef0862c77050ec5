"""The fencing state machines under every interleaving (tests/native/plugin_fencing_explore.cc)."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def explore(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path_factory.mktemp("explore") / "explore"
    subprocess.run(
        [
            *(compiler, "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"),
            *("-DFABRICPULSE_CHUNK_WINDOW=64", "-DFABRICPULSE_MAX_LANES=2"),
            *(f"-I{ROOT}/nccl_plugin/src", "-o", str(program)),
            str(ROOT / "tests/native/plugin_fencing_explore.cc"),
        ],
        check=True,
    )
    return program


# The last one, 6.8 million states, takes 40 s and half a gigabyte; the others find a fault sooner.
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("lanes", "chunks", "faults", "least"),
    [(1, 2, 2, 1_000), (2, 2, 1, 10_000), (2, 1, 2, 50_000), (2, 3, 2, 6_500_000)],
)
def test_every_chunk_once_in_every_interleaving(
    explore: Path, lanes: int, chunks: int, faults: int, least: int
) -> None:
    """No state in which a chunk is written twice or lost, or nothing can happen before all is delivered."""
    done = subprocess.run(
        [explore, str(lanes), str(chunks), str(faults)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["states"] >= least
    assert result["delivered"] > 0
