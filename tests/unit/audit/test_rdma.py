"""Bandwidth by RDMA WRITE: what it means, and both ends of a test with a stand-in for the queue pair."""

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable
from ctypes import sizeof
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.audit.paths import nics
from tests.fixtures.audit.rdma import StandInPair
from tests.fixtures.waiting import Patience

from fabricpulse.audit.command import command
from fabricpulse.audit.fleet.rdma import RdmaTests
from fabricpulse.audit.fleet.run import Target
from fabricpulse.audit.fleet.stage import Fleet
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Measurement
from fabricpulse.audit.node import verbs_abi as abi
from fabricpulse.audit.node.jobs import QueuePairWatch
from fabricpulse.audit.node.queue_pair import NoRdmaError, gid_of
from fabricpulse.audit.node.rdma_transfer import RdmaListener, Writing, rdma_send, write_size
from fabricpulse.audit.node.rdma_wire import (
    RDMA_RECEIVE_PATH,
    RdmaReceiveAnswer,
    RdmaReceiveRequest,
    RdmaResult,
    RdmaSendRequest,
)
from fabricpulse.audit.node.transfer import TransferError
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.pairing import plan_rounds
from fabricpulse.audit.pair_tests.path_tests import PathDirection, PathDirections, Rail, path_findings
from fabricpulse.audit.pair_tests.rdma_tests import Written, evaluate_rdma, recalled
from fabricpulse.audit.pair_tests.transfer_tests import BUSY, Transfers
from fabricpulse.core.web.client_config import HttpClientConfig

RATE = 10_000_000_000


def written(a: Nic, b: Nic, share: float, starved: float = 0.0) -> Written:
    """share : of the rate, 0 for writes that fail."""
    result = RdmaResult(100, share * RATE or None, not share, starved=starved)
    return Written(PathDirection(a, b, "10.0.0.2", 9000, "rail0", "10.0.0.1"), result)


def reported(measured: list[Measurement]) -> set[tuple[str, str, str, str]]:
    return {(f.check, f.evidence["blame"], f.host, f.subject) for f in path_findings(measured)}


@settings(deadline=None, max_examples=50)
@given(st.integers(4, 8), st.data())
def test_who_is_slow_or_passes_nothing_is_named_and_nobody_else(hosts: int, data: st.DataObject) -> None:
    """A NIC at half of what others reach, or of which no write comes through, whether others reach what was asked for
    or their own limit."""
    fleet = nics(hosts)
    bad = data.draw(st.sampled_from([None, *fleet]))
    share = data.draw(st.sampled_from([0.5, 0.0]))
    usual = data.draw(st.sampled_from([1.0, 0.4]))
    noise = data.draw(st.randoms())
    done = [
        written(a, b, usual * noise.uniform(0.96, 1.0) * (share if bad in (a, b) else 1))
        for a, b in itertools.permutations(fleet, 2)
    ]
    measured, _ = evaluate_rdma(done, RATE)
    assert reported(measured) == ({("path-rdma", "nic", *bad)} if bad else set())
    if not share:
        assert all(finding.evidence["worst"] == "0 Mb/s" for finding in path_findings(measured))


def test_where_nothing_passes_anywhere_nobody_looks_good() -> None:
    """TCP alone passes: there is nobody to compare with, and no need to."""
    measured, _ = evaluate_rdma([written(a, b, 0.0) for a, b in itertools.permutations(nics(4), 2)], RATE)
    assert {m.ok for m in measured} == {False}


def test_a_host_that_is_late_is_not_accused() -> None:
    """Half of the rate, or nothing, as it had no processor: tested again, and unknown if that does not help. A test
    that did not come to its end says nothing."""
    fleet = nics(4)
    good = [written(a, b, 1.0) for a, b in itertools.permutations(fleet, 2)][2:]
    late = [written(fleet[0], fleet[1], 0.0, 0.3), written(fleet[0], fleet[2], 0.5, 0.5)]
    assert [m.ok for m in evaluate_rdma([written(fleet[0], fleet[1], 0.0, 0.1)], RATE)[0]] == [False]
    ended = Written(good[0].way, RdmaResult(error="in use: a job runs here (process 7)"))
    measured, notes = evaluate_rdma([*late, *good, ended], RATE)
    assert [(m.ok, m.detail) for m in measured if m.ok is not True] == [(None, BUSY)] * 2
    assert any("not judged by RDMA" in note for note in notes)
    again, _ = evaluate_rdma([*late, *good, written(fleet[0], fleet[1], 1.0), late[1]], RATE)
    assert {m.ok for m in again} == {True, None}


