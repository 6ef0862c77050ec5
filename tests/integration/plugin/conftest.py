"""What several tests of the plugin need and takes long to make."""

import functools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the folder of a build of the plugin and fabricpulse-ring with a sanitizer, "address" (and undefined
    behaviour) or "thread"; each is built once."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake")

    @functools.cache
    def build(sanitizer: str) -> Path:
        folder = tmp_path_factory.mktemp(sanitizer)
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        options = [
            f"-DFABRICPULSE_SANITIZE={sanitizer}",
            "-DCMAKE_BUILD_TYPE=Debug",
            "-DCMAKE_CXX_FLAGS=-O1",
        ]
        for command in (
            [cmake, "-S", str(ROOT / "nccl_plugin"), "-B", str(folder), *generator, *options],
            [cmake, "--build", str(folder), "--parallel", "2"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        return folder

    return build


@pytest.fixture(scope="session")
def profiler_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that drives the profiler symbols as NCCL does: a job that needs no NIC."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path_factory.mktemp("profiler") / "host"
    source = ROOT / "tests/native/plugin_profiler_host.cc"
    include = f"-I{ROOT}/nccl_plugin/src"
    subprocess.run([compiler, "-std=c++17", "-O1", include, source, "-o", program, "-ldl"], check=True)
    return program
