"""What was not measured has not passed, and accuses nobody."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from fabricpulse.audit.compare.runs import run_of
from fabricpulse.audit.fleet import measure as measure_module
from fabricpulse.audit.fleet import paths
from fabricpulse.audit.fleet.measure import Measured, Plan, measure
from fabricpulse.audit.fleet.run import AgentError, Target
from fabricpulse.audit.fleet.stage import MOST_SILENT, Fleet
from fabricpulse.audit.model import FleetFindings, HostReport, Run, Value
from fabricpulse.audit.node.wire import (
    EchoResult,
    EchoTest,
    ReceiveAnswer,
    Received,
    RingAnswer,
    RingRequest,
    SendRequest,
    TransferResult,
)
from fabricpulse.audit.pair_tests.path_tests import plan_rails
from fabricpulse.audit.pair_tests.transfer_tests import Transfers, untested_findings
from fabricpulse.audit.report.gate import gate
from fabricpulse.audit.report.labels import node_labels
from fabricpulse.core.config import parse_config
from fabricpulse.core.fleet.membership import Membership
from fabricpulse.core.web.client_config import HttpClientConfig

RATE = 10e9
GOOD_ECHO = EchoResult(2, 2, rtt_s=1e-4)


def good(owd_ns: int | None = 20_000, **fields: Any) -> TransferResult:
    received = Received(2000, owd_ns=owd_ns, owd_bound_ns=500)
    return TransferResult(2000, received, **({"bps": 0.97 * RATE, "limit_bps": float(RATE)} | fields))


ONE_WAY = Transfers(duplex=False)


class PlayedAgents:
    """Answers in place of the agents of hosts with one NIC. sends : of a sender and a receiver. echoes : of a host and
    a test. dead : hosts that answer so many requests of transfers, and then none. ring : of a rank."""

    def __init__(
        self,
        hosts: int,
        sends: Callable[[str, str], TransferResult] = lambda _a, _b: good(),
        echoes: Callable[[str, EchoTest], EchoResult] = lambda _host, _test: GOOD_ECHO,
        dead: dict[str, int] | None = None,
        ring: Callable[[str], RingAnswer] = lambda _host: RingAnswer(5e9, 9),
    ) -> None:
        self.names = [f"h{n}" for n in range(hosts)]
        self.sends, self.echoes, self.ring = sends, echoes, ring
        self.dead = dict(dead or {})

    async def send_echoes(
        self, _client: Any, target: Target, tests: Sequence[EchoTest]
    ) -> tuple[EchoResult, ...]:
        return tuple(self.echoes(target.host, test) for test in tests)

    async def ask(
        self,
        fleet: Fleet,
        _client: Any,
        host: str,
        _path: str,
        document: Any,
        kind: Any,
        _patience_s: float,
        _peer: str = "",
    ) -> Any:
        if host in self.dead:
            self.dead[host] -= 1
            if self.dead[host] < 0:
                fleet.silence.unanswered(host)
                raise AgentError("cannot connect")
        fleet.silence.answered(host)
        if isinstance(document, RingRequest):
            return self.ring(host)
        if isinstance(document, SendRequest):
            return self.sends(host, f"h{int(document.peer.rpartition('.')[2]) - 1}")
        assert kind is ReceiveAnswer
        return ReceiveAnswer(1, 2, "0" * 32)


def audited(
    monkeypatch: pytest.MonkeyPatch,
    agents: PlayedAgents,
    *,
    transfers: Transfers | None = ONE_WAY,
    ring_s: float = 0.0,
    silent: Sequence[str] = (),
    mtu: str = "9000",
) -> Run:
    """A run over these agents. silent : hosts that have not answered at all. mtu : that hosts report, "" for none."""
    nics = [
        {"name": h, "nics": [{"device": "e0", "address": f"10.0.0.{n}", "network": "r"}]}
        for n, h in enumerate(agents.names, 1)
    ]
    fleet = parse_config(msgspec.json.encode({"hosts": nics}).decode(), Membership, "x")
    own = (Value("mtu", "host: r", "e0", mtu),) if mtu else ()
    reports = [HostReport(h, 1.0, 1.0, (), own) for h in agents.names if h not in silent]
    rails = plan_rails(fleet, {report.host for report in reports}, {})
    plan = Plan(rails=rails, transfers=transfers, ring_s=ring_s, order=agents.names)
    monkeypatch.setattr(paths, "send_echoes", agents.send_echoes)
    monkeypatch.setattr(Fleet, "ask", lambda *asked: agents.ask(*asked))  # noqa: PLW0108 - not bound to a fleet
    targets = [Target(report.host, "http://x", {}) for report in reports]
    found: Measured = asyncio.run(measure(plan, targets, HttpClientConfig(), reports, lambda _measured: None))
    return run_of(
        reports,
        dict.fromkeys(silent, "no answer in time"),
        None,
        "",
        tuple(agents.names),
        1.0,
        1.0,
        more=found.findings,
        notes=tuple(found.notes),
        measurements=found.measurements,
    )


def said(run: Run) -> set[tuple[str, str, str]]:
    return {(f.check, f.host, f.subject) for f in run.findings}


def states(run: Run) -> dict[str, str]:
    return {label.host: label.state for label in node_labels(run) if label.state != "passed"}


def test_a_good_fleet_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is untested where all is measured."""
    run = audited(monkeypatch, PlayedAgents(6), ring_s=1.0)
    assert (said(run), states(run)) == (set(), {})


