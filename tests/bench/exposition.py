"""Cost of a scrape: our exposition against prometheus-client's, same series, same text size.

Prints one JSON object a line. Gate: with labels that are kept between scrapes at least 8 times as fast.
"""

import statistics
import sys
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from tests.bench.rows import Rows

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import Exposition, format_value, render_labels, sample_prefix

SERIES = 20_000
ROUNDS = 9
SPEC = MetricSpec(
    "fabricpulse_bench_edge_up", "gauge", "Whether the edge is up.", ("device", "peer", "peer_device")
)


def median_us(render: Callable[[], object]) -> float:
    """Microseconds a sample, median of some rounds."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        render()
        times.append((time.perf_counter() - start) / SERIES * 1e6)
    return statistics.median(times)


def main() -> int:
    """Measures and prints; 1 if the gate is missed."""
    labels = [(f"rail{i % 8}", f"gpu-{i // 8:05d}", f"rail{i % 8}") for i in range(SERIES)]
    prefixes = [sample_prefix(SPEC, values) for values in labels]

    registry = CollectorRegistry()
    gauge = Gauge(SPEC.name, SPEC.help, SPEC.labels, registry=registry)
    children = [gauge.labels(*values) for values in labels]

    def peer() -> bytes:
        for child in children:
            child.set(0.5)
        return generate_latest(registry)

    def fresh() -> bytes:
        out = Exposition(SERIES + 10)
        for values in labels:
            line = f"{SPEC.name}{render_labels(SPEC, values)} {format_value(0.5)}\n"
            out.add_block(SPEC, line, 1)
        return out.render()

    def kept() -> bytes:
        """What every caller does: the beginnings of lines are kept by the module."""
        out = Exposition(SERIES + 10)
        for values in labels:
            out.add(SPEC, values, 0.5)
        return out.render()

    def kept_by_caller() -> bytes:
        """What a caller with thousands of series does: one string a line, one block a family."""
        out = Exposition(SERIES + 10)
        out.add_block(SPEC, "".join([f"{text}0.5\n" for text in prefixes]), SERIES)
        return out.render()

    if not kept().startswith(peer()[:200]):
        raise AssertionError("the two do not write the same text")
    peer_us = median_us(peer)
    rows = Rows("exposition")
    for case, render, must in (
        ("fresh labels", fresh, None),
        ("kept labels", kept, ">= 8"),
        ("kept labels, one block", kept_by_caller, ">= 8"),
    ):
        us = median_us(render)
        rows.report(case, "time_per_sample", us, "us", peer="prometheus-client", peer_value=round(peer_us, 3))
        rows.report(case, "speedup", peer_us / us, "ratio", must, peer="prometheus-client")
    return rows.exit_code()


if __name__ == "__main__":
    sys.exit(main())
