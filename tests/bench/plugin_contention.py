"""Two rings whose lanes collide on one spine: what balancing and new paths win over static ECMP."""

import statistics
import time

from tests.bench.plugin_rows import report
from tests.integration.nccl_plugin.paths import put_on, sending, spine_of
from tests.integration.nccl_plugin.ring import Ring

from fabricpulse.lab import Lab

UPLINK_MBIT = 200
PAIRS = (("h0", "h2"), ("h1", "h3"))
STATIC = {"FABRICPULSE_BALANCE": "0", "FABRICPULSE_REPATH": "0"}
SETTLE_S, SPAN_S = 3.0, 3.0
GATE = 1.5


def collided(env: dict[str, str]) -> tuple[float, float, int]:
    """Mean bandwidth of both rings in bytes per second after SETTLE_S on one spine; seconds until it was 1.5 times that
    of a shared link (inf: not within SETTLE_S); lanes on another spine at the end."""
    with Lab(hosts=4, rails=1, spines=2, pods=2) as lab:
        for leaf in lab.fabric.leaf_names:
            for spine in lab.fabric.spine_names:
                lab.link(leaf, spine).limit(UPLINK_MBIT)
        arguments = ["--bytes", "8M", "--channels", "1"]
        rings = [
            Ring(lab, 2, arguments, env=env, hosts=pair, port=7000 + at) for at, pair in enumerate(PAIRS)
        ]
        for ring in rings:
            ring.wait_running()
        for ring, (a, b) in zip(rings, PAIRS, strict=True):
            put_on(ring, a, b, "spine0")
            put_on(ring, b, a, "spine0")
        since = time.time()
        time.sleep(SETTLE_S + SPAN_S)
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
        elsewhere = sum(
            spine_of(ring, host, peer, lane) != "spine0"
            for ring, pair in zip(rings, PAIRS, strict=True)
            for host, peer in (pair, pair[::-1])
            for connection in sending(ring, host)
            for lane in connection["lanes"]
        )
        for ring in rings:
            ring.stop()
        return speed, reached, elsewhere


def bench(rounds: int) -> None:
    """Prints `contention_ratio` and what it is made of; a round takes 20 s."""
    runs: dict[str, list[tuple[float, float, int]]] = {"static": [], "balanced": []}
    for _ in range(rounds):
        runs["static"].append(collided(STATIC))
        runs["balanced"].append(collided({}))
    speeds = {name: [run[0] for run in found] for name, found in runs.items()}
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
        statistics.median(speeds["balanced"]) / statistics.median(speeds["static"]),
        "ratio",
        lambda v: v >= GATE,
    )
    report(
        case,
        "contention_s",
        statistics.median(run[1] for run in runs["balanced"]),
        "s",
        lanes_elsewhere=[run[2] for run in runs["balanced"]],
    )
