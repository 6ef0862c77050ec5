"""The diagnosis in a process of its own: what is handed over, and what happens when it dies."""

import asyncio
import os
import signal
import time

import msgspec
import pytest
from tests.fixtures.waiting import until
from tests.unit.diagnosis.test_fault_alerts import LINK
from tests.unit.diagnosis.test_fleet_evidence import EDGES, LEAF, PORTS

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.supervision import TaskFailedError, supervised
from fabricpulse.diagnosis.daemon.alerts import FaultAlerting
from fabricpulse.diagnosis.daemon.process import DiagnosisProcess
from fabricpulse.diagnosis.daemon.service import DiagnosisService
from fabricpulse.diagnosis.daemon.switch_names import SwitchNaming
from fabricpulse.diagnosis.daemon.worker import EvidenceClock, tried
from fabricpulse.diagnosis.daemon.worker_messages import Answer, Declared, Frames, Report, frame
from fabricpulse.diagnosis.evidence.fleet_evidence import FleetEvidence
from fabricpulse.diagnosis.search.suspect import Suspect
from fabricpulse.diagnosis.wire.messages import (
    PROTOCOL,
    EdgeName,
    EvidenceReport,
    FlowEvidence,
    FlowPath,
    HostFacts,
    pack_flows,
)
from fabricpulse.diagnosis.wire.queue_pairs import QueuePairPath

FIRST = EvidenceReport(PROTOCOL, "h0", 1, PORTS, 90.0, 20.0, b"", False, EDGES["h0"])
LATER = EvidenceReport(PROTOCOL, "h0", 1, PORTS, 90.0, 20.0, pack_flows([FlowEvidence(0, 1, False, 9, 2)]))


@pytest.mark.parametrize("size", [1, 3, 4, 5, 1000])
def test_frames_may_be_cut_anywhere(size: int) -> None:
    """Pieces of any size give the same messages."""
    messages = [Answer(hosts=number, flows=number**5) for number in range(20)]
    data = b"".join(map(frame, messages))
    frames = Frames()
    bodies = [body for at in range(0, len(data), size) for body in frames.feed(data[at : at + size])]
    assert bodies == [frame(message)[4:] for message in messages]


def test_a_worker_that_dies_is_replaced() -> None:
    """It answers with the flows that were reported; killed, it is started again, knows nothing, and takes reports."""

    async def play() -> None:
        process = DiagnosisProcess(Declared(LEAF, {}), lambda _: None)
        task = asyncio.create_task(process.run())
        try:
            assert not process.put(Report(time.monotonic(), FIRST)), "no worker has been started yet"
            await until(lambda: process.put(Report(time.monotonic(), FIRST)))
            assert process.put(Report(time.monotonic(), None, {"10.0.0.1": "spine1"}))
            await until(lambda: process.answer.flows == len(EDGES["h0"]) * PORTS)
            assert (process.answer.hosts, process.starts) == (1, 1)
            os.kill(process.pid, signal.SIGKILL)
            await until(lambda: process.starts == 2)
            assert process.answer == Answer(suspects=None, failed=True)
            assert process.put(Report(time.monotonic(), FIRST))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(play(), 120))


class Worker:
    """Takes what it is given, or not."""

    def __init__(self) -> None:
        self.taken: list[EvidenceReport] = []
        self.names: list[dict[str, str]] = []
        self.starts, self.busy = 1, False
        self.answer = Answer()

    def put(self, report: Report) -> bool:
        if not self.busy and report.report is not None:
            self.taken.append(report.report)
        if not self.busy and report.names:
            self.names.append(report.names)
        return not self.busy

    def want(self) -> None:
        """Is there already."""


@pytest.fixture
def service(monkeypatch) -> DiagnosisService:
    made = DiagnosisService(Declared({}, {}), lambda _: True)
    monkeypatch.setattr(made, "process", Worker())
    return made


