"""What a mesh gains on single edges, and what it could: by the errors of all edges at the same moments.

Least squares lessen what edges have for themselves, such as noise of stamps and queues. They cannot lessen what all
edges of a host have in common: its clock has wandered since the last packets, and its stamps may be late
(docs/decisions/0035).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tests.bench.clocksync.fleet import SimFleet

_BEFORE_S, _SECONDS = 10, 30
_SAMPLES_S = (0.1, 0.3, 0.5, 0.7, 0.9)
# Loads of all edges, and by how much the rate of each clock changes in a second, ppb.
_CASES = (((0.0, 0.0), 0.0), ((0.0, 0.0), 2.0), ((0.8, 0.2), 2.0), ((0.9, 0.9), 2.0))


def rms(values: ArrayLike) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


@dataclass
class EdgeErrors:
    """Errors of edges at moments when all are looked at, ns, one entry an edge and moment. moment : its number. i, j :
    hosts at its ends. edge_ns : what the edge says. pair_ns : what the fleet times of both hosts say. moments : how
    many.
    """

    moment: list[int] = field(default_factory=list)
    i: list[int] = field(default_factory=list)
    j: list[int] = field(default_factory=list)
    edge_ns: list[float] = field(default_factory=list)
    # Of single windows, before the filter, where that is known.
    window_ns: list[float] = field(default_factory=list)
    pair_ns: list[float] = field(default_factory=list)
    moments: int = 0

    @classmethod
    def joined(cls, runs: "list[EdgeErrors]") -> "EdgeErrors":
        """Of several runs with other hosts."""
        errors = cls()
        for run in runs:
            first = max([*errors.i, *errors.j], default=-1) + 1
            errors.moment += [errors.moments + moment for moment in run.moment]
            errors.i += [first + i for i in run.i]
            errors.j += [first + j for j in run.j]
            errors.edge_ns += run.edge_ns
            errors.pair_ns += run.pair_ns
            errors.moments += run.moments
        return errors

    def add(self, i: int, j: int, edge_ns: float, pair_ns: float) -> None:
        """One edge at this moment."""
        self.moment.append(self.moments)
        self.i.append(i)
        self.j.append(j)
        self.edge_ns.append(edge_ns)
        self.pair_ns.append(pair_ns)

    def possible_ns(self) -> tuple[float, float]:
        """RMS error of pairs by least squares of all edges of each moment: by equal weights, and by the weights that
        fit best: of each edge what it scatters by beside the others, which only the truth tells. What edges of one host
        have in common is in both, as it is in any solution.
        """
        moment, i, j, edge = (np.array(of) for of in (self.moment, self.i, self.j, self.edge_ns))
        hosts, which = int(max(i.max(), j.max())) + 1, self._which()
        sigma = np.ones(int(which.max()) + 1)
        found = []
        for _ in range(2):
            solved = np.zeros(len(edge))
            for one in np.unique(moment):
                now = np.flatnonzero(moment == one)
                rows = np.zeros((len(now), hosts))
                rows[np.arange(len(now)), i[now]], rows[np.arange(len(now)), j[now]] = 1.0, -1.0
                weight = 1.0 / sigma[which[now]]
                x = np.linalg.lstsq(rows * weight[:, None], edge[now] * weight, rcond=None)[0]
                solved[now] = rows @ x
            found.append(rms(solved))
            left = np.bincount(which, np.square(edge - solved)) / np.bincount(which)
            sigma = np.sqrt(np.maximum(left, 1.0))
        return found[0], found[1]

    def constant_ns(self) -> float:
        """RMS over the edges of the mean of each: what no time of measuring makes smaller."""
        which = self._which()
        return rms(np.bincount(which, self.edge_ns) / np.bincount(which))

    def _which(self) -> NDArray[np.intp]:
        """The number of each entry's edge."""
        _, which = np.unique(np.array(self.i) * 2**31 + np.array(self.j), return_inverse=True)
        return which


def report_gain(
    report: Callable[..., None], case: str, errors: EdgeErrors, must: str | None = ">= 1.5"
) -> None:
    """What one edge says of its two hosts against what their fleet times say, at the same moments; RMS errors. And the
    most that any weights of the same edges would gain.
    """
    edge_ns, pair_ns = rms(errors.edge_ns), rms(errors.pair_ns)
    equal_ns, best_ns = errors.possible_ns()
    report(
        case, "mesh_gain_pair", round(edge_ns / pair_ns, 2), "ratio", must,
        edge_err_ns_rms=round(edge_ns, 1), pair_err_ns_rms=round(pair_ns, 1),
    )  # fmt: skip
    report(
        case, "mesh_gain_possible", round(edge_ns / best_ns, 2), "ratio", equal_weights_ns_rms=round(equal_ns, 1),
        best_weights_ns_rms=round(best_ns, 1), edge_constant_ns_rms=round(errors.constant_ns(), 1),
    )  # fmt: skip


def bench_gain(report: Callable[..., None], seeds: int = 3) -> None:
    """Simulated meshes of 8 hosts with 7 edges each: stamps are late by 10 ns, independently of each other."""
    for load, wander_ppb in _CASES:
        runs = [_simulated(load, wander_ppb, seed) for seed in range(1, seeds + 1)]
        case = f"simulated mesh of 8, load {load[0]:.0%}/{load[1]:.0%}, wander {wander_ppb:g} ppb/sqrt(s)"
        report_gain(report, case, EdgeErrors.joined(runs), must=None)


def _simulated(load: tuple[float, float], wander_ppb: float, seed: int) -> EdgeErrors:
    fleet = SimFleet(8, 7, seed=seed, loads=(load,), seconds=_SECONDS + 4, wander_ppb=wander_ppb)
    fleet.run(_BEFORE_S)
    errors = EdgeErrors()
    while fleet.t < _SECONDS:
        fleet.play_round()
        for sample_s in _SAMPLES_S:
            t_s = fleet.t + sample_s
            now = fleet.instants(t_s)
            for host, at in zip(fleet.hosts, now, strict=True):
                if host.fleet_clock is not None:
                    host.fleet_clock.tick(at)
            times = [shown.fleet_ns if shown is not None else 0 for shown in fleet.times(t_s)]
            for edge in fleet.edges:
                if edge.fit is None:
                    continue
                own_ns = now[edge.a].host_ns
                error_ns = edge.fit.at(own_ns) - (now[edge.b].host_ns - own_ns)
                errors.add(edge.a, edge.b, error_ns, times[edge.b] - times[edge.a])
            errors.moments += 1
    return errors
