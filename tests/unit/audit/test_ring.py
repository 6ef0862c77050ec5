"""The NCCL plugin's ring in an audit: what it means, and one rank of it over the loopback."""

import asyncio
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from tests.fixtures.waiting import wait_for

from fabricpulse.audit.fleet.ring import ring_hosts, run_rings
from fabricpulse.audit.fleet.run import AgentError, Target
from fabricpulse.audit.fleet.stage import Fleet
from fabricpulse.audit.model import Measurement, Ring
from fabricpulse.audit.node.ring import remove_left_behind, run_ring
from fabricpulse.audit.node.wire import RingAnswer, RingRequest
from fabricpulse.audit.pair_tests.pairing import plan_rounds
from fabricpulse.audit.pair_tests.path_tests import PathDirections, Rail
from fabricpulse.audit.pair_tests.ring_tests import (
    BY_LEAF,
    GIVEN,
    RingHost,
    crossings,
    expected,
    orders,
    ring_findings,
    ring_notes,
)
from fabricpulse.core.web.client_config import HttpClientConfig


def hosts(leaves: str, networks: int = 2) -> list[RingHost]:
    nics = {f"r{n}": (f"e{n}", f"10.0.{n}.1") for n in range(networks)}
    return [RingHost(f"h{i}", nics, leaf) for i, leaf in enumerate(leaves)]


def rate(network: str, source: str, target: str, bps: float, ok: bool | None = True) -> Measurement:
    return Measurement("bandwidth", network, source, "e", target, "e", bps, ok)


def test_hosts_of_a_leaf_stand_beside_one_another() -> None:
    """Two leaves that alternate are crossed by every connection, sorted by two; what is sorted already, or not known,
    has one order."""
    found = orders(hosts("abab"))
    assert [host.host for host in found[GIVEN]] == ["h0", "h1", "h2", "h3"]
    assert [host.host for host in found[BY_LEAF]] == ["h0", "h2", "h1", "h3"]
    assert (crossings(found[GIVEN]), crossings(found[BY_LEAF])) == (4, 2)
    assert list(orders(hosts("aabb"))) == [GIVEN]
    assert list(orders([*hosts("ab"), RingHost("x", {}, "")])) == [GIVEN]


def test_what_a_ring_should_reach() -> None:
    """The slowest connection of the ring, all its NICs together, as far as lanes go; less where both directions share
    something; not known where processors limit the pairs, or nothing is known of one network."""
    own = hosts("aaa")
    measured = [
        rate(n, f"h{i}", f"h{j}", 1e10) for n in ("r0", "r1") for i in range(3) for j in range(3) if i != j
    ]
    slow = [rate("r1", "h1", "h2", 4e9), *(m for m in measured if (m.network, m.source_host) != ("r1", "h1"))]
    assert expected(own, 8, measured) == 2e10
    assert expected(own, 1, measured) == 1e10
    assert expected(own, 8, slow) == 1.4e10
    both = Measurement("duplex", "r0", "h0", "e", "h1", "e", 0.5, True)
    assert expected(own, 8, [*measured, both]) == 1e10
    assert expected(own, 8, [*measured, rate("r0", "h0", "h1", 1e9, None)]) is None
    assert expected(own, 8, []) is None


def ring(order: str, lanes: int, bps: float | None, want: float | None = 2e9, corrupt: int = 0) -> Ring:
    return Ring(order, lanes, ("h0", "h1"), bps, want, corrupt, "" if bps else "h1: in use")


