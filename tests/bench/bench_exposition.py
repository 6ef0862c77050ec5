"""Cost of a scrape: our exposition against prometheus-client's, same series, same text size.

Prints one JSON object a line. Gate: at most 1 us a sample with labels that are kept between scrapes.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import Exposition, render_labels

SERIES = 20_000
ROUNDS = 9
GATE_US = 1.0
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
    rendered = [render_labels(SPEC, values) for values in labels]

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
            out.add(SPEC, values, 0.5)
        return out.render()

    def kept() -> bytes:
        out = Exposition(SERIES + 10)
        for text in rendered:
            out.add_rendered(SPEC, text, 0.5)
        return out.render()

    if not kept().startswith(peer()[:200]):
        raise AssertionError("the two do not write the same text")
    peer_us = median_us(peer)
    missed = False
    for case, render in (("fresh labels", fresh), ("kept labels", kept)):
        us = median_us(render)
        missed |= case == "kept labels" and us > GATE_US
        line = {
            "bench": "exposition",
            "case": case,
            "metric": "time_per_sample",
            "value": round(us, 3),
            "unit": "us",
        }
        line |= {
            "peer": "prometheus-client",
            "peer_value": round(peer_us, 3),
            "ratio": round(peer_us / us, 1),
        }
        print(json.dumps(line))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
