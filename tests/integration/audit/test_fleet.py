"""Audits of fleets: real agents on the loopback, asked by the real command."""

import asyncio
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from click.testing import CliRunner
from tests.fixtures.audit.rdma import StandInPair
from tests.fixtures.hostinfo.host_tree import GpuHost
from tests.fixtures.waiting import wait_for

from fabricpulse.audit.command import command
from fabricpulse.audit.commands.output import FOUND, GOOD, NOT_KNOWN
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.local import audit_host
from fabricpulse.audit.model import FleetFindings, HostReport, Run
from fabricpulse.audit.node import agent as agent_module
from fabricpulse.audit.node import rdma_service
from fabricpulse.audit.node.agent import Agent
from fabricpulse.audit.node.config import NodeConfig
from fabricpulse.audit.node.rdma_transfer import RdmaListener, rdma_send
from fabricpulse.audit.node.rdma_wire import (
    RDMA_RECEIVE_PATH,
    RDMA_SEND_PATH,
    RdmaReceiveAnswer,
    RdmaReceiveRequest,
    RdmaResult,
    RdmaSendRequest,
)
from fabricpulse.audit.node.wire import (
    AUDIT_PATH,
    ECHO_TESTS_PATH,
    FINDINGS_PATH,
    RECEIVE_PATH,
    SEND_PATH,
    ReceiveAnswer,
    ReceiveRequest,
    SendRequest,
    TransferResult,
)
from fabricpulse.audit.storage import read
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import UserError
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.web.client import fetch
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.options import WebOptions

Answer = TypeVar("Answer")
WARN = ("--fail-on", "warning")
TOKEN = "0123456789abcdef"  # noqa: S105


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    """In memory: four hosts are some thousand files."""
    return memory_path


# What agents send at most by default.
LIMIT_BPS = NodeConfig().transfer_mbit_s * 1_000_000


@dataclass
class Fleet:
    """Agents of hosts that are trees, in one thread with a loop of its own."""

    folder: Path
    hosts: dict[str, GpuHost] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    def run(self, *arguments: str, names: str = "") -> tuple[int, Run | None, str]:
        """`audit run` over the agents; exit code, run, standard error or output."""
        result = CliRunner().invoke(
            command,
            [
                "run",
                *("--hosts", names or ",".join(self.ports)),
                *("--agent-url", "http://127.0.0.1:{host}"),
                *("--token-file", str(self.token_file)),
                *("--output", "json"),
                *arguments,
            ],
        )
        run = msgspec.json.decode(result.stdout, type=Run) if result.stdout.startswith("{") else None
        return result.exit_code, run, result.output or str(result.exception)


@contextmanager
def fleet_of(folder: Path, count: int) -> Iterator[Fleet]:
    """`count` hosts on which all is right. A host's name is its agent's port."""
    fleet = Fleet(folder)
    fleet.token_file.write_text(TOKEN)
    lives: list[Lifetime] = []
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    async def serve() -> None:
        agents = []
        for number in range(count):
            host = GpuHost(folder / f"host{number}", nics=3)
            life = Lifetime()

            def reader(rails: dict[str, str], host: GpuHost = host) -> HostReader:
                host.rails = rails or host.rails
                return host.reader()

            config = NodeConfig(
                token_file=str(fleet.token_file), state=str(folder / f"state{number}"), keep_runs=2
            )
            options = DaemonOptions(None, WebOptions(("127.0.0.1:0",)), "info", "logfmt")
            agent = Agent(config, options, life, reader)
            lives.append(life)
            task = asyncio.create_task(agent.run())
            while not life.has_started:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)
            agents.append(task)
            port = agent.server.addresses[0][1]
            fleet.hosts[str(port)] = host
            fleet.ports[str(port)] = port
        ready.set()
        await asyncio.gather(*agents)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield fleet
    finally:
        for life in lives:
            loop.call_soon_threadsafe(life.stop)
        thread.join(60)
        loop.close()


def without_traffic(fleet: Fleet) -> None:
    """Gives each host a loopback that carries no job."""
    for host in fleet.hosts.values():
        for way in ("rx", "tx"):
            path = host.root / f"sys/class/net/lo/statistics/{way}_bytes"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("0\n")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_of(tmp_path, 4) as made:
        yield made