def test_what_rings_say() -> None:
    """The best number of lanes counts; a ring without anything to compare with says nothing; one that was not finished
    is a finding, whose suspects are the hosts that said why, or all."""
    good = [ring(GIVEN, 1, 5e8), ring(GIVEN, 8, 1.9e9)]
    assert ring_findings(good) == []
    assert ring_findings([ring(GIVEN, 1, 1e8, None)]) == []
    for failed, suspects in ((), ("h0", "h1")), (("h1",), ("h1",)):
        broken = [msgspec.structs.replace(ring(GIVEN, lanes, None), failed=failed) for lanes in (4, 8)]
        [found] = ring_findings([ring(GIVEN, 1, 1e8, None), *broken])
        assert (found.check, found.severity, found.host) == ("nccl-ring", "error", "")
        assert (found.suspects, found.evidence["lanes"]) == (suspects, "4, 8")
        assert "in use" in found.summary
    # Where NCCL itself has no torch there is nothing that should have run.
    assert ring_findings([msgspec.structs.replace(ring(GIVEN, 0, None), torch=True)]) == []
    [slow] = ring_findings([ring(GIVEN, 1, 5e8), ring(GIVEN, 8, 1e9)])
    assert (slow.check, slow.evidence["lanes"]) == ("nccl-ring", "8")
    assert "share links" in slow.summary
    [order] = ring_findings([ring(GIVEN, 8, 1.4e9), ring(BY_LEAF, 8, 1.9e9)])
    assert "sort ranks by leaf" in order.summary
    [corrupt] = ring_findings([ring(GIVEN, 8, 1.9e9, corrupt=3)])
    assert (corrupt.check, corrupt.severity) == ("nccl-data", "error")
    fast = [ring(GIVEN, 8, 8.4e9, 3.9e10)]
    assert ring_findings(fast) == []  # the ring's own program is the limit
    assert len(ring_findings([ring(GIVEN, 8, 3e9, 3.9e10)])) == 1
    assert "in use" in ring_notes([ring(GIVEN, 8, None)])[0]


def test_hosts_of_a_ring_keep_the_order_of_ranks() -> None:
    """With all their NICs; a host without any is left out."""
    rail = Rail(tuple(((f"h{i}", "e0"), f"10.0.0.{i}") for i in range(3)), plan_rounds([""] * 3))
    found = ring_hosts({"r0": rail}, {("h2", "e0"): "leaf1"}, ["h2", "h9", "h0"])
    assert [(host.host, host.leaf) for host in found] == [("h2", "leaf1"), ("h0", "")]
    assert found[0].nics == {"r0": ("e0", "10.0.0.2")}


def request(rank: int, size: int = 2, port: int = 28_471) -> RingRequest:
    return RingRequest(rank, size, f"127.0.0.1:{port}", ("lo",), 2, 0.2)


