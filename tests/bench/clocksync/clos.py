"""Fleets of thousands on a Clos fabric: every edge is fitted by the real `EdgeWindow`, on all cores.

A fit needs nothing from the solve, only the stamps of its edge and the clock of its host. So edges are fitted first, in
batches, each through all its steps, and only the records for the coordinator are kept: 40 bytes a fit instead of 38 kB
of trains an edge. Then time passes for the hosts and the coordinator, with these records, and comes out as if all had
happened at once. Each batch has a seed of its own: how many processes there are changes nothing.
"""

import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tests.bench.clocksync.fabric import Clos, Crystals, Floats, Ints, Routes, probe
from tests.bench.clocksync.timeline import NS, START_S, SimHost, Timeline, edge_report, mesh_pairs

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import FleetClockParameters
from fabricpulse.clocksync.edge.estimator import EstimatorParameters
from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE
from fabricpulse.clocksync.edge.window import EdgeWindow
from fabricpulse.clocksync.wire.messages import EDGE_DTYPE, pack_edges
from fabricpulse.core.shm.probe_ring import INBOUND, MAIN_PATH, OUTBOUND

# Edges that are probed together: their stamps stay in the cache of a core.
_BATCH = 128
_PROGRESS_S = 20.0


@dataclass(frozen=True)
class Mesh:
    """What is measured: edges from host a, which fits them, to host b; a is in order. number : among those of a.

    filled : steps whose trains were in the probe rings before the sidecars started. steps : those after, with a fit.
    """

    seed: int
    clos: Clos
    crystals: Crystals
    a: Ints
    b: Ints
    number: Ints
    forward: Routes
    backward: Routes
    rate: float
    filled: int
    steps: int
    round_s: float
    window_s: float

    def batches(self) -> int:
        return -(-len(self.a) // _BATCH)

    def fit(self, batch: int) -> "Fits":
        """The edges of one batch, through all steps."""
        edges = slice(batch * _BATCH, min((batch + 1) * _BATCH, len(self.a)))
        rng = np.random.default_rng([self.seed, 4, batch])
        a, b, number = self.a[edges], self.b[edges], self.number[edges]
        windows = [EdgeWindow(EstimatorParameters(), round(self.window_s * NS)) for _ in a]
        records = np.zeros((self.steps, len(a)), EDGE_DTYPE)
        fitted = np.zeros(records.shape, np.bool_)
        for index in range(-self.filled, self.steps):
            begin = START_S + (self.filled + index) * self.round_s
            end = begin + self.round_s
            blocks = []
            for routes, sender, receiver, direction in (
                (self.forward[edges], a, b, OUTBOUND),
                (self.backward[edges], b, a, INBOUND),
            ):
                tx, rx = probe(rng, self.clos, routes, begin, end, self.rate)
                block = np.zeros(tx.shape[:2], SAMPLE_DTYPE)
                block["direction"], block["flags"] = direction, MAIN_PATH
                block["tx_valid"] = block["rx_valid"] = 7
                block["tx_ns"] = self.crystals.at(sender[:, None, None], tx)
                block["rx_ns"] = self.crystals.at(receiver[:, None, None], rx)
                blocks.append(block)
            now = self.crystals.at(a, np.full(len(a), end * NS)).tolist()
            for k, window in enumerate(windows):
                for block in blocks:
                    window.add(block[k])
                if index < 0:
                    continue
                fit = window.advance(now[k])
                if fit is not None:
                    fitted[index, k] = True
                    records[index, k] = np.frombuffer(
                        pack_edges([edge_report(fit, int(number[k]))]), EDGE_DTYPE
                    )[0]
        return Fits(records, fitted, np.where(fitted, self._errors(a, b, records, fitted), np.nan))

    def _errors(self, a: Ints, b: Ints, records: NDArray[np.void], fitted: NDArray[np.bool_]) -> Floats:
        """Measured minus true offset of each fit, ns."""
        t_ns = np.where(fitted, records["t_ns"], self.crystals.offset_ns[a] + round(START_S * NS))
        when = self.crystals.when(a, t_ns)
        errors: Floats = (records["offset_ns"] - (self.crystals.at(b, when) - t_ns)).astype(np.float64)
        return errors


@dataclass(frozen=True)
class Fits:
    """Of some edges, (steps, edges). records : of EDGE_DTYPE. error_ns : measured minus true offset, NaN without."""

    records: NDArray[np.void]
    fitted: NDArray[np.bool_]
    error_ns: Floats


# What workers inherit when they are forked: pickling a fabric for each would take longer than their work.
_inherited: list[Mesh] = []


def _fit(batch: int) -> Fits:
    return _inherited[0].fit(batch)


def fit_all(mesh: Mesh, processes: int) -> Iterator[Fits]:
    """All batches in their order, worked at by so many processes. Raises BrokenProcessPool when one is killed."""
    if processes == 1:
        yield from map(mesh.fit, range(mesh.batches()))
        return
    _inherited.append(mesh)
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("fork"))
    try:
        yield from pool.map(_fit, range(mesh.batches()))
    finally:
        # Their CPU time counts as ours only once they have ended and been waited for.
        pool.shutdown(cancel_futures=True)
        _inherited.clear()


