"""Oscillators that turn by 5 to 500 ppm while all daemons run, in virtual time; `bound_violations` must be 0.

As `watched` in the lab, of one of five hosts and of two at once, and with the engine's own parts
(tests/unit/clocksync/fleet/watched_fleet.py), but nobody is late for want of a processor, and a seed gives the same
run each time. Six sizes in any order a fleet, the next one when all are synchronized again: what one leaves behind in
memories of delays is there for the next. Judged from two probe intervals after it on, each 2 ms.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

from tests.unit.clocksync.fleet.watched_fleet import INTERVAL_S, WatchedFleet

_HOSTS, _SIZES = 5, 6
_SETTLED_S, _STEP_S, _PATIENCE_S = 25.0, 0.002, 60.0


class Turned(NamedTuple):
    """Of one event. latest_s : after the moment from which reads count, the last false one. back_s : until all hosts
    were synchronized again, or nobody waited any more.
    """

    by_ppm: dict[str, float]
    false: int
    reads: int
    latest_s: float
    back_s: float


def play(seed: int, victims: int) -> list[Turned]:
    """One fleet."""
    fleet, rng, turned = WatchedFleet(_HOSTS, 1, seed), random.Random(seed), dict[str, float]()
    fleet.run_until(_SETTLED_S)
    sizes = [(number + 0.5) / _SIZES for number in range(_SIZES)]
    rng.shuffle(sizes)
    return [_turn(fleet, rng, rng.sample(sorted(fleet.hosts), victims), size, turned) for size in sizes]


def _turn(
    fleet: WatchedFleet, rng: random.Random, names: list[str], size: float, turned: dict[str, float]
) -> Turned:
    """turned : by how much hosts run faster than at first, ppm; those turn back."""
    by_ppm = dict[str, float]()
    for name in names:
        if name in turned:
            by_ppm[name] = -turned.pop(name)
        else:
            by_ppm[name] = turned[name] = rng.choice((-1, 1)) * 5.0 * float(100**size)
        fleet.hosts[name].oscillator.turn(fleet.t_s, by_ppm[name] * 1e3)
    judged_s, until_s = fleet.t_s + 2 * INTERVAL_S, fleet.t_s + rng.uniform(5.0, 9.0)
    false, reads, latest_s = 0, 0, 0.0
    while fleet.t_s < until_s or len(fleet.synchronized_hosts()) < _HOSTS:
        if fleet.t_s > until_s + _PATIENCE_S:
            break
        fleet.run_until(fleet.t_s + _STEP_S)
        if fleet.t_s > judged_s:
            reads += 1
            if fleet.false_pairs():
                false, latest_s = false + 1, fleet.t_s - judged_s
    return Turned(by_ppm, false, reads, latest_s, fleet.t_s - judged_s)


def bench_turns(report: Callable[..., None], events: int = 30) -> None:
    """At least `events` of them on one host, and on two at once."""
    for victims in 1, 2:
        rows = [row for seed in range(-(-events // _SIZES)) for row in play(seed, victims)]
        case = f"{victims} of {_HOSTS} hosts turn by 5 to 500 ppm, simulated"
        report(case, "bound_violations", sum(row.false for row in rows), "reads", "== 0", runs=len(rows),
               reads=sum(row.reads for row in rows), false_runs=sum(row.false > 0 for row in rows),
               latest_ms=round(1e3 * max(row.latest_s for row in rows), 1),
               back_s=round(max(row.back_s for row in rows), 1))  # fmt: skip
