"""What a collector is.

A collector names its targets (devices, links, or one target for the whole host) and collects one target at a time:
the runner times it, keeps a target that hangs or raises from costing another one, and reports success.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import format_value, render_labels
from fabricpulse.nic.inventory import Inventory
from fabricpulse.nic.reader import Faults

HOST = ""


# Beginnings of lines by metric and label values: the same few thousand come back with every scrape. Emptied when full,
# because values of labels may come and go for as long as the exporter runs.
_KEPT: dict[tuple[str, tuple[str, ...]], str] = {}
_KEPT_MAX = 16_384


def _kept_prefix(spec: MetricSpec, values: tuple[str, ...]) -> str:
    key = (spec.name, values)
    found = _KEPT.get(key)
    if found is None:
        if len(_KEPT) >= _KEPT_MAX:
            _KEPT.clear()
        found = _KEPT[key] = prefix(spec, values)
    return found


class Sink:
    """Where samples of one scrape go, as rendered lines grouped by metric."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {}

    def add(self, spec: MetricSpec, values: Sequence[str], value: float) -> None:
        """One sample; label values in the order of `spec.labels`."""
        self.line(spec.name, f"{_kept_prefix(spec, tuple(values))}{format_value(value)}\n")

    def line(self, family: str, line: str) -> None:
        """One sample that is already a line of the exposition."""
        lines = self.lines.get(family)
        if lines is None:
            lines = self.lines[family] = []
        lines.append(line)


@dataclass
class Context:
    """One scrape. now : monotonic seconds. inventory : what there is. faults : where unreadable files are counted."""

    now: float
    inventory: Inventory
    faults: Faults
    sink: Sink = field(default_factory=Sink)


class Collector(Protocol):
    """One source. `name` is its flag (`--collector.NAME`) and its `collector` label."""

    name: str

    def targets(self, context: Context) -> Sequence[str]:
        """Names of what to collect now; HOST for a collector that is not per device."""

    def collect(self, target: str, context: Context) -> None:
        """Adds the samples of one target to `context.sink`. May raise OSError: it costs this target alone."""

    def close(self) -> None:
        """Gives back descriptors and sockets."""


T = TypeVar("T")


def prefix(spec: MetricSpec, values: Sequence[str]) -> str:
    """`name{labels} `, what a sample's line begins with. Kept between scrapes it makes a line one concatenation."""
    return f"{spec.name}{render_labels(spec, values)} "