@dataclass
class ClosFleet(Timeline):
    """n hosts with k edges each, on the average, for `steps` rounds. processes : 0 for as many as there are cores.

    measure() first, then play_round() up to `steps` times. filled : as if all sidecars had been started anew after so
    many rounds, with what their engines had measured meanwhile. progress : says on stderr how far it is.
    """

    n: int
    steps: int
    filled: int = 0
    k: int = 10
    seed: int = 1
    rate: float = 50.0
    window_s: float = 4.0
    round_s: float = 1.0
    processes: int = 0
    progress: bool = False
    clock_parameters: FleetClockParameters = field(default_factory=FleetClockParameters)

    def __post_init__(self) -> None:
        super().__init__(self.n, np.random.default_rng([self.seed, 5]), self.clock_parameters)
        rng = np.random.default_rng([self.seed, 3])
        self.hosts: list[SimHost] = [SimHost(f"h{i:05d}") for i in range(self.n)]
        pairs = np.array(mesh_pairs(rng, self.n, self.k), np.int64)
        a, b = pairs.T.copy()
        clos = Clos(self.seed, self.n)
        crystals = Crystals(self.seed, self.n, self._end_s(self.steps) + 2.0)
        # Edges are sorted by the hosts that report them, so these of host i are first[i] to first[i + 1].
        self._first = np.searchsorted(a, np.arange(self.n + 1))
        self.mesh = Mesh(
            self.seed, clos, crystals, a, b, np.arange(len(a)) - self._first[a],
            clos.routes(rng, a, b), clos.routes(rng, b, a),
            self.rate, self.filled, self.steps, self.round_s, self.window_s,
        )  # fmt: skip
        self._all = np.arange(self.n)
        self._steps_done = 0
        self.t = self._end_s(0)

    def _end_s(self, number: int) -> float:
        return START_S + (self.filled + number) * self.round_s

    def instants(self, t_s: float) -> list[CrossTimestamp]:
        crystals = self.mesh.crystals
        shown = crystals.at(self._all, np.full(self.n, t_s * NS))
        raw = shown - crystals.offset_ns
        return [CrossTimestamp(host, mono) for host, mono in zip(shown.tolist(), raw.tolist(), strict=True)]

    def peers(self, host: int) -> Sequence[int]:
        return [int(peer) for peer in self.mesh.b[self._first[host] : self._first[host + 1]]]

    def measure(self) -> None:
        """Fits all edges at all steps."""
        began = said = time.monotonic()
        shape = (self.steps, len(self.mesh.a))
        self.fits = Fits(np.zeros(shape, EDGE_DTYPE), np.zeros(shape, np.bool_), np.zeros(shape))
        done = 0
        for part in fit_all(self.mesh, self.processes or len(os.sched_getaffinity(0))):
            edges = slice(done, done + part.records.shape[1])
            self.fits.records[:, edges] = part.records
            self.fits.fitted[:, edges], self.fits.error_ns[:, edges] = part.fitted, part.error_ns
            done = edges.stop
            now = time.monotonic()
            if self.progress and now - said > _PROGRESS_S:
                said, share = now, done / shape[1]
                left_s = math.ceil((now - began) * (1 - share) / share)
                self._say(f"{100 * share:.0f} % of {shape[1]} edges fitted, {left_s} s to go")

    def play_round(self) -> None:
        """Lets the next round pass: clocks, reports, the solve, corrections."""
        began = time.monotonic()
        if self.tick_until(self._end_s(self._steps_done + 1)):
            raise RuntimeError("a clock stepped: no crystal does that, and the fits know nothing of it")
        records, fitted = self.fits.records[self._steps_done], self.fits.fitted[self._steps_done]

        def reported(host: int) -> bytes:
            edges = slice(self._first[host], self._first[host + 1])
            return bytes(records[edges][fitted[edges]].tobytes())

        self.solve(reported)
        self._steps_done += 1
        took = time.monotonic() - began
        if self.progress and took > 2:
            self._say(f"round {self._steps_done} of {self.steps} took {took:.1f} s")

    def _say(self, text: str) -> None:
        print(f"clocksync: {self.n} hosts: {text}", file=sys.stderr, flush=True)
