"""What the worker that diagnoses holds of a fleet: all edges, all paths, delays, and two minutes of losses."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from tests.bench.map.fabric import MAIN_RATE, PORTS, SWEEP_RATE, Clos
from tests.bench.rows import Rows, cpu_seconds

from fabricpulse.diagnosis.daemon.process import ENVIRONMENT
from fabricpulse.diagnosis.daemon.worker_messages import Answer, Declared, Frames, Report, frame
from fabricpulse.diagnosis.flows.components import NO_HOP
from fabricpulse.diagnosis.wire.messages import (
    PROTOCOL,
    EdgeName,
    EvidenceReport,
    FlowEvidence,
    FlowPath,
    HostFacts,
    LeastDelay,
    pack_delays,
    pack_flows,
)

_LOSSES_S, _WATCHED_S, _LATE_S = 115, 25, 60
_ROUND_S = 8.0
# How long delays count, shorter than usual: the tree is computed after three tenths of it.
_KEEP_S = 100.0
_MUST = "<= 500"
_NOTHING = Answer()


class _Fleet:
    """A fabric, and what its hosts tell. Leaves are declared, and addresses have names; each switch answers with the
    address of the port that a packet came in by.
    """

    def __init__(self, clos: Clos, seed: int) -> None:
        self.clos = clos
        self.rng = np.random.default_rng(seed)
        self.source, self.destination, self.hops = clos.hops(self.rng)
        self.first = np.searchsorted(self.source, np.arange(clos.hosts + 1))
        before = np.concatenate(
            [np.full((len(self.hops), 1), clos.nodes, np.int32), self.hops[:, :-1]], axis=1
        )
        port = before.astype(np.int64) << 32 | np.maximum(self.hops, 0)
        port[self.hops == NO_HOP] = -1
        ports, number = np.unique(port, return_inverse=True)
        self.port = number.reshape(self.hops.shape)
        self.addresses = [f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(len(ports))]
        switch = (ports & (1 << 32) - 1).tolist()
        self.declared = Declared(
            {f"{self.name(n)}/eth1": self.switch(self.leaf(n)) for n in range(clos.hosts)},
            {address: self.switch(node) for address, node in zip(self.addresses, switch, strict=True)},
            keep_s=_KEEP_S,
            share_machines=False,
        )

    @staticmethod
    def name(host: int) -> str:
        """Of a host."""
        return f"gpu-{host:05}.pod.example"

    @staticmethod
    def switch(node: int) -> str:
        """Of a switch."""
        return f"switch-{node:05}"

    def leaf(self, host: int) -> int:
        """As a node."""
        return self.clos.hosts + host % self.clos.leaves

    def flows(self, host: int) -> slice:
        """Those that it sends; its edges are in the same order."""
        return slice(int(self.first[host]), int(self.first[host + 1]))

    def report(
        self, host: int, flows: bytes = b"", delays: bytes = b"", whole: bool = False
    ) -> EvidenceReport:
        """whole : with edges and paths."""
        edges, paths = None, []
        if whole:
            mine = self.flows(host)
            peers = self.destination[mine][::PORTS].tolist()
            edges = tuple(EdgeName("eth1", self.name(peer), "eth1") for peer in peers)
            for number, row in enumerate(self.port[mine].tolist()):
                hops = tuple(self.addresses[n] for n in row if n)
                if len(hops) > 1:
                    paths.append(FlowPath(*divmod(number, PORTS), hops))
        return EvidenceReport(
            *(PROTOCOL, self.name(host), 1, PORTS, MAIN_RATE, SWEEP_RATE, flows, False, edges, tuple(paths)),
            delays=delays,
            facts=HostFacts((("eth1", "rail1"),), False) if whole else None,
        )

    def delays(self, host: int) -> bytes:
        """Least delays of all edges: longer by a microsecond for each switch."""
        hops = (self.hops[self.flows(host)][::PORTS] != NO_HOP).sum(axis=1)
        return pack_delays(LeastDelay(n, 3000, 4000 + 1000 * h) for n, h in enumerate(hops.tolist()))

    def lost(self, leaf: int) -> Iterator[tuple[int, bytes]]:
        """Hosts that lose packets as a leaf is dead, and what they tell of a second."""
        hit = np.flatnonzero((self.hops == leaf).any(axis=1))
        edges = zip(self.source[::PORTS].tolist(), self.destination[::PORTS].tolist(), strict=True)
        place = {edge: PORTS * number for number, edge in enumerate(edges)}
        of: dict[int, list[FlowEvidence]] = {}
        for flow in hit.tolist():
            near, far = int(self.destination[flow]), int(self.source[flow])
            edge = (place[near, far] - int(self.first[near])) // PORTS
            sent = round(SWEEP_RATE if flow % PORTS else MAIN_RATE)
            of.setdefault(near, []).append(FlowEvidence(edge, flow % PORTS, False, sent, sent))
        for host, flows in of.items():
            yield host, pack_flows(flows)


@dataclass
class _Worker:
    """The worker, its answers, and what it has used. A moment of the fleet's is one of this machine's."""

    process: subprocess.Popen[bytes]
    answers: list[Answer] = field(default_factory=list)

    @classmethod
    def started(cls, declared: Declared) -> "_Worker":
        worker = cls(
            subprocess.Popen(
                [sys.executable, "-I", "-m", "fabricpulse.diagnosis.daemon.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **ENVIRONMENT},
            )
        )
        threading.Thread(target=worker._read, daemon=True).start()
        worker.put(declared)
        return worker

    def _read(self) -> None:
        frames, decoder = Frames(), msgspec.msgpack.Decoder(Answer)
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 1 << 16):
            self.answers.extend(decoder.decode(body) for body in frames.feed(data))

    def put(self, message: msgspec.Struct) -> None:
        """Hands a frame over."""
        assert self.process.stdin is not None
        self.process.stdin.write(frame(message))

    def tell(self, report: EvidenceReport, at_s: float | None = None) -> None:
        """Hands a report over."""
        self.put(Report(time.monotonic() if at_s is None else at_s, report))

    @property
    def answer(self) -> Answer:
        """The last one."""
        return self.answers[-1] if self.answers else _NOTHING

    def now_mb(self) -> tuple[float, float]:
        """Just now: of the worker and the fork that computes the tree together, what they share once; and what the fork
        has of its own.
        """
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        own = [_memory_mb(int(child), "Private_") for child in children]
        return sum(_memory_mb(one, "Pss:") for one in (pid, *map(int, children))), sum(own)

    def peak_mb(self) -> int:
        """Most resident memory so far."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // 1024

    def end(self) -> None:
        """Closes its input and waits."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def _memory_mb(pid: int, what: str) -> float:
    """The lines of `smaps_rollup` that begin so; 0 of a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


