"""Rows of a benchmark: one JSON object a line, judged as it is printed."""

import json
import math
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_KEPT: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
}


class Rows:
    """What one benchmark prints, and which of its gates were missed."""

    def __init__(self, bench: str) -> None:
        self.bench = bench
        self.missed: list[str] = []

    def report(
        self, case: str, metric: str, value: float, unit: str, must: str | None = None, **more: Any
    ) -> None:
        """Prints one row.

        must : the gate as `<= 1.5`, `>= 0.9` or `== 0`; a value that is not a number is null and misses every gate.
        more : further fields; by convention `peer`, `peer_value` and `ratio` where there is a peer.
        """
        row: dict[str, Any] = {"bench": self.bench, "case": case, "metric": metric}
        row |= {"value": None if math.isnan(value) else round(value, 6), "unit": unit, **more}
        if must is not None:
            comparison, bound = must.split()
            row |= {"must": must, "ok": not math.isnan(value) and _KEPT[comparison](value, float(bound))}
            if not row["ok"]:
                self.missed.append(f"{metric} ({case}): {value:g}, must be {must}")
        print(json.dumps(row), flush=True)

    def exit_code(self) -> int:
        """The exit code of the program: 1 if a gate was missed, and says which."""
        for line in self.missed:
            print(f"bench {self.bench}: missed {line}", file=sys.stderr)
        return int(bool(self.missed))


def quantile(values: list[float], q: float) -> float:
    """The smallest value that at least q of all are not above (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process so far, to the nanosecond (/proc/PID/stat counts ticks of 10 ms)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def thread_seconds(pid: int) -> tuple[float, float]:
    """CPU time of a process' first thread, which runs the event loop of a daemon, and how long it waited for a core."""
    ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9
