"""Several communicators, threads, and loads of the library in one process (tests/native/hosts/reload.cc)."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.native.programs import native

from fabricpulse.lab import Lab
from fabricpulse.plugin.locate import library

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[3]
LOADS = 3


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(hosts=1, rails=2) as started:
        yield started


def run_host(lab: Lab, program: Path, plugin: Path, threads: int, rounds: int) -> None:
    """Runs the host, and checks that no load leaves anything behind."""
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


def test_communicators_come_and_go_in_threads(lab: Lab) -> None:
    """Every message right while others begin and end, also of a sender that has left before accept(); threads,
    descriptors and files of a load go with it, and the library can be unloaded and loaded again."""
    run_host(lab, native("plugin_reload_host"), Path(library()), 6, 20)


@pytest.mark.slow
@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_the_same_under_a_sanitizer(lab: Lab, sanitizer: str) -> None:
    plugin = native("nccl-net-fabricpulse", sanitizer)
    run_host(lab, native("plugin_reload_host", sanitizer), plugin, 3, 6)