class _Reporter:
    """A fleet that tells its worker that it is there, and of its delays, in time."""

    def __init__(self, fleet: _Fleet, worker: _Worker) -> None:
        self.fleet, self.worker = fleet, worker
        self.hosts = 0  # that have reported their edges
        self.together_mb = self.survey_mb = 0.0
        self._next_s = time.monotonic() + _ROUND_S

    def whole(self) -> None:
        """Edges and paths of all hosts."""
        for host in range(self.fleet.clos.hosts):
            self.worker.tell(self.fleet.report(host, whole=True))
            self.hosts = host + 1
            self.rest()

    def rest(self) -> None:
        """What is due in between."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _ROUND_S
        self._look()
        for host in range(self.hosts):
            self.worker.tell(self.fleet.report(host, delays=self.fleet.delays(host)))

    def until(self, what: Callable[[Answer], bool], limit_s: float) -> bool:
        """Goes on until an answer is so. Returns whether one was."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            if what(self.worker.answer):
                return True
            self._look()
            time.sleep(0.2)  # the pace of a poll with a limit
            self.rest()
        return False

    def _look(self) -> None:
        together_mb, survey_mb = self.worker.now_mb()
        self.together_mb = max(self.together_mb, together_mb)
        self.survey_mb = max(self.survey_mb, survey_mb)


def bench_memory(rows: Rows, hosts: int, seed: int, limit_s: float = 600.0) -> None:
    """Most memory of the worker of `hosts` hosts: as all is reported, and amid a dead leaf."""
    leaves = max(hosts * 1024 // 50_000, 8)
    fleet = _Fleet(Clos(hosts=hosts, leaves=leaves, pods=max(leaves // 32, 1)), seed)
    case = f"{hosts:,} hosts, {len(fleet.source):,} flows, all paths and delays reported"
    worker = _Worker.started(fleet.declared)
    reporter = _Reporter(fleet, worker)
    reporter.until(lambda answer: answer is not _NOTHING, limit_s)
    bare_mb = worker.peak_mb()
    began_s = cpu_seconds(worker.process.pid)
    reporter.whole()
    there = reporter.until(
        lambda answer: answer.flows == len(fleet.source) and answer.reports >= hosts, limit_s
    )
    spent_s = cpu_seconds(worker.process.pid) - began_s
    paths = worker.answer.paths
    # Until the paths are in the table, and three slots of delays in the tree.
    reporter.until(lambda _: False, 15.0 + len(fleet.source) / 100_000 + 0.4 * _KEEP_S)
    rows.report(case, "reported", float(there), "yes", "== 1", paths=paths, spent_s=round(spent_s, 1))
    rounds = [answer.took_s for answer in worker.answers]
    rows.report(case, "memory_mb", worker.peak_mb(), "MB", _MUST, of="the worker", bare=bare_mb)
    quiet = len(rounds)
    leaf = fleet.leaf(0)
    lost = list(fleet.lost(leaf))
    next_s = time.monotonic() - _LOSSES_S
    end_s = time.monotonic() + _WATCHED_S

    def named() -> bool:
        return any(suspect.component == fleet.switch(leaf) for suspect in worker.answer.suspects or ())

    # On a busy machine a round takes seconds, and the pauses between rounds four times as long.
    while next_s < end_s or (next_s < end_s + _LATE_S and not named()):
        for host, flows in lost:
            worker.tell(fleet.report(host, flows), next_s)
            # A host that was last received when it lost these long ago would be taken for away.
            worker.tell(fleet.report(host))
        next_s += 1.0
        reporter.until(lambda _: False, next_s - time.monotonic())
    found = named()
    case = f"the same, {_LOSSES_S} s of a dead leaf, {sum(len(f) // 12 for _, f in lost):,} flows lose all"
    rows.report(case, "named", float(found), "yes", "== 1", suspects=len(worker.answer.suspects or ()))
    rows.report(case, "memory_mb", worker.peak_mb(), "MB", _MUST, of="the worker")
    took = [answer.took_s for answer in worker.answers[quiet:]]
    rows.report(case, "round_s", max(took), "s", first=round(max(rounds), 2), usual=round(rounds[-1], 3))
    of = "the worker and the fork that computes the tree, what they share once"
    rows.report(
        case, "with_tree_mb", reporter.together_mb, "MB", _MUST, of=of, tree_alone=round(reporter.survey_mb)
    )
    worker.end()
