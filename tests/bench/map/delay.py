"""Delays that grow, found by their own floor: the engine's own state machines on simulated delays of one edge."""

import random
from collections.abc import Callable

from tests.bench.rows import Rows

from fabricpulse.mesh._probe_engine import EdgeDelays, path_of_train
from fabricpulse.mesh.config import Latency, Probe
from fabricpulse.mesh.snapshot import HealthState

FLOOR_US, LEARN_S, MOST_S = 20.0, 60, 60
SLOW_PORTS = frozenset({1, 4, 6})
Delay = Callable[[float, int], float]
"""Microseconds of a train beside noise, by the seconds since the fault began and its source port."""
FAULTS: dict[str, Delay] = {
    "20 us to 1 ms at 3 %/s": lambda t, _: min(FLOOR_US * 1.03**t, 1000.0),
    "a step of 50 us at a floor of 20 us": lambda t, _: FLOOR_US + (50.0 if t > 0 else 0.0),
    "3 of 8 ports 100 us slower": lambda t, port: FLOOR_US + (100.0 if t > 0 and port in SLOW_PORTS else 0.0),
}


def flagged_after_s(delay: Delay, seed: int, ports: frozenset[int]) -> tuple[float, bool]:
    """Seconds until all of `ports` are elevated (inf: never in a minute), and whether another one ever was, or one
    before the fault. Noise: half a microsecond, and one train in twenty is late by some 30 us.
    """
    random_of, limits, probe = random.Random(seed), Latency(), Probe()
    edge = EdgeDelays(round(1e9 * limits.ceiling_s), limits.factor, round(1e9 * limits.slack_s))
    rate, train, wrong = round(probe.trains_per_s), 0, False
    for second in range(-LEARN_S, MOST_S):
        for part in range(rate):
            train += 1
            port = path_of_train(train, probe.paths, probe.sweep)
            late_us = random_of.expovariate(1 / 30.0) if random_of.random() < 0.05 else 0.0
            us = delay(max(second + part / rate, 0.0), port) + abs(random_of.gauss(0.0, 0.5)) + late_us
            edge.add(port, round(1000 * us), 500)
        edge.second()
        down = {port for port in range(probe.paths) if edge.state(port) == HealthState.DOWN}
        wrong |= bool(down - ports) or bool(down and second < 0)
        if second >= 0 and down >= ports:
            return second + 1.0, wrong
    return float("inf"), wrong


def bench_delay(rows: Rows, times: int) -> None:
    """ramp_s of each fault, so often."""
    for name, delay in FAULTS.items():
        slow = SLOW_PORTS if "ports" in name else frozenset(range(Probe().paths))
        # A fault of all ports is found by the first that shows it: the main path.
        played = [
            flagged_after_s(delay, seed, slow if slow == SLOW_PORTS else frozenset({0}))
            for seed in range(times)
        ]
        case = f"{name}, simulated, {times} times"
        took = sorted(seconds for seconds, _ in played)
        wrong = sum(early for _, early in played) if slow == SLOW_PORTS else 0
        rows.report(case, "ramp_s", took[-1], "s", "<= 15", p50=took[len(took) // 2], other_ports=wrong)
