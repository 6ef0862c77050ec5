"""Bounds of a simulated fleet through what happens to clocks, paths and daemons; `bound_violations` must be 0.

Every event happens in `runs` fleets of 8 hosts with 4 peers each, drawn by seed, with loads of 0 to 80 %, oscillators
that wander by 2 ppb/sqrt(s) and stamps that are late by 10 ns. It is of the size that its name says, spread evenly (in
the logarithm) over the runs. Judged at each round from the second after the event on: of two hosts that say
synchronized, fleet times that differ by more than the sum of their bounds. What the probe engine sees first, pauses of
a machine and whatever happens within a round, is not simulated here (tests/integration/clocksync, --only steered).
"""

from collections.abc import Callable

import numpy as np
from tests.bench.clocksync.fleet import SimFleet

from fabricpulse.core.shm.clock_page import ClockStatus

_BEFORE_S, _AFTER_S = 8, 14
_LOADS = ((0.0, 0.0), (0.3, 0.1), (0.8, 0.2))


def _sign(fleet: SimFleet) -> int:
    return 1 if fleet.rng.random() < 0.5 else -1


def _step(fleet: SimFleet, size: float) -> None:
    fleet.hosts[3].clock.steps.append((fleet.t + 0.4, _sign(fleet) * round(1_000 * 1e6**size)))


def _frequency_step(fleet: SimFleet, size: float) -> None:
    fleet.hosts[3].clock.change_rate(fleet.t + 0.4, _sign(fleet) * 100 * 5_000**size)


def _ramp(fleet: SimFleet, size: float) -> None:
    by_ppb = _sign(fleet) * 10 * 100**size
    for tenth in range(80):
        fleet.hosts[3].clock.change_rate(fleet.t + tenth / 10, by_ppb / 10)


def _lengthen_one_way(fleet: SimFleet, size: float) -> None:
    for edge in fleet.edges[::3]:
        edge.forward.base_ns += 100 * 1_000**size


def _divide(fleet: SimFleet, size: float) -> None:
    cut = 1 + round(size * 6)
    for edge in fleet.edges:
        edge.up = (edge.a < cut) == (edge.b < cut)


def _kill_and_turn(fleet: SimFleet, size: float) -> None:
    for host in fleet.hosts[:: 2 + round(size * 4)]:
        host.alive = False
    _frequency_step(fleet, size / 2)


def _stamp_by_another_clock(fleet: SimFleet, size: float) -> None:
    # From one of its edges to all but one.
    its = [edge for edge in fleet.edges if edge.a == 3]
    for edge in its[: fleet.rng.integers(1, max(2, len(its)))]:
        edge.lie_ns = _sign(fleet) * round(3_000 * 1_000**size)


EVENTS: dict[str, Callable[[SimFleet, float], None]] = {
    "steps of the host clock of 1 us to 1 s": _step,
    "frequency steps of 0.1 to 500 ppm": _frequency_step,
    "ramps of 0.01 to 1 ppm/s": _ramp,
    "one way of a third of the edges longer by 0.1 to 100 us": _lengthen_one_way,
    "partitions": _divide,
    "killed hosts, and a frequency step": _kill_and_turn,
    "a NIC of a host stamps by another clock, 3 us to 3 ms off": _stamp_by_another_clock,
}


def violations(event: Callable[[SimFleet, float], None], seed: int, size: float) -> tuple[int, int, int]:
    """(violations, pairs that were judged, backward jumps) of one run."""
    seconds = _BEFORE_S + _AFTER_S
    fleet = SimFleet(8, 4, seed=seed, loads=_LOADS, seconds=seconds)
    fleet.run(_BEFORE_S)
    event(fleet, size)
    fleet.run(2)
    outside = pairs = 0
    for _ in range(_AFTER_S - 2):
        fleet.play_round()
        judged = [i for i, status in enumerate(fleet.statuses()) if status == ClockStatus.SYNCHRONIZED]
        outside += fleet.violations(judged) if judged else 0
        pairs += len(judged) * (len(judged) - 1) // 2
    return outside, pairs, fleet.backward_jumps


def bench_violations(report: Callable[..., None], runs: int = 30) -> None:
    """Every event of EVENTS, `runs` times."""
    for name, event in EVENTS.items():
        rows = np.array([violations(event, seed, (seed + 0.5) / runs) for seed in range(runs)])
        outside, pairs, backward = rows.sum(axis=0).tolist()
        report(
            f"simulated fleet, {name}", "bound_violations", outside, "pairs", "== 0", runs=runs, pairs=pairs
        )
        report(f"simulated fleet, {name}", "backward_jumps", backward, "count", "== 0")
