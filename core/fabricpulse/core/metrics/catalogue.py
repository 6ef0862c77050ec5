"""The metric catalogue: name, type, labels, unit and help of everything that fabricpulse exports.

It is the one source of the exposition (`# HELP`, `# TYPE`), of docs/metrics.md and of the check that every metric in
a rule or a panel exists. A component declares its metrics in a module named by the entry-point group
`fabricpulse.metrics`, as `METRICS: tuple[MetricSpec, ...]`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Literal

MetricType = Literal["counter", "gauge", "histogram", "summary"]
METRICS_GROUP = "fabricpulse.metrics"

_NAME = re.compile(r"^fabricpulse_[a-z0-9]+(_[a-z0-9]+)*$")
_LABEL = re.compile(r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$")
# Of the target (Prometheus adds them) or of the format (the exposition adds them).
_RESERVED_LABELS = frozenset({"cluster", "host", "instance", "job", "le", "quantile"})


@dataclass(frozen=True)
class MetricSpec:
    """One metric family.

    name : full name; counters end in `_total`, base units are the suffix before it. labels : label names in the order
    of exposition, without `le` and `quantile`. buckets : upper bounds of a histogram, ascending, without +Inf.
    """

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ValueError(f"{self.name}: metric names are snake_case and begin with fabricpulse_")
        if (self.type == "counter") != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: counters, and only counters, end in _total")
        if bool(self.buckets) != (self.type == "histogram"):
            raise ValueError(f"{self.name}: histograms, and only histograms, have buckets")
        if list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError(f"{self.name}: bucket bounds must ascend")
        if not self.help.endswith(".") or "\n" in self.help:
            raise ValueError(f"{self.name}: help is one line and ends with a full stop")
        if len(set(self.labels)) != len(self.labels) or not all(map(_LABEL.match, self.labels)):
            raise ValueError(f"{self.name}: labels are distinct snake_case names")
        if reserved := _RESERVED_LABELS.intersection(self.labels):
            raise ValueError(f"{self.name}: label {min(reserved)!r} is Prometheus' own")


def load_catalogue() -> dict[str, MetricSpec]:
    """All declared metrics by name, in the order of component and declaration.

    Raises ValueError when two components declare one name, or names that OpenMetrics takes for one family.
    """
    catalogue: dict[str, MetricSpec] = {}
    for entry in sorted(entry_points(group=METRICS_GROUP), key=lambda entry: entry.name):
        specs: Iterable[MetricSpec] = entry.load().METRICS
        for spec in specs:
            if spec.name in catalogue:
                raise ValueError(f"metric {spec.name} is declared twice, the second time in {entry.value}")
            catalogue[spec.name] = spec
    for name, spec in catalogue.items():
        if spec.type == "counter" and name.removesuffix("_total") in catalogue:
            raise ValueError(f"metric {name} and {name.removesuffix('_total')} are one family in OpenMetrics")
    return catalogue
