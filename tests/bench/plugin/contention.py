"""Two rings whose lanes collide on one spine: what balancing and new paths win over static ECMP."""

import statistics
import time

from tests.bench.plugin.rows import in_turn, report
from tests.integration.plugin.paths import collided, elsewhere, two_spines

from fabricpulse.lab import Lab

UPLINK_MBIT = 200
STATIC = {"FABRICPULSE_BALANCE": "0", "FABRICPULSE_REPATH": "0"}
SETTLE_S, SPAN_S = 3.0, 3.0
GATE = 1.5


def run(lab: Lab, env: dict[str, str]) -> tuple[float, float, int]:
    """Mean bandwidth of both rings in bytes per second after SETTLE_S on one spine; seconds until it was 1.5 times that
    of a shared link (inf: not within SETTLE_S); lanes on another spine at the end."""
    rings = collided(lab, "8M", env)
    since = time.time()
    time.sleep(SETTLE_S + SPAN_S)  # the measurement itself
    until = time.time()
    speed = statistics.mean(ring.bandwidth(until - SPAN_S, until) for ring in rings)
    shared = UPLINK_MBIT * 125_000 / 2
    reached = next(
        (
            at / 10
            for at in range(int(SETTLE_S * 10))
            if statistics.mean(r.bandwidth(since + at / 10, since + at / 10 + 0.5) for r in rings)
            >= GATE * shared
        ),
        float("inf"),
    )
    left = elsewhere(rings)
    for ring in rings:
        ring.stop()
    return speed, reached, left


def bench(rounds: int) -> None:
    """Prints `contention_ratio`, the median of the rounds' ratios, and what it is made of."""
    runs: dict[str, list[tuple[float, float, int]]] = {"static": [], "balanced": []}
    with two_spines(UPLINK_MBIT) as lab:
        for number in range(rounds):
            for name in in_turn(list(runs), number):
                runs[name].append(run(lab, STATIC if name == "static" else {}))
    speeds = {name: [run[0] for run in found] for name, found in runs.items()}
    ratios = [
        balanced / static for balanced, static in zip(speeds["balanced"], speeds["static"], strict=True)
    ]
    case = f"two_rings_{UPLINK_MBIT}mbit_spines"
    for name, found in speeds.items():
        report(
            case,
            f"{name}_bandwidth",
            statistics.median(found) / 1e6,
            "MB/s",
            rounds=[round(each / 1e6, 2) for each in found],
        )
    report(
        case,
        "contention_ratio",
        statistics.median(ratios),
        "ratio",
        f">= {GATE}",
        rounds=[round(each, 3) for each in ratios],
    )
    report(
        case,
        "contention_s",
        statistics.median(run[1] for run in runs["balanced"]),
        "s",
        lanes_elsewhere=[run[2] for run in runs["balanced"]],
    )