def program(folder: Path, body: str) -> Path:
    path = folder / "ring"
    path.write_text(f"#!{sys.executable} -I\nimport json, os, sys, time\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_rank_is_sent_its_work_and_read(tmp_path: Path) -> None:
    """It has a run directory of its own, which is gone afterwards; its summary is the answer, else what it said."""
    body = (
        "print(json.dumps({'type': 'summary', 'bus_bytes_per_second': 125e6, 'rounds': 7, 'corrupt_bytes': 0,\n"
        " 'errors': 0, 'error': None}))\n"
        f"open({str(tmp_path / 'reported')!r}, 'w').write(' '.join([os.environ['FABRICPULSE_RUN_DIR'],\n"
        " os.environ['FABRICPULSE_NICS'], os.environ['FABRICPULSE_MAX_LANES'], *sys.argv[1:]]))"
    )
    assert run_ring(request(1), threading.Event(), program(tmp_path, body)) == RingAnswer(1e9, 7)
    reported = (tmp_path / "reported").read_text().split()
    assert reported[1:3] == ["lo", "2"]
    assert not Path(reported[0]).exists()
    said = run_ring(request(1), threading.Event(), program(tmp_path, "sys.exit('no such plugin')"))
    assert said == RingAnswer(error="no such plugin")
    assert "not installed" in run_ring(request(1), threading.Event(), tmp_path / "nosuch").error
    assert run_ring(request(2), threading.Event(), program(tmp_path, "")).error == "rank 2 of 2"


def test_a_rank_that_is_stopped_ends(tmp_path: Path) -> None:
    """Also one that does not hear SIGTERM."""
    body = "import signal\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(3600)"
    stop = threading.Event()
    stop.set()
    begun = time.monotonic()
    assert run_ring(request(1), stop, program(tmp_path, body)).error == "stopped"
    assert time.monotonic() - begun < 30


AGENT = """
import sys, threading
from pathlib import Path
from fabricpulse.audit.node.ring import remove_left_behind, run_ring
from fabricpulse.audit.node.wire import RingRequest
run_ring(RingRequest(0, 2, "127.0.0.1:28471", ("lo",)), threading.Event(), Path(sys.argv[1]))
"""


def test_a_rank_goes_with_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is killed cannot stop it; what is left of its files goes with the next agent, and no other's."""
    mark = tmp_path / "pid"
    body = f"open({str(mark)!r}, 'w').write(str(os.getpid()) + '\\n')\ntime.sleep(3600)"
    agent = subprocess.Popen(
        [sys.executable, "-Ic", AGENT, str(program(tmp_path, body))],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    wait_for(lambda: mark.exists() and mark.read_text().endswith("\n"), 60, "the rank")
    rank = os.pidfd_open(int(mark.read_text()))
    try:
        agent.kill()
        agent.wait()
        assert select.select([rank], [], [], 60)[0]
    finally:
        os.close(rank)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = tmp_path / f"fabricpulse-ring-{os.getpid()}-x"
    own.mkdir()
    assert len([*tmp_path.glob("fabricpulse-ring-*")]) == 2
    remove_left_behind()
    assert [*tmp_path.glob("fabricpulse-ring-*")] == [own]


def test_another_user_cannot_keep_an_agent_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others have made stays, as root too; a folder deeper than the interpreter's stack ends nothing."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "fabricpulse-ring-2147483646-a").mkdir()
    (tmp_path / "fabricpulse-ring-2147483646-b").symlink_to(tmp_path / "nosuch")
    with monkeypatch.context() as other:
        other.setattr("os.geteuid", lambda: os.getuid() + 1)
        remove_left_behind()
    assert len([*tmp_path.iterdir()]) == 2

    def too_deep(*_: object, **__: object) -> None:
        raise RecursionError

    with monkeypatch.context() as deep:
        deep.setattr("shutil.rmtree", too_deep)
        remove_left_behind()
    remove_left_behind()
    assert [path.name for path in tmp_path.iterdir()] == ["fabricpulse-ring-2147483646-b"]


@pytest.mark.parametrize("place", ["host:1", "10.0.0.1:1 --plugin=/x", "10.0.0.1", "[::1];x:1"])
def test_nothing_but_an_address_is_taken(place: str) -> None:
    """What the agent puts on a command line."""
    import msgspec

    data = {"rank": 0, "size": 2, "rendezvous": place, "devices": ["lo"]}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(data, RingRequest)


def test_a_host_that_does_not_answer_costs_one_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others make the rings that follow; each would else wait a minute for it."""
    hosts = [RingHost(f"h{n}", {"r": ("e0", f"10.0.0.{n}")}) for n in range(3)]
    asked: list[str] = []

    async def answer(_: object, url: str, *__: object) -> RingAnswer:
        asked.append(url.partition("//")[2].partition("/")[0])
        if asked[-1] == "h1":
            raise AgentError("no answer in time")
        return RingAnswer(1e9, 4)

    monkeypatch.setattr("fabricpulse.audit.fleet.stage.ask", answer)

    async def run() -> list[Ring]:
        targets = {host.host: Target(host.host, f"http://{host.host}", {}) for host in hosts}
        fleet = Fleet(targets, HttpClientConfig(), PathDirections({}, []), {}, asyncio.Event())
        return await run_rings(fleet, hosts, 0.1, [])

    rings = asyncio.run(run())
    assert asked.count("h1") == 1
    assert [ring.hosts for ring in rings] == [("h0", "h1", "h2"), *[("h0", "h2")] * 3]
    assert [(ring.error, ring.bps is None) for ring in rings] == [
        ("h1: no answer in time", True),
        *[("", False)] * 3,
    ]


def test_an_agent_of_an_older_release_is_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses a request of which it lacks a field, and takes one without; who refuses that, too, has its reason."""
    hosts = [RingHost(f"h{n}", {"r": ("e0", f"10.0.0.{n}")}) for n in range(2)]
    asked: list[str] = []

    async def answer(_: object, url: str, request: RingRequest, *__: object) -> RingAnswer:
        asked.append(url.partition("//")[2].partition("/")[0])
        if "h1" in url and (request.peer or request.lanes == 8):
            raise AgentError("unknown field `peer`", answered=True, unknown=True)
        return RingAnswer(1e9, 4)

    monkeypatch.setattr("fabricpulse.audit.fleet.stage.ask", answer)

    async def run() -> list[Ring]:
        targets = {host.host: Target(host.host, f"http://{host.host}", {}) for host in hosts}
        fleet = Fleet(targets, HttpClientConfig(), PathDirections({}, []), {}, asyncio.Event())
        return await run_rings(fleet, hosts, 0.1, [])

    rings = asyncio.run(run())
    assert [ring.error for ring in rings] == ["", "", "", "h1: unknown field `peer`"]
    assert (asked.count("h0"), asked.count("h1")) == (4, 8)
