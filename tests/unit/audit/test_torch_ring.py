"""NCCL itself in an audit, by torch: two ranks of a stand-in for torch over the loopback, and what is made of them."""

import asyncio
import importlib.util
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fabricpulse.audit.fleet.ring import gpu_hosts, run_nccl
from fabricpulse.audit.fleet.run import Target
from fabricpulse.audit.fleet.stage import Fleet
from fabricpulse.audit.host.nvml import NvmlAnswer, NvmlGpu
from fabricpulse.audit.model import HostReport, Ring, Value
from fabricpulse.audit.node.config import NodeConfig
from fabricpulse.audit.node.torch_ring import run_torch, why_not
from fabricpulse.audit.node.wire import RingAnswer, RingRequest
from fabricpulse.audit.pair_tests.path_tests import PathDirections
from fabricpulse.audit.pair_tests.ring_tests import GIVEN, RingHost, ring_findings, ring_notes
from fabricpulse.core.check import Finding, check_file
from fabricpulse.core.config import load_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.core.web.client_config import HttpClientConfig

# As much of torch as torch_rank.py uses, for two ranks: tensors are numpy's, and rank 0 adds for both.
STAND_IN = """
import os, socket, sys, types
import numpy

sys.modules["__main__"].LEAST_BYTES = 1 << 20  # not what a GPU needs to be fast

class Tensor:
    def __init__(self, array): self.array = array
    def __mod__(self, other): return Tensor(self.array % other)
    def __add__(self, other): return Tensor(self.array + other)
    def __mul__(self, other): return Tensor(self.array * other)
    def __ne__(self, other): return Tensor(self.array != other.array)
    def float(self): return Tensor(self.array.astype(numpy.float32))
    def sum(self): return int(self.array.sum())
    def item(self): return float(self.array[0])
    def copy_(self, other): self.array[:] = other.array
    def fill_(self, value): self.array[:] = value

def arange(count, device): return Tensor(numpy.arange(count))
def zeros(count, device): return Tensor(numpy.zeros(count, numpy.float32))
def empty_like(other): return Tensor(numpy.empty_like(other.array))

cuda = types.SimpleNamespace(
    is_available=lambda: "NCCL_NO_GPU" not in os.environ, set_device=lambda n: None, synchronize=lambda: None
)

class TCPStore:
    def __init__(self, host, port, size, first, timeout, master_listen_fd=None):
        if first:
            self.peer = socket.socket(fileno=master_listen_fd).accept()[0]
        else:
            self.peer = None
            while self.peer is None:
                try: self.peer = socket.create_connection((host, port))
                except ConnectionRefusedError: pass

class distributed:
    TCPStore = TCPStore
    def init_process_group(backend, store, rank, world_size, timeout):
        distributed.peer, distributed.rank = store.peer.makefile("rwb"), rank
    def all_reduce(tensor):
        peer, array = distributed.peer, tensor.array
        if distributed.rank == 0:
            array += numpy.frombuffer(peer.read(array.nbytes), array.dtype)
            if "NCCL_WRONG" in os.environ and len(array) > 1: array[7] += 1
            peer.write(array.tobytes()); peer.flush()
        else:
            peer.write(array.tobytes()); peer.flush()
            array[:] = numpy.frombuffer(peer.read(array.nbytes), array.dtype)
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter that has the stand-in."""
    (tmp_path / "torch.py").write_text(STAND_IN)
    interpreter = tmp_path / "python"
    interpreter.write_text(
        f'#!/bin/sh\nshift\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n'  # without -I
    )
    interpreter.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return str(interpreter)


def request(rank: int, port: int = 1) -> RingRequest:
    return RingRequest(rank, 2, f"127.0.0.1:{port}", ("lo",), 1, 0.1, torch=True)


def both(python: str) -> list[RingAnswer]:
    """The answers of two ranks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(lambda rank: run_torch(request(rank, port), threading.Event(), python), (0, 1))]


def test_two_ranks_reduce_and_compare(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a rate and right data, and nothing is left of them; a wrong element is seen by both."""
    for answer in both(python):
        assert (answer.error, answer.corrupt_bytes) == ("", 0)
        assert answer.bps > 1e6
        assert answer.rounds >= 1
    assert [*tmp_path.glob("fabricpulse-ring-*")] == []
    monkeypatch.setenv("NCCL_WRONG", "1")
    assert all(answer.corrupt_bytes >= 4 for answer in both(python))