def test_a_host_that_dies_amid_the_transfers_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first tests were good; it has not passed, and nobody else is accused."""
    run = audited(monkeypatch, PlayedAgents(8, dead={"h3": 3}))
    assert said(run) == {("host-silent", "h3", ""), ("path-untested", "h3", "e0")}
    assert states(run) == {"h3": "unknown"}


class PoweredOff(PlayedAgents):
    """One of its hosts loses its power after so many echoes and requests of all hosts."""

    def __init__(self, hosts: int, host: str, after: int) -> None:
        self.host, self.left = host, after
        lost = TransferResult(2000, error="timed out")
        super().__init__(hosts, lambda _, peer: lost if self.is_off and peer == host else good())

    @property
    def is_off(self) -> bool:
        return self.left < 0

    async def send_echoes(
        self, client: Any, target: Target, tests: Sequence[EchoTest]
    ) -> tuple[EchoResult, ...]:
        results = []
        for test in tests:
            self.left -= 1
            if self.is_off and target.host == self.host:
                raise AgentError("no answer in time")
            lost = self.is_off and f"h{int(test.address.rpartition('.')[2]) - 1}" == self.host
            results.append(EchoResult(2, 0) if lost else GOOD_ECHO)
        return tuple(results)

    async def ask(self, fleet: Fleet, client: Any, host: str, *more: Any) -> Any:
        self.left -= 1
        if self.is_off:
            self.dead[self.host] = 0
        return await super().ask(fleet, client, host, *more)


@pytest.mark.parametrize("hosts", [4, 9])
def test_a_host_that_loses_its_power_is_all_that_is_found(
    hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any moment of the echoes and transfers: nobody reaches it any more, some had. Single paths to it are no
    finding, no other host is doubted."""
    found = []
    for after in range(2, 20 * hosts, 5):
        agents = PoweredOff(hosts, "h3", after)
        run = audited(monkeypatch, agents, transfers=Transfers())
        if agents.is_off:
            assert {f.host for f in run.findings} == {"h3"}, (after, said(run))
            assert states(run).keys() == {"h3"}, after
            found.append(after)
    assert len(found) > 5


def test_a_host_that_was_silent_once_has_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer times than it takes to give it up, at the end: it may have died, and is not known to have."""
    monkeypatch.setattr(measure_module, "untested_findings", lambda reasons, _front: list(reasons.items()))
    fleet = Fleet({}, HttpClientConfig(), Any, {}, asyncio.Event())  # type: ignore[arg-type]
    for host, times in (("h1", 1), ("h2", MOST_SILENT)):
        for _ in range(times):
            fleet.silence.unanswered(host)
    untested: dict[tuple[str, str], str] = {}
    assert [f.host for f in measure_module._fell_silent(fleet, untested)] == ["h2"]
    assert list(untested) == [("h1", "")]


@pytest.mark.parametrize("transfers", [None, Transfers()])
@pytest.mark.parametrize(("hosts", "silent"), [(1, ()), (2, ("h1",))])
def test_a_nic_without_a_partner_has_not_passed(
    hosts: int, silent: tuple[str, ...], transfers: Transfers | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet of one, or whose other host is silent."""
    run = audited(monkeypatch, PlayedAgents(hosts), transfers=transfers, silent=silent, ring_s=1.0)
    assert ("path-untested", "h0", "e0") in said(run)
    assert states(run)["h0"] == "unknown"
    # A ring of one is none.
    assert [(f.host, f.severity) for f in run.findings if f.check == "nccl-untested"] == [("h0", "warning")]
    assert all(f.check != "nccl-ring" for f in run.findings)


