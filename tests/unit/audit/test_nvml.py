"""NVML is asked by a process of its own: what it says is read as its header has it, and no failure of it is ours."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from tests.fixtures.hostinfo.host_tree import GpuHost

from fabricpulse.audit.checks import gpu_memory
from fabricpulse.audit.host.nvml import MOST_GPUS, NvmlGpu, ask, read
from fabricpulse.audit.model import Status


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    source = Path(__file__).parents[2] / "fixtures/hostinfo/fake_nvml.c"
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
    ("kind", "reported"),
    [("init", "error 9"), ("crash", f"signal {int(signal.SIGABRT)}"), ("hang", "within 1 s")],
)
def test_a_broken_one_costs_a_child(
    library: str, kind: str, reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that fails, crashes or hangs leaves this process as it was; the answer says what happened."""
    monkeypatch.setitem(os.environ, "FAKE_NVML", kind)
    answer = ask(library, 1 if kind == "hang" else 60)
    assert answer.gpus is None
    assert reported in answer.reason


@pytest.mark.parametrize(
    ("kind", "refused", "errors"), [("refused", 1, [0]), ("unread", 0, [0, 4]), ("lost", 0, [0, 15])]
)
def test_what_may_not_be_read_is_not_taken_for_missing(
    library: str, kind: str, refused: int, errors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without permission, or a GPU that is lost: NVML's own word for it stays."""
    monkeypatch.setitem(os.environ, "FAKE_NVML", kind)
    answer = ask(library, 60)
    assert answer.gpus is not None
    assert (answer.refused, [gpu.error for gpu in answer.gpus]) == (refused, errors)


@pytest.mark.parametrize("counts", [False, True])
def test_a_gpu_that_may_not_be_asked_is_no_broken_one(tmp_path: Path, counts: bool) -> None:
    """Without permission for it, or for its counts, it is unknown how it is."""
    host = GpuHost(tmp_path / "host")
    address = host.gpu_address(1)
    if counts:
        host.nvml_gpus[address] = NvmlGpu(address, None, False, False, error=4)
    else:
        del host.nvml_gpus[address]
        host.nvml_refused = 1
    (one,) = (o for o in gpu_memory.run(host.reader()) if o.subject == address)
    assert one.status is Status.UNKNOWN
    assert "no permission" in one.summary


def test_absurd_counts_are_bounded(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million GPUs are as many as any host may have."""
    monkeypatch.setitem(os.environ, "FAKE_NVML", "many")
    answer = ask(library, 60)
    assert answer.gpus is not None
    assert len(answer.gpus) == MOST_GPUS