def test_edges_are_asked_for(service) -> None:
    """By who never reported, has another revision, has not reported for long, or whose worker has died."""
    assert service.take(LATER, 0.0)
    assert not service.take(FIRST, 1.0)
    assert not service.take(LATER, 2.0)
    assert service.take(EvidenceReport(PROTOCOL, "h0", 2, PORTS, 90.0, 20.0, b""), 3.0)
    assert service.take(LATER, 100.0)
    assert not service.take(FIRST, 101.0)
    service.process.starts = 2
    assert service.take(LATER, 102.0)
    assert service.process.taken == [FIRST, LATER, FIRST]


def test_an_exporter_that_is_started_anew_begins_with_no_leaves(service) -> None:
    """What the one before it has read by LLDP may be true no more. Reports between the two leave them as they are."""
    evidence = FleetEvidence()
    path = QueuePairPath("rail0", "h1", "rail0", 0xC000, (1,), ("train-7",), ("l0", "s0", "l1"))
    begun = msgspec.structs.replace(FIRST, leaves=(("rail0", "leaf7"),), queue_pairs=(path,))
    anew = msgspec.structs.replace(FIRST, revision=2, queue_pairs=(path,))
    crossed = []
    for at_s, report in enumerate((begun, LATER, anew)):
        service.reply(report, float(at_s))
        evidence.report(report, float(at_s))
        found = service.queue_pairs.crossing("switch", "leaf7", "", {})
        crossed.append((found.paths, dict(evidence._leaf_of())))
    assert crossed == [(1, {"h0/rail0": "leaf7"}), (1, {"h0/rail0": "leaf7"}), (0, {})]


def test_switches_that_reports_show_get_names(monkeypatch) -> None:
    """Those that are not declared; a worker that is started anew gets them again."""
    made = DiagnosisService(
        Declared({}, {"10.0.0.9": "spine9"}), lambda _: True, naming=SwitchNaming(dns=True)
    )
    worker = Worker()
    monkeypatch.setattr(made, "process", worker)
    path = FlowPath(0, 1, ("10.0.0.1", "", "10.0.0.9"))
    made.take(msgspec.structs.replace(FIRST, paths=(path,)), 1.0)
    made._names.take("10.0.0.1", "spine1")
    assert made._names._wanted.get(block=False) == "10.0.0.1"
    assert made._names._wanted.empty()
    made._names.deliver()
    worker.starts = 2
    made.take(FIRST, 2.0)
    made._names.deliver()
    assert worker.names == 2 * [{"10.0.0.1": "spine1"}]


def test_a_busy_worker_loses_nothing(service) -> None:
    """What cannot be handed over counts as not received: the exporter adds it to its next report."""
    assert not service.take(FIRST, 1.0)
    service.process.busy = True
    assert service.take(LATER, 2.0)
    service.process.busy = False
    assert not service.take(LATER, 3.0)
    assert service.process.taken == [FIRST, LATER]


def test_a_round_that_fails_ends_no_fault(service, monkeypatch) -> None:
    """For a minute; after it nothing is known. The collector has failed all the time."""
    moment = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])

    def answered(now_s: float, answer: Answer) -> tuple[int, bool]:
        moment[0], service.process.answer = now_s, answer
        service._answered(answer)
        out = Exposition(1000)
        service.write(out)
        works = 'fabricpulse_scrape_collector_success{collector="diagnosis"} 1'
        return len(service.suspects), works in out.render(TextFormat.PLAIN).decode()

    found, failed = Answer(suspects=(LINK,)), Answer(suspects=None, failed=True)
    assert answered(100.0, found) == (1, True)
    assert answered(101.0, failed) == (1, False)
    assert answered(161.0, failed) == (0, False)
    assert answered(162.0, found) == (1, True)
    # Leaves alone are unknown.
    assert answered(163.0, Answer(suspects=(), failed=True)) == (0, False)
    # A worker that hangs answers nothing more.
    assert answered(164.0, found) == (1, True)
    moment[0] = 225.0
    out = Exposition(1000)
    service.write(out)
    assert 'success{collector="diagnosis"} 0' in out.render(TextFormat.PLAIN).decode()