def test_new_hosts_are_proven_against_the_profile_of_a_fleet(fleet: Fleet, tmp_path: Path) -> None:
    """`audit learn` of two hosts, `--hosts NEW --sla FILE` of two others: like ones pass even with warnings that count;
    those that the profile has no role for, or whose limits no test shows, do not."""
    old, new = sorted(fleet.ports)[:2], ",".join(sorted(fleet.ports)[2:])
    code, run, output = fleet.run(names=",".join(old))
    assert run is not None, output
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(run))
    learned = CliRunner().invoke(command, ["learn", str(tmp_path / "run.json")]).output
    sla = tmp_path / "sla.yaml"
    sla.write_text(learned)
    code, run, output = fleet.run("--sla", str(sla), *WARN, names=new)
    assert code == GOOD, output
    for more in ("paths: {least_gbps: 90}\n", "roles: {other: {}}\n"):
        sla.write_text(learned + more if more.startswith("paths") else more)
        code, run, output = fleet.run("--sla", str(sla), *WARN, names=new)
        assert code == FOUND, output
        assert run is not None
        assert {(f.check, f.host) for f in run.findings if f.check == "profile-unproven"} == {
            ("profile-unproven", host) for host in new.split(",")
        }


def test_a_good_fleet_passes_and_one_odd_host_is_named(fleet: Fleet) -> None:
    """Nothing is found on four like hosts; then one has another kernel, and one NIC another MTU."""
    code, run, output = fleet.run()
    assert code == GOOD, output
    assert run is not None
    assert run.findings == ()
    assert {report.host for report in run.hosts} == set(fleet.ports)

    odd = sorted(fleet.hosts)[1]
    fleet.hosts[odd].write("proc/sys/kernel/osrelease", "5.15.0")
    fleet.hosts[odd].net("eth1np0", "mtu", 1500)

    # The agent gives a report that is a second old to whoever asks again: another question has its own.
    def changed() -> bool:
        _, again, _ = fleet.run()
        return again is not None and again.findings != ()

    wait_for(changed, 30, "the change to be found", poll_s=0.5)
    code, run, _ = fleet.run()
    assert code == FOUND
    assert run is not None
    assert {(f.host, f.check, f.subject) for f in run.findings} == {
        (odd, "odd-one-out", ""),
        (odd, "odd-one-out", "eth1np0"),
        (odd, "nic-mtu-same", "eth1np0"),
    }