@pytest.mark.parametrize("error", ["EPERM", "EACCES", "EMFILE"])
def test_an_agent_that_may_send_no_echo_accuses_no_nic(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is healthy: what is to be corrected is the agent."""
    agents = PlayedAgents(6, echoes=lambda host, _: EchoResult(0, 0, error) if host == "h3" else GOOD_ECHO)
    run = audited(monkeypatch, agents, transfers=None)
    assert said(run) == {("path-untested", "h3", "e0")}
    assert error in run.findings[0].summary
    # A firewall of the host lets none out that was sent: that is a fault.
    agents = PlayedAgents(6, echoes=lambda host, _: EchoResult(3, 0, error) if host == "h3" else GOOD_ECHO)
    assert ("path-connectivity", "h3", "e0") in said(audited(monkeypatch, agents, transfers=None))


def test_a_host_that_reports_no_mtu_has_not_passed_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """No full-size packet is sent by it."""
    run = audited(monkeypatch, PlayedAgents(4), transfers=None, mtu="")
    assert {f.check for f in run.findings} == {"path-untested"}
    assert all("MTU" in f.summary for f in run.findings)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (good(bps=1e9, starved=0.95), "bandwidth: a host was busy"),
        (good(owd_ns=None), "one-way delay: it or its partners have no fleet time"),
        (good(limit_bps=1e9, bps=0.98e9), "transfer_mbit_s"),
        (good(bps=None), "bandwidth"),
    ],
)
def test_a_nic_of_which_nothing_is_decided_has_not_passed(
    bad: TransferResult, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its tests is spoilt by a busy host; it has no fleet time, and others do; its agent is set to send less
    than was asked for; too little came. Nobody is accused."""
    run = audited(monkeypatch, PlayedAgents(8, lambda a, b: bad if "h3" in (a, b) else good()))
    assert said(run) == {("path-untested", "h3", "e0")}
    assert text in run.findings[0].summary
    assert states(run) == {"h3": "unknown"}


def test_a_limit_of_the_agent_excuses_no_more_than_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what the agent may send is slow; where all agents have the same limit NICs are compared with one another,
    and what others send to it is judged as ever."""
    slow = PlayedAgents(8, lambda a, _: good(limit_bps=4e9, bps=2e9) if a == "h3" else good())
    assert said(audited(monkeypatch, slow)) == {("path-bandwidth", "h3", "e0")}
    alike = PlayedAgents(8, lambda _a, _b: good(limit_bps=1e9, bps=0.98e9))
    assert said(audited(monkeypatch, alike)) == set()
    received = PlayedAgents(
        8,
        lambda a, b: good(limit_bps=1e9, bps=0.98e9) if a == "h3" else good(bps=2e9) if b == "h3" else good(),
    )
    run = audited(monkeypatch, received)
    assert said(run) == {("path-bandwidth", "h3", "e0")}
    assert "that it is sent is slow" in run.findings[0].summary


def test_an_agent_that_states_no_limit_is_not_accused_by_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of an older release: all that it sends may be slow by `transfer_mbit_s`, and is not known; what it is sent is
    judged, and so is a slow way of one that was seen to send more."""

    def old(**more: Any) -> TransferResult:
        return good(limit_bps=None, **more)

    run = audited(monkeypatch, PlayedAgents(8, lambda a, _: old(bps=1e9) if a == "h3" else good()))
    assert said(run) == {("path-untested", "h3", "e0")}
    assert "older release" in run.findings[0].summary
    assert said(audited(monkeypatch, PlayedAgents(8, lambda _a, _b: old()))) == set()
    received = PlayedAgents(8, lambda _, b: old(bps=1e9 if b == "h3" else 0.97 * RATE))
    assert said(audited(monkeypatch, received)) == {("path-bandwidth", "h3", "e0")}


def test_the_gate_lists_what_was_not_tested() -> None:
    """It closes for none of it, as a NIC that carries a job is not tested; asked to be strict it does not know."""
    report = HostReport("h1", 1000.0, 1.0, (), ())
    [untested] = untested_findings({("h1", "e0"): "loss: a host was busy"})
    worn = msgspec.structs.replace(untested, check="cpu-governor")
    fleet = FleetFindings("x", 1000.0, (untested, worn))
    answer = gate(report, 1001.0, 60, fleet=fleet)
    assert (answer.open, answer.unknown) == (True, ("path-untested e0: not tested: loss: a host was busy",))
    assert gate(report, 1001.0, 60, fleet=fleet, strict=True).open is None
    assert gate(report, 1001.0, 60, fleet=fleet, strict=True, ignore=("path-untested",)).open is True


def test_two_hosts_far_below_the_rate_have_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few to say what is usual: both are unknown."""
    run = audited(monkeypatch, PlayedAgents(2, lambda _a, _b: good(bps=50e6)))
    assert said(run) == {("path-untested", "h0", "e0"), ("path-untested", "h1", "e0")}
    assert states(run) == {"h0": "unknown", "h1": "unknown"}


def test_a_bad_path_accuses_neither_end_and_passes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are good with all others; what lies between them is not theirs."""
    run = audited(
        monkeypatch, PlayedAgents(4, lambda a, b: good(bps=1e9 if (a, b) == ("h0", "h2") else 0.97 * RATE))
    )
    [finding] = run.findings
    assert (finding.check, finding.host, finding.subject) == ("path-bandwidth", "", "h0 e0 > h2 e0")
    assert (finding.suspects, finding.evidence["blame"]) == (("h0", "h2"), "path")
    assert states(run) == {"h0": "unknown", "h2": "unknown"}


def test_rings_that_do_not_run_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, for a host whose NCCL cannot load its plugin."""
    agents = PlayedAgents(4, ring=lambda host: RingAnswer(error="init returned 2" if host == "h1" else ""))
    run = audited(monkeypatch, agents, ring_s=1.0)
    [finding] = run.findings
    assert (finding.check, finding.severity, finding.suspects) == ("nccl-ring", "error", ("h1",))
    assert "init returned 2" in finding.summary
    assert states(run) == {"h1": "unknown"}