def test_an_interrupted_run_is_judged_as_it_was() -> None:
    fleet = nics(4)
    rail = Rail(tuple((nic, f"10.0.0.{i}") for i, nic in enumerate(fleet)), plan_rounds([""] * 4))
    ways = PathDirections({"rail0": rail}, [])
    shares = itertools.cycle([1.0, 0.5, 0.0])
    done = [
        written(a, b, next(shares), 0.4 if a == fleet[3] else 0.0)
        for a, b in itertools.permutations(fleet, 2)
    ]
    first, _ = evaluate_rdma(done, RATE)
    assert {m.detail for m in first} == {"", BUSY}
    assert evaluate_rdma(recalled(first, ways), RATE)[0] == first


def test_a_job_on_a_nic_that_we_write_to_is_seen(tmp_path: Path) -> None:
    """Our one queue pair is none of a job's, a second one is; so is a process with the plugin."""
    counts = {("rc", "rts"): 1, ("gsi", "rts"): 1}
    source = SimpleNamespace(indices=lambda: {"mlx5_0": 3}, queue_pairs=lambda _: counts, close=lambda: None)
    port = SimpleNamespace(netdev="e0", device=SimpleNamespace(name="mlx5_0"))
    host = SimpleNamespace(sources=SimpleNamespace(rdma=lambda: source), ports=[port])
    watch = QueuePairWatch(cast("HostReader", host), "e0", tmp_path)
    assert watch.found() == ""
    counts["rc", "rts"] = 2
    assert watch.found() == "1 connected queue pairs on mlx5_0"
    counts["rc", "rts"] = 1
    (tmp_path / f"{os.getpid()}.telemetry").touch()
    assert "a job runs here" in watch.found()


def test_rdma_alone_is_no_run_without_it() -> None:
    result = CliRunner().invoke(command, ["run", "--hosts", "h0", "--rdma"])
    assert (result.exit_code, "--rdma needs --transfers" in result.output) == (2, True)


def test_the_layouts_are_those_of_the_library() -> None:
    """As the plugin's, which the compiler checks (nccl_plugin/src/transport/verbs/verbs_abi.h)."""
    sizes = [abi.SendRequest, abi.Completion, abi.PairAttributes, abi.GidEntry, abi.PairInit]
    assert [sizeof(one) for one in sizes] == [128, 48, 144, 32, 64]
    offsets = abi.Context.async_fd, abi.Pair.number, abi.MemoryRegion.remote_key
    assert [field.offset for field in offsets] == [268, 52, 40]
    assert gid_of("10.9.0.1").hex() == "00000000000000000000ffff0a090001"
    assert [write_size(int(rate)) for rate in (1e6, 1e10, 4e11)] == [16384, 61440, 1 << 20]


def unable(_device: str, _address: str) -> Writing:
    raise NoRdmaError("no RDMA device")


def over_loopback(
    make: Callable[[str, str], Writing],
    seconds: float = 0.2,
    leaves: float | None = None,
    stops: float | None = None,
) -> tuple[RdmaResult, str]:
    """The result, and why the receiver has ended early. leaves, stops : after so many seconds, the receiver by itself,
    and the sender."""
    there, stop = threading.Event(), threading.Event()
    timers = [
        threading.Timer(after, event.set)
        for after, event in ((leaves, there), (stops, stop))
        if after is not None
    ]
    pair = StandInPair()
    listener = RdmaListener(RdmaReceiveRequest("lo", "127.0.0.1", "127.0.0.1", seconds), lambda *_: pair)
    answer = listener.answer
    said: list[str] = []

    def take() -> None:
        try:
            listener.run(there)
        except TransferError as error:
            said.append(str(error))

    threads = [threading.Thread(target=take), *timers]
    for thread in threads:
        thread.start()
    request = RdmaSendRequest(
        "lo", "127.0.0.1", "127.0.0.1", answer.tcp_port, answer.key, 100_000_000, seconds
    )
    try:
        result = rdma_send(request, stop, make)
    finally:
        there.set() if timers else None
        for thread in threads:
            thread.join(60)
    assert pair.closed
    return result, "".join(said)


@pytest.mark.parametrize(("bps", "least", "most"), [(1e12, 20e6, 110e6), (20e6, 5e6, 21e6)])
def test_a_test_over_the_loopback(bps: float, least: float, most: float) -> None:
    """Not faster than asked for, not faster than the path; both ends know one another, and nothing is left."""
    made: list[StandInPair] = []

    def make(*_: str) -> StandInPair:
        made.append(StandInPair(bps))
        return made[-1]

    for _ in range(20):
        result, said = over_loopback(make)
        # No answer is the right one where this thread had no processor: it is asked for again.
        if result.error != "this host was too busy to write":
            break
    assert (result.error, said, result.failed) == ("", "", False)
    assert result.bps is not None
    # A machine that is busy is slower, never faster; a write more or less is chance.
    assert 0 < result.bps < most * 1.2
    assert result.bps > least or result.starved > 0
    assert made[-1].peer == StandInPair().own
    assert made[-1].closed


