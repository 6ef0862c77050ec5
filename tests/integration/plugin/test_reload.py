"""Several communicators, threads, and loads of the library in one process (tests/native/plugin_reload_host.cc)."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fabricpulse.lab import Lab
from fabricpulse.plugin.locate import library

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[3]
LOADS = 3


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(hosts=1, rails=2) as started:
        yield started


def run_host(lab: Lab, program: Path, plugin: Path, threads: int, rounds: int, *flags: str) -> None:
    """Compiles the host, runs it, and checks that no load leaves anything behind."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = ROOT / "tests/native/plugin_reload_host.cc"
    options = ("-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/nccl_plugin/src", *flags)
    subprocess.run([compiler, *options, source, "-o", program, "-ldl", "-lpthread"], check=True)
    host = lab.host(0)
    done = host.run(
        [str(program), str(plugin), str(threads), str(rounds), str(LOADS)],
        env={
            "FABRICPULSE_NICS": "rail*",
            "ASAN_OPTIONS": "halt_on_error=1:detect_leaks=1",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
            "TSAN_OPTIONS": "halt_on_error=0:exitcode=66",
        },
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ThreadSanitizer" not in done.stderr, done.stderr
    before, *after = re.findall(r"threads (\d+) descriptors (\d+) files (\d+)", done.stdout)
    assert len(after) == LOADS
    assert set(after) == {before}


def test_communicators_come_and_go_in_threads(lab: Lab, tmp_path: Path) -> None:
    """Every message right while others begin and end, also of a sender that has left before accept(); threads,
    descriptors and files of a load go with it, and the library can be unloaded and loaded again."""
    run_host(lab, tmp_path / "host", Path(library()), 6, 20)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_the_same_under_a_sanitizer(
    lab: Lab, sanitized: Callable[[str], Path], sanitizer: str, tmp_path: Path
) -> None:
    kinds = "address,undefined" if sanitizer == "address" else "thread"
    plugin = sanitized(sanitizer) / "libnccl-net-fabricpulse.so"
    run_host(lab, tmp_path / "host", plugin, 3, 6, f"-fsanitize={kinds}", "-fno-sanitize-recover=all")