def test_a_host_whose_clock_is_off_is_named(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the times of its answers, without any time service."""
    bad = next(iter(fleet.ports))

    def audit_with_own_clock(name: str, reader: HostReader) -> HostReport:
        report = audit_host(name, reader)
        is_bad = reader.root == fleet.hosts[bad].root
        return msgspec.structs.replace(report, collected_at=report.collected_at + 40 * is_bad)

    monkeypatch.setattr(agent_module, "audit_host", audit_with_own_clock)
    code, run, output = fleet.run()
    assert run is not None, output
    assert (code, {(f.check, f.host) for f in run.findings}) == (FOUND, {("clock-offset", bad)})
    assert run.findings[0].evidence["direction"] == "ahead"


def test_a_host_that_does_not_answer_is_a_finding(fleet: Fleet) -> None:
    """Nobody listens there: the others are audited all the same."""
    code, run, _ = fleet.run(names=",".join([*fleet.ports, "1"]))
    assert code == FOUND
    assert run is not None
    assert [(f.check, f.host) for f in run.findings] == [("host-silent", "1")]
    assert len(run.hosts) == 4


def test_hosts_from_standard_input(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `kubectl get nodes -o name` writes them: those are asked and no others; an empty list asks nobody."""
    asked = sorted(fleet.ports)[:2]
    for text, hosts in (
        ("".join(f"node/{port}\n" for port in asked), asked),
        ("", None),
        ("x" * (11 << 20), None),
    ):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        # CliRunner puts its own standard input in place: the command itself is called.
        flags = ["run", "--hosts", "-", "--agent-url", "http://127.0.0.1:{host}", "--no-publish"]
        flags += ["--token-file", str(fleet.token_file), "--save", str(fleet.folder / "run.json")]
        if hosts is None:
            with pytest.raises(UserError, match="host list"):
                command.main(flags, standalone_mode=False)
        else:
            command.main(flags, standalone_mode=False)
            run = msgspec.json.decode((fleet.folder / "run.json").read_bytes(), type=Run)
            assert (sorted(run.asked), len(run.hosts)) == (hosts, 2)


def test_a_wrong_token_is_refused_and_reported(fleet: Fleet) -> None:
    """Every host is silent, with the reason; the agents count it."""
    fleet.token_file.with_name("other").write_text("wrong")
    code, run, _ = fleet.run("--token-file", str(fleet.token_file.with_name("other")))
    assert code == FOUND
    assert run is not None
    assert {f.check for f in run.findings} == {"host-silent"}
    assert all("401" in f.summary for f in run.findings)
    port = next(iter(fleet.ports))
    _, body = fetch(f"http://127.0.0.1:{port}/metrics")
    assert b'fabricpulse_audit_refused_requests_total{reason="token"} 1' in body
    assert b"fabricpulse_audit_last_run_timestamp_seconds 0" in body


def test_bad_requests_are_refused(fleet: Fleet) -> None:
    """What is no request of ours, with the token, is 400 and sends nothing; without the token 401, whatever it is."""
    port = next(iter(fleet.ports))
    config = HttpClientConfig(token_file=str(fleet.token_file))
    paths = (
        AUDIT_PATH, ECHO_TESTS_PATH, FINDINGS_PATH, SEND_PATH, RDMA_RECEIVE_PATH, RDMA_SEND_PATH
    )  # fmt: skip
    bodies = (b"", b"{", b'{"rails": 7}', b'{"echo_tests": [{"device": "lo"}]}', b"[" * 100_000)
    for path, body in itertools.product(paths, bodies):
        url = f"http://127.0.0.1:{port}{path}"
        assert fetch(url, config, method="POST", data=body)[0] == 400, (path, body[:40])
        assert fetch(url, method="POST", data=body)[0] == 401, (path, body[:40])


def posted(fleet: Fleet, port: str, path: str, document: object, kind: type[Answer]) -> Answer:
    """What an agent answers."""
    config = HttpClientConfig(token_file=str(fleet.token_file), timeout_s=60)
    url = f"http://127.0.0.1:{port}{path}"
    status, body = fetch(url, config, method="POST", data=msgspec.json.encode(document))
    assert status == 200, body
    return msgspec.json.decode(body, type=kind)


def test_rdma_between_two_agents(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback has no RDMA: both ends say so, and let go of it at once. With a stand-in for the queue pair one
    agent writes to the other."""
    here, there, *_ = fleet.ports
    without_traffic(fleet)
    receive = RdmaReceiveRequest("lo", "127.0.0.1", "127.0.0.1", 0.2)

    def both(rate_bps: int = 10_000_000) -> tuple[RdmaReceiveAnswer, RdmaResult]:
        answer = posted(fleet, there, RDMA_RECEIVE_PATH, receive, RdmaReceiveAnswer)
        port = answer.tcp_port or int(here)
        send = RdmaSendRequest("lo", "127.0.0.1", "127.0.0.1", port, answer.key, rate_bps, 0.2)
        return answer, posted(fleet, here, RDMA_SEND_PATH, send, RdmaResult)

    answer, result = both()
    assert answer.error.startswith("no RDMA")
    assert (result.bps, result.unable) == (None, True)
    assert result.error == answer.error
    pairs: list[StandInPair] = []

    def pair(*_: str) -> StandInPair:
        pairs.append(StandInPair())
        return pairs[-1]

    monkeypatch.setattr(rdma_service, "RdmaListener", partial(RdmaListener, make=pair))
    monkeypatch.setattr(rdma_service, "rdma_send", partial(rdma_send, make=pair))
    for rate_bps, limit_bps in ((10_000_000, 10_000_000), (LIMIT_BPS + 1, LIMIT_BPS)):
        answer, result = both(rate_bps)
        assert (answer.error, result.error) == ("", "")
        assert result.bps is not None
        assert result.limit_bps == limit_bps
    assert len(pairs) == 4
    wait_for(lambda: all(pair.closed for pair in pairs), 10, "both ends to leave nothing")


@pytest.mark.parametrize(
    ("rate_bps", "limit_bps"), [(LIMIT_BPS - 1, LIMIT_BPS - 1), (LIMIT_BPS + 1, LIMIT_BPS)]
)
def test_an_agent_says_that_it_sends_no_faster(fleet: Fleet, rate_bps: int, limit_bps: float) -> None:
    """Or else its NIC would be accused for its settings."""
    here, there, *_ = fleet.ports
    without_traffic(fleet)
    receive = ReceiveRequest("lo", "127.0.0.1", "127.0.0.1", 1, 0.1)
    answer = posted(fleet, there, RECEIVE_PATH, receive, ReceiveAnswer)
    ends = "lo", "127.0.0.1", "127.0.0.1", answer.tcp_port, answer.udp_port, answer.key
    send = SendRequest(*ends, rate_bps, 0.1, streams=1, datagrams=1)
    assert posted(fleet, here, SEND_PATH, send, TransferResult).limit_bps == limit_bps


def test_probes_of_the_loopback(fleet: Fleet) -> None:
    """Echoes are answered by the kernel up to the MTU of the loopback; no such device and no such size are reported."""
    port = next(iter(fleet.ports))
    echo_tests = [
        {"device": "lo", "address": "127.0.0.1", "size": 128},
        {"device": "lo", "address": "127.0.0.1", "size": 60_000},
        {"device": "nosuch0", "address": "127.0.0.1", "size": 128},
        {"device": "lo", "address": "::1", "size": 1280},
    ]
    status, body = fetch(
        f"http://127.0.0.1:{port}{ECHO_TESTS_PATH}",
        HttpClientConfig(token_file=str(fleet.token_file), timeout_s=60),
        method="POST",
        data=json.dumps({"echo_tests": echo_tests}).encode(),
    )
    assert status == 200
    results = json.loads(body)["results"]
    if results[0]["error"] in ("EPERM", "EACCES"):
        pytest.skip("hardware: this user may not send echoes")
    assert [bool(result["answered"]) for result in results[:3]] == [True, True, False]
    assert results[2]["error"] == "ENODEV"


def test_reports_are_kept_bounded_and_the_gate_reads_them(fleet: Fleet, tmp_path: Path) -> None:
    """The newest two stay; the gate is closed by an error, open without, and knows nothing before the first audit."""
    runner = CliRunner()
    assert runner.invoke(command, ["gate", "--state", str(tmp_path / "none")]).exit_code == NOT_KNOWN
    fleet.run()
    names = [path.name for path in (tmp_path / "state0").iterdir()]
    assert "last.json" in names
    assert len(names) <= 3
    opened = runner.invoke(command, ["gate", "--state", str(tmp_path / "state0")])
    assert (opened.exit_code, opened.output) == (GOOD, "open\n")
    # The fleet is compared: what it says of a host closes that host's gate, and no other.
    for number, host in enumerate(fleet.hosts.values()):
        if number == 1:
            host.write("proc/sys/kernel/osrelease", "5.15.0")

    def reported() -> bool:
        fleet.run("--fail-on", "warning")
        return "5.15.0" in runner.invoke(command, ["gate", "--state", str(tmp_path / "state1"), *WARN]).output

    wait_for(reported, 30, "the finding to reach its host", poll_s=0.5)
    # The agent has a name of its own; what it keeps has the one that findings use.
    kept = read(tmp_path / "state1" / "fleet.json", FleetFindings)
    assert {kept.host} == {finding.host for finding in kept.findings}
    assert runner.invoke(command, ["gate", "--state", str(tmp_path / "state1"), *WARN]).exit_code == FOUND
    assert runner.invoke(command, ["gate", "--state", str(tmp_path / "state0"), *WARN]).exit_code == GOOD
    stale = runner.invoke(command, ["gate", "--state", str(tmp_path / "state0"), "--max-age", "1e-9"])
    assert stale.exit_code == NOT_KNOWN


def test_ctrl_c_ends_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    """An agent that never answers: SIGINT ends the requests at once, with what has come."""
    received = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    port: list[int] = []
    closed = threading.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        received.set()
        while await reader.read(1 << 16):
            pass
        closed.set()
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        port.append(server.sockets[0].getsockname()[1])
        async with server:
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        wait_for(lambda: bool(port), 30, "a port")
        arguments = ["audit", "run", "--hosts", "a", "--agent-url", f"http://127.0.0.1:{port[0]}/{{host}}"]
        code = "from fabricpulse.core.cli import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-Ic", code, *arguments, "--host-timeout", "600", "--output", "json"],
            stdout=subprocess.PIPE,
            env=dict(os.environ),
        )
        assert received.wait(60)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 1
        assert json.loads(output)["cancelled"] is True
        assert closed.wait(60)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        loop.close()


def test_client_error_is_the_reason(tmp_path: Path) -> None:
    """No traceback for a host whose name does not resolve."""
    result = CliRunner().invoke(command, ["run", "--hosts", "no-such-host.invalid", "--output", "json"])
    assert result.exit_code == FOUND
    [finding] = json.loads(result.stdout)["findings"]
    assert finding["check"] == "host-silent"
