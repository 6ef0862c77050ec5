"""Rows of the bench of the NCCL plugin: one JSON object a line, gates judged as they are printed."""

import json
from collections.abc import Callable
from typing import Any

missed: list[str] = []  # "case metric" of every gate that was not kept


def report(
    case: str, metric: str, value: float, unit: str, gate: Callable[[float], bool] | None = None, **more: Any
) -> None:
    """Prints one row; a missed gate is remembered."""
    row: dict[str, Any] = {
        "bench": "plugin",
        "case": case,
        "metric": metric,
        "value": round(value, 6),
        "unit": unit,
    }
    row.update(more)
    if gate is not None:
        row["gate"] = "ok" if gate(value) else "missed"
        if row["gate"] == "missed":
            missed.append(f"{case} {metric}")
    print(json.dumps(row), flush=True)


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of the samples do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def in_turn(names: list[str], number: int) -> list[str]:
    """Forwards and backwards by turns, so that a drift of the machine's speed favours nobody."""
    return names if number % 2 == 0 else names[::-1]