def test_what_is_missing_is_reported(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No torch, no GPU, no interpreter, an address that is not this host's."""
    monkeypatch.setenv("NCCL_NO_GPU", "1")
    assert run_torch(request(1), threading.Event(), python).error == "torch sees no GPU"
    monkeypatch.delenv("NCCL_NO_GPU")
    assert "No such file" in run_torch(request(0), threading.Event(), "/nosuch/python").error
    elsewhere = RingRequest(0, 2, "192.0.2.77:9", ("lo",), torch=True)
    assert "OSError" in run_torch(elsewhere, threading.Event(), python).error
    if importlib.util.find_spec("torch") is None:
        assert "torch is not installed for" in run_torch(request(0), threading.Event()).error


def test_an_interpreter_is_absolute(tmp_path: Path) -> None:
    """No PATH is searched for it: a bare name is refused at the start and by `check`, with the line. One that is not
    there is a warning: hosts without GPUs may have the same file."""
    file = tmp_path / "audit-node.yaml"

    def checked(python: str) -> Finding:
        file.write_text(f"host: h0\ntorch_python: {python}\n")
        return check_file(file)

    for python in ("python3", "venv/bin/python3", "~/venv/bin/python3"):
        refused = checked(python)
        assert refused.exit_code == 1
        assert f"{file}:2" in refused.error
        assert "torch_python must be an absolute path" in refused.error
        assert f"got {python}" in refused.error
        with pytest.raises(ConfigError, match="must be an absolute path"):
            load_config(file, NodeConfig)
    assert [w for w in checked("/nosuch/python3").warnings if "torch_python" in w] == [
        "torch_python: /nosuch/python3 is no program here: NCCL itself is not tested on this host"
    ]
    assert [w for w in checked(str(tmp_path)).warnings if "is no program here" in w]
    assert [w for w in checked(sys.executable).warnings if "torch_python" in w] == []


def test_a_rank_that_waits_is_stopped(python: str, tmp_path: Path) -> None:
    """As by Ctrl-C of the run: the other rank never comes."""
    stop = threading.Event()
    stop.set()
    begun = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert run_torch(request(0, port), stop, python).error == "stopped"
    assert time.monotonic() - begun < 30
    assert [*tmp_path.glob("fabricpulse-ring-*")] == []


def test_a_gpu_in_use_is_left_alone() -> None:
    """And one of which that is not known."""
    free, used = NvmlGpu("0000:01:00.0", processes=0), NvmlGpu("0000:02:00.0", processes=2)
    assert why_not(["nvidia"], NvmlAnswer((free,))) == ""
    assert "2 processes compute on GPU 0000:02:00.0" in why_not(["nvidia"], NvmlAnswer((free, used)))
    assert "no libnvidia" in why_not(["nvidia"], NvmlAnswer(reason="there is no libnvidia-ml.so.1"))
    unread = NvmlGpu("0000:03:00.0")
    assert "not known whether GPU 0000:03:00.0 is in use" in why_not(["nvidia"], NvmlAnswer((free, unread)))
    assert "no permission to ask 1" in why_not(["nvidia"], NvmlAnswer((free,), refused=1))
    assert why_not(["amd"], NvmlAnswer()) == "no NVIDIA GPU"


def itself(bps: float | None, expected: float | None = 1e10, corrupt: int = 0) -> Ring:
    return Ring(
        GIVEN, 0, ("h0", "h1"), bps, expected, corrupt, "" if bps else "h1: no NVIDIA GPU", torch=True
    )


def test_what_it_means() -> None:
    """It is compared with one NIC of a pair, and is not the best of the plugin's rings; wrong data are found."""
    plugin = Ring(GIVEN, 8, ("h0", "h1"), 1.9e9, 2e9)
    assert ring_findings([plugin, itself(9e9)]) == []
    [slow] = ring_findings([plugin, itself(3e9)])
    assert (slow.check, slow.evidence["by"]) == ("nccl-ring", "torch")
    [slow] = ring_findings([Ring(GIVEN, 8, ("h0", "h1"), 1e9, 2e9), itself(9e10)])
    assert slow.evidence["lanes"] == "8"
    assert ring_findings([itself(3e9, None), itself(None)]) == []
    [corrupt] = ring_findings([itself(9e9, corrupt=4)])
    assert corrupt.check == "nccl-data"
    assert ring_notes([itself(None)]) == ["NCCL itself, by torch, 2 hosts: not run, h1: no NVIDIA GPU"]
    assert ring_notes([itself(8e9)])[0].endswith("8 Gb/s a host, its slowest pair 10 Gb/s")


def test_a_host_without_torch_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank would wait for it for a minute. Hosts without a GPU are not asked, nor one GPU alone."""
    asked: list[str] = []

    async def ask(
        self: Fleet, _client: object, host: str, wanted: RingRequest | str, *more: object
    ) -> RingAnswer:
        asked.append(host)
        if host == "h1":
            return RingAnswer(error="torch is not installed for /usr/bin/python3")
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(Fleet, "ask", ask)

    async def play(gpus: set[str]) -> Ring | None:
        config = HttpClientConfig(timeout_s=5)
        hosts = [RingHost(f"h{i}", {"r0": ("e0", f"10.0.0.{i}")}) for i in range(3)]
        targets = {host.host: Target(host.host, "http://nowhere", {}) for host in hosts}
        fleet = Fleet(targets, config, PathDirections({}, []), {}, asyncio.Event())
        return await asyncio.wait_for(run_nccl(fleet, hosts, gpus, 0.5, []), 30)

    found = asyncio.run(play({"h0", "h1"}))
    assert found is not None
    assert (found.torch, found.bps, found.hosts) == (True, None, ("h0", "h1"))
    assert found.error == "h1: torch is not installed for /usr/bin/python3"
    assert sorted(asked) == ["h0", "h1"]
    assert asyncio.run(play({"h2"})) is None


def test_hosts_with_gpus_are_known_by_their_reports() -> None:
    reports = [
        HostReport(host, 0.0, 0.0, (), (Value("gpus", "", "", value),))
        for host, value in (("h0", "8 x nvidia 0x2330"), ("h1", "none"), ("h2", "8 x amd 0x74a1"))
    ]
    assert gpu_hosts(reports) == {"h0"}
