"""What a collector is, what it is given, and how it registers.

A collector names its targets (devices, links, or one target for the whole host) and collects one target at a time:
the runner times it, keeps a target that hangs or raises from costing another one, and reports success.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self, TypeVar

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import format_value, sample_prefix
from fabricpulse.hostinfo.inventory import Inventory
from fabricpulse.hostinfo.sources import HostSources
from fabricpulse.hostinfo.sysfs import DescriptorBudget, ReadErrors
from fabricpulse.nic.flap_service import FlapService
from fabricpulse.nic.gid_changes import GidChanges
from fabricpulse.nic.sections import ExpectedSection, GidSection, NcclSection

# The target of a collector that is not per device.
HOST = ""


class Sink:
    """Where samples of one scrape go, as rendered lines grouped by metric."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {}

    def add(self, spec: MetricSpec, values: Sequence[str], value: float) -> None:
        """One sample; label values in the order of `spec.labels`."""
        self.line(spec.name, f"{sample_prefix(spec, values)}{format_value(value)}\n")

    def line(self, family: str, line: str) -> None:
        """One sample that is already a line of the exposition."""
        lines = self.lines.get(family)
        if lines is None:
            lines = self.lines[family] = []
        lines.append(line)


@dataclass
class Context:
    """One scrape. now : monotonic seconds. inventory : what there is. errors : where unreadable files are counted."""

    now: float
    inventory: Inventory
    errors: ReadErrors
    sink: Sink = field(default_factory=Sink)


@dataclass(frozen=True)
class Environment:
    """What collectors are made from.

    budget : of files that may stay open, shared by all. flaps : counts link changes and keeps the event log.
    gid_changes : who says, and who asks, whether a GID table may have changed. The rest is configuration.
    """

    sources: HostSources
    budget: DescriptorBudget
    flaps: FlapService
    gid_changes: GidChanges
    gid: GidSection
    nccl: NcclSection
    expected: ExpectedSection
    raw_counters: bool
    networks: Mapping[str, str]


class Collector(ABC):
    """One source of metrics.

    name : its flag (`--collector.NAME`) and its `collector` label. on_by_default : whether it runs without being asked
    for. order : place in the exposition, lowest first, then by name; the sample cap cuts from the end.
    """

    name: ClassVar[str]
    on_by_default: ClassVar[bool] = True
    order: ClassVar[int] = 50

    @classmethod
    @abstractmethod
    def make(cls, environment: Environment) -> Self | None:
        """A collector, or None where the host does not have its source."""

    @abstractmethod
    def targets(self, context: Context) -> Sequence[str]:
        """Names of what to collect now; HOST for a collector that is not per device."""

    @abstractmethod
    def collect(self, target: str, context: Context) -> None:
        """Adds the samples of one target to `context.sink`. May raise OSError: it costs this target alone."""

    def start(self, inventory: Inventory) -> None:  # noqa: B027 - nothing by default
        """Begins to follow events; called on the event loop when the daemon starts, never for `--once`."""

    def after_scrape(self) -> None:  # noqa: B027
        """Called on the event loop after each scrape of the daemon."""

    def stop(self) -> None:  # noqa: B027
        """Ends what `start` began; on the event loop."""

    def close(self) -> None:  # noqa: B027
        """Gives back descriptors and sockets; on the collecting thread."""


@dataclass(frozen=True)
class Registration:
    """A collector and its metrics."""

    collector: type[Collector]
    metrics: tuple[MetricSpec, ...]


REGISTERED: dict[str, Registration] = {}

_C = TypeVar("_C", bound=type[Collector])


def register(*counters: Sequence[MetricSpec]) -> Callable[[_C], _C]:
    """Class decorator: the collector is one of the exporter's.

    Its metrics are those that its module declares above it, and `counters`: what other modules declare for it. Raises
    ValueError when there is one of this name already.
    """

    def decorate(collector: _C) -> _C:
        if collector.name in REGISTERED:
            raise ValueError(f"two collectors {collector.name!r}")
        taken = {spec.name for found in REGISTERED.values() for spec in found.metrics}
        module = vars(sys.modules[collector.__module__])
        own = [value for value in module.values() if isinstance(value, MetricSpec)]
        specs = (*own, *(spec for group in counters for spec in group))
        REGISTERED[collector.name] = Registration(
            collector, tuple(spec for spec in specs if spec.name not in taken)
        )
        return collector

    return decorate
