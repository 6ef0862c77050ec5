"""The faults of a public trace of 400 GPU servers over 348 days (infinitehbd_trace.csv), in compressed time.

Of the classes of faults those are replayed that a fabric sees: what NICs and cables have, and hosts that are down. All
others (GPUs, fans, power supplies, tests …) take their server out of service, so that its job is gone, and nothing of
the fabric changes.
"""

import csv
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_TABLE = Path(__file__).parent / "infinitehbd_trace.csv"
# What a fault of the trace is to the fabric, by class and description.
_KINDS = {
    ("Parameter Plane Cable", "Link Down"): "link down",
    ("NIC", "Rnic Gid Error"): "GID error",
    ("NIC", "NIC Link Speed low"): "low speed",
    ("NIC", "NIC Lost"): "NIC lost",
    ("NIC", "NIC PCI link Width low"): "PCIe width low",
    ("System Crash", "Server down"): "host down",
    ("Operating System", "Kernel Panic"): "host down",
}
OTHER = "other"
HOST_DOWN = "host down"
# Two faults, or a fault and its end, are no further apart: longer than each rule waits, its interval and that of what
# is recorded for it included.
LONGEST_GAP_MIN = 20
# Nothing is shorter: one scrape with the fault, and one more. (Some entries of the trace end when they begin.)
_SHORTEST_MIN = 2


@dataclass(frozen=True)
class Fault:
    """server : its number in the trace. start_min, end_min : compressed time, minutes. kind : of _KINDS, or OTHER."""

    server: int
    start_min: int
    end_min: int
    kind: str


def faults() -> list[Fault]:
    """All faults of the trace, by their start."""
    with _TABLE.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    spans = [(float(row["start_day"]) * 1440, float(row["end_day"]) * 1440) for row in rows]
    kinds = [_KINDS.get((row["class"], row["fault"]), OTHER) for row in rows]
    seen = sorted({at for span, kind in zip(spans, kinds, strict=True) if kind != OTHER for at in span})
    compressed = _compressed(seen)
    found = []
    for row, kind, (start, end) in zip(rows, kinds, spans, strict=True):
        begins = compressed(start)
        shortest = 0 if kind == OTHER else _SHORTEST_MIN
        found.append(Fault(int(row["server"]), begins, max(compressed(end), begins + shortest), kind))
    return sorted(found, key=lambda fault: fault.start_min)


class _compressed:  # noqa: N801 - a function with a table
    """Minutes of the trace to minutes of the replay, which begins LONGEST_GAP_MIN before the first of `moments`."""

    def __init__(self, moments: Sequence[float]) -> None:
        self._moments = moments
        self._at = [float(LONGEST_GAP_MIN)]
        for before, after in pairwise(moments):
            self._at.append(self._at[-1] + min(after - before, LONGEST_GAP_MIN))

    def __call__(self, minute: float) -> int:
        number = bisect_right(self._moments, minute) - 1
        if number < 0:
            return round(max(0.0, self._at[0] - (self._moments[0] - minute)))
        return round(self._at[number] + min(minute - self._moments[number], LONGEST_GAP_MIN))
