"""NVML is asked by a process of its own: what it says is read as its header has it, and no failure of it is ours."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from fabricpulse.audit.nvml import MOST_GPUS, NvmlGpu, ask, read


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    source = Path(__file__).parents[2] / "fixtures" / "fake_nvml.c"
    built = tmp_path_factory.mktemp("nvml") / "libfake_nvml.so"
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", built, source], check=True
    )
    return str(built)


@pytest.mark.parametrize("how", [ask, read])
def test_what_it_says(library: str, how: object) -> None:
    """Addresses as on the PCI bus, 64-bit counts, and None for what a GPU does not support."""
    answer = ask(library, 60) if how is ask else read(library)
    assert answer.gpus == (
        NvmlGpu("0000:11:00.0", (1 << 40) + 7, False, True),
        NvmlGpu("0000:e1:00.0", None, True, False),
    )


def test_without_it() -> None:
    """No such library: unknown, and why."""
    answer = ask("libno-such-thing.so.1", 60)
    assert (answer.gpus, "libnvidia-ml" in answer.reason) == (None, True)


@pytest.mark.parametrize(
    ("kind", "told"),
    [("init", "error 9"), ("crash", f"signal {int(signal.SIGABRT)}"), ("hang", "within 1 s")],
)
def test_a_broken_one_costs_a_child(
    library: str, kind: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that fails, crashes or hangs leaves this process as it was; the answer says what happened."""
    monkeypatch.setitem(os.environ, "FAKE_NVML", kind)
    answer = ask(library, 1 if kind == "hang" else 60)
    assert answer.gpus is None
    assert told in answer.reason


def test_absurd_counts_are_bounded(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million GPUs are as many as any host may have."""
    monkeypatch.setitem(os.environ, "FAKE_NVML", "many")
    answer = ask(library, 60)
    assert answer.gpus is not None
    assert len(answer.gpus) == MOST_GPUS
