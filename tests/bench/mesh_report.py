"""Rows of the mesh benchmark, and what several of its parts measure with."""

import json
import math
import os
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
missed: list[str] = []


def report(
    case: str,
    metric: str,
    value: float,
    unit: str,
    gate: float | None = None,
    **more: Any,
) -> None:
    """Prints one line. gate : the value must not be above it."""
    line = {"bench": "mesh", "case": case, "metric": metric, "value": round(value, 4), "unit": unit, **more}
    if gate is not None:
        line |= {"gate": gate, "ok": value <= gate}
        if value > gate:
            missed.append(f"{metric} ({case}): {value:g} > {gate:g}")
    print(json.dumps(line), flush=True)


def quantile(values: list[float], q: float) -> float:
    """The smallest value that at least q of all are not above."""
    ordered = sorted(values)
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