def test_a_part_of_a_round_that_fails() -> None:
    """The other is not lost."""

    def broken(now_s: float) -> tuple[Suspect, ...]:
        raise IndexError(now_s)

    assert tried(broken, 1.0) is None
    assert tried(lambda now_s: now_s, 1.0) == 1.0


def test_the_moment_of_the_evidence() -> None:
    """The real one, but while reports wait that of the last that was taken; never before an earlier one."""
    clock = EvidenceClock()
    assert clock.now_s(100.0, 99.0, behind=False) == 100.0
    assert clock.now_s(130.0, 104.0, behind=True) == 104.0
    assert clock.now_s(131.0, 103.0, behind=True) == 104.0
    assert clock.now_s(132.0, 120.0, behind=False) == 132.0


@pytest.mark.parametrize(
    "report",
    [
        EvidenceReport(PROTOCOL, "h0", 1, PORTS, 90.0, 20.0, pack_flows([FlowEvidence(999, 1, False, 9, 2)])),
        EvidenceReport(PROTOCOL, "h0", 1, PORTS, 90.0, 20.0, b"12345"),
        EvidenceReport(PROTOCOL, "h0", 1, 99, 90.0, 20.0, b"", False, EDGES["h0"]),
        EvidenceReport(PROTOCOL, "h0", 1, PORTS, 0.0, 20.0, b"", False, (EdgeName("a", "b", "c"),)),
        EvidenceReport(PROTOCOL, "h0", 1, PORTS, 1e-300, 20.0, b"", False, (EdgeName("a", "b", "c"),)),
        EvidenceReport(PROTOCOL, "h0", 1, PORTS, 90.0, 1e-300, b"", False, (EdgeName("a", "b", "c"),)),
        EvidenceReport(PROTOCOL, "h" * 96, 1, PORTS, 90.0, 20.0, b"", False, (EdgeName("a", "b", "c"),)),
        EvidenceReport(PROTOCOL, "h0", 1, PORTS, 90.0, 20.0, b"", False, (EdgeName("a" * 32, "b", "c"),)),
        EvidenceReport(PROTOCOL, "h0", 1, PORTS, 90.0, 20.0, b"", False, (EdgeName("a", "ß" * 48, "c"),)),
        EvidenceReport(PROTOCOL, "h0", 1, PORTS, 90.0, 20.0, b"", temporary=(EdgeName("a", "b", "c" * 32),)),
        EvidenceReport(PROTOCOL, "h0", 1, PORTS, 90.0, 20.0, b"", moved=("c" * 32,)),
        EvidenceReport(
            PROTOCOL, "h0", 1, PORTS, 90.0, 20.0, b"", False, (), facts=HostFacts((("eth0", "n" * 32),))
        ),
    ],
)
def test_nonsense_never_reaches_the_worker(service, report) -> None:
    """It is refused where it comes in."""
    assert not service.take(FIRST, 1.0)
    with pytest.raises(ValueError, match=r"exist|cut|more than|rates|bytes"):
        service.take(report, 2.0)
    assert service.process.taken == [FIRST]


@pytest.mark.parametrize(
    ("part", "named"), [("process", "diagnosis"), ("pusher", "alerts for http://127.0.0.1:9")]
)
async def test_a_part_that_ends_by_itself_ends_the_daemon(monkeypatch, part, named) -> None:
    """What returns in silence would leave a coordinator that finds nothing for ever."""
    service = DiagnosisService(
        Declared({}, {}), lambda _: True, FaultAlerting(alertmanagers=("http://127.0.0.1:9",))
    )

    async def ends(*_) -> None:
        pass

    async def goes_on(*_) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(service.process, "run", ends if part == "process" else goes_on)
    monkeypatch.setattr(service.pusher, "serve", ends if part == "pusher" else goes_on)

    async def serve() -> None:
        try:
            async with supervised(Lifetime()) as tasks:
                await service.start(tasks)
                await asyncio.Event().wait()
        finally:
            await service.close()

    with pytest.raises(TaskFailedError, match=f"{named} of this daemon ended by itself"):
        await asyncio.wait_for(serve(), 30)