class Stalled(StandInPair):
    """A host that leaves its thread without a processor at the beginning."""

    def completed(self) -> list[int]:
        if not self.stalled:
            self.stalled = True
            time.sleep(0.3)  # how long the stall lasts
        return super().completed()

    stalled = False


def test_a_host_that_was_late_does_not_exceed_the_rate() -> None:
    """What it was too late for is not made up, which would look like a path faster than asked for."""
    result, said = over_loopback(lambda *_: Stalled(), seconds=1.0)
    assert (result.error, said) == ("", "")
    assert result.bps is not None
    assert result.bps < 1.15 * 100_000_000


def test_writes_that_fail() -> None:
    """Without an answer of the other NIC: failed. By an error of a host: the test was not made. Without RDMA here the
    receiver is free at once."""
    assert over_loopback(lambda *_: StandInPair(status=12))[0].failed
    result, _ = over_loopback(lambda *_: StandInPair(status=10))
    assert (result.failed, result.error) == (False, "a write has failed: remote access error")
    patience = Patience(5)
    result, said = over_loopback(unable)
    assert (result.unable, result.error, said) == (
        True,
        "no RDMA device",
        "the other end has closed the connection",
    )
    assert patience.left()


def test_an_end_that_stops_is_no_fault_of_the_path() -> None:
    """A job begins at the receiver: its queue pair goes, and the writes fail with it. The sender is stopped: both end
    at once."""
    result, said = over_loopback(lambda *_: StandInPair(1e6, status=12), 5.0, leaves=0.05)
    assert (result.failed, result.bps, said) == (False, None, "stopped")
    assert result.error in ("the receiver has gone", "the other end has closed the connection")
    result, said = over_loopback(lambda *_: StandInPair(), 5.0, stops=0.05)
    assert (result.error, said) == ("stopped", "the sender has gone")


@dataclass(frozen=True)
class Agents(Fleet):
    """Agents of which h1's NIC has no RDMA, and all others write at the rate. asked : paths and hosts."""

    asked: tuple[list[tuple[str, str]], ...] = ()

    async def ask(
        self, client: Any, host: str, path: str, document: Any, kind: Any, patience_s: float, peer: str = ""
    ) -> Any:
        self.asked[0].append((path, host))
        without = host == "h1"
        answer: msgspec.Struct
        if path == RDMA_RECEIVE_PATH:
            answer = RdmaReceiveAnswer(error="no RDMA device") if without else RdmaReceiveAnswer(7)
        elif without:
            answer = RdmaResult(error="no RDMA device", unable=True)
        else:
            answer = RdmaResult(9, float(document.rate_bps))
        return msgspec.json.decode(msgspec.json.encode(answer), type=kind)


@pytest.mark.parametrize("hosts", [2, 4])
def test_a_nic_without_rdma_is_untested_and_not_asked_again(hosts: int) -> None:
    """Others are tested among themselves; nobody is accused. Who has no other partner is untested, too."""
    fleet = nics(hosts)
    rail = Rail(tuple((nic, f"10.0.0.{i}") for i, nic in enumerate(fleet)), plan_rounds([""] * hosts))
    asked: list[tuple[str, str]] = []

    async def run() -> tuple[list[Measurement], RdmaTests]:
        targets = {host: Target(host, "http://nowhere", {}) for host, _ in fleet}
        agents = Agents(
            targets, HttpClientConfig(), PathDirections({"r": rail}, []), {}, asyncio.Event(), asked=(asked,)
        )
        tests = RdmaTests(None, agents, Transfers(RATE, rdma=True))  # type: ignore[arg-type]
        return await tests.run(list(itertools.permutations(fleet, 2))), tests

    measured, tests = asyncio.run(run())
    assert [m.ok for m in measured] == ([True] * 6 if hosts == 4 else [])
    alone = {} if hosts == 4 else {fleet[0]: "by RDMA: its partner h1 eth0: no RDMA device"}
    assert tests.untested == {fleet[1]: "by RDMA: no RDMA device"} | alone
    assert len([one for one in asked if one[1] == "h1"]) <= 2
    assert Transfers(RATE, 1.0, rdma=True).cost(1) - Transfers(RATE, 1.0).cost(1) == RATE // 8
