"""Random faults, several at a time: no error, no corrupt byte, no hang. Also under the sanitizers."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.nccl_plugin.chaos import play
from tests.integration.nccl_plugin.ring import Ring

from fabricpulse.lab import Lab

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def ring_lab() -> Iterator[Lab]:
    with Lab(hosts=3, rails=2, nic_mbit=300) as lab:
        yield lab


def survive(lab: Lab, seed: int, count: int, program: Path | str, env: dict[str, str]) -> None:
    ring = Ring(lab, 3, ["--bytes", "1M"], env=env, program=program)
    try:
        ring.wait_running()
        story = play(ring, lab, seed, count)
        healed = time.time()
        ring.until(lambda: ring.bandwidth(healed, time.time()) > 0, 20.0)
        ring.stop(30)
        assert "WARNING: ThreadSanitizer" not in ring.said(), story
    finally:
        lab.heal()
        for rank in ring.ranks:
            rank.process.kill()
            rank.process.wait(10)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_faults(ring_lab: Lab, seed: int) -> None:
    survive(ring_lab, seed, 40, "fabricpulse-ring", {})


@pytest.mark.timeout(400)
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_random_faults_under_a_sanitizer(ring_lab: Lab, sanitizer: str, tmp_path: Path) -> None:
    """The sanitizer finds nothing while lanes die and come back."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = [f"-DFABRICPULSE_SANITIZE={sanitizer}", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=-O1"]
    for command in (
        [cmake, "-S", str(ROOT / "nccl_plugin"), "-B", str(tmp_path), *generator, *options],
        [cmake, "--build", str(tmp_path), "--parallel", "2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    env = {
        "ASAN_OPTIONS": "halt_on_error=1:detect_leaks=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=0:exitcode=66",
    }
    survive(ring_lab, 3, 12, tmp_path / "fabricpulse-ring", env)
