"""A counter directory of an RDMA port: `counters/`, `counters_ext/` or `hw_counters/`, file by file.

What a file means is a matter of `rdma_counter_map`. The usual file is not even parsed: its digits are the sample.
"""

from fabricpulse.core.metrics.exposition import sample_prefix
from fabricpulse.hostinfo.sysfs import (
    NOT_AVAILABLE,
    CachedAttribute,
    CachedDirectory,
    DescriptorBudget,
    parse_unsigned,
)
from fabricpulse.nic.collectors.base import Context
from fabricpulse.nic.counter_wrap import WrappingCounter
from fabricpulse.nic.metric_spec import PORT, gauge
from fabricpulse.nic.rdma_counter_map import Mapped

LIFESPAN = gauge(
    "hw_counters_lifespan_seconds",
    "How long the driver keeps a hw_counters value before it asks the hardware again (hw_counters/lifespan, "
    "milliseconds converted).",
)
RAW = gauge(
    "raw_value",
    "Value of a file of counters/ or hw_counters/ under the driver's own name and in its own unit; only with "
    "--nic.raw-counters.",
    (*PORT, "directory", "name"),
)


class _Entry:
    """A counter file and what to do with it. rest : further files whose values are added (irdma: IPv4 and IPv6)."""

    __slots__ = ("file", "prefix", "raw_prefix", "rest", "scale", "spec_name", "wrapping")

    def __init__(
        self, file: CachedAttribute, mapped: Mapped | None, labels: tuple[str, str, str], raw_prefix: str
    ) -> None:
        self.file = file
        self.rest: list[CachedAttribute] = []
        self.raw_prefix = raw_prefix
        self.spec_name = mapped.spec.name if mapped else ""
        self.prefix = sample_prefix(mapped.spec, labels) if mapped else ""
        self.scale = mapped.scale if mapped else 1
        self.wrapping = WrappingCounter() if mapped and mapped.bits == 32 else None


class CounterDirectory:
    """One counter directory of one port, planned anew when the directory changes.

    path : of the directory. labels : of the port (PORT). names : what its files mean, by name. raw : export all files
    under the drivers' own names, too.
    """

    def __init__(
        self,
        path: str,
        labels: tuple[str, str, str],
        names: dict[str, Mapped],
        raw: bool,
        budget: DescriptorBudget,
    ) -> None:
        self._directory = CachedDirectory(path, labels[1], budget)
        self._labels = labels
        self._names = names
        self._raw = raw
        self._generation = -1
        self._entries: list[_Entry] = []
        self._lifespan: CachedAttribute | None = None
        self._taken: frozenset[str] = frozenset()

    def families(self) -> frozenset[str]:
        """Names of the metrics that this directory fills, after `collect`."""
        return self._taken

    def collect(self, context: Context, *, without: frozenset[str], reset_likely: bool) -> None:
        """Adds the counters. without : metrics that another directory has already given for this port."""
        errors, now = context.errors, context.now
        if not self._directory.refresh(errors):
            self._entries = []
            self._taken = frozenset()
            return
        if self._directory.generation != self._generation:
            self._plan()
        lines = context.sink.lines
        for entry in self._entries:
            raw = entry.file.read(now, self._directory.device, errors)
            if raw is None:
                continue
            # The usual case, kept short: digits, not scaled, not summed, 64 bits wide: the text is the sample.
            if not raw.isdigit() or len(raw) > 20:
                if not raw.startswith(NOT_AVAILABLE):
                    errors.add(self._directory.device, entry.file.path, "empty" if not raw else "unparsable")
                continue
            text = raw.decode("ascii")
            if entry.raw_prefix:
                lines.setdefault(RAW.name, []).append(f"{entry.raw_prefix}{text}\n")
            if not entry.prefix or entry.spec_name in without:
                continue
            if entry.rest or entry.wrapping is not None or entry.scale != 1:
                value = self._derived(entry, int(text), context, reset_likely)
                if value is None:
                    continue
                text = str(value)
            family = lines.get(entry.spec_name)
            if family is None:
                family = lines[entry.spec_name] = []
            family.append(f"{entry.prefix}{text}\n")
        self._collect_lifespan(context)

    def _derived(self, entry: _Entry, value: int, context: Context, reset_likely: bool) -> int | None:
        """The sample of a counter that is more than the text of its file; None if a part of a sum cannot be had."""
        for file in entry.rest:
            raw = file.read(context.now, self._directory.device, context.errors)
            part = parse_unsigned(raw) if raw is not None else None
            if part is None:
                # The rest of the sum alone would look like a counter that was reset.
                if raw is not None and not raw.startswith(NOT_AVAILABLE):
                    reason = "unparsable" if raw else "empty"
                    context.errors.add(self._directory.device, file.path, reason)
                return None
            value += part
        if entry.wrapping is not None:
            value = entry.wrapping.update(value, reset_likely=reset_likely)
        # 64-bit doublewords times four still count modulo 2^64 for whoever computes with integers; Prometheus uses
        # floats, so the product is given as it is.
        return value * entry.scale

    def _collect_lifespan(self, context: Context) -> None:
        if self._lifespan is None:
            return
        raw = self._lifespan.read(context.now, self._directory.device, context.errors)
        value = parse_unsigned(raw or b"")
        if value is not None:
            context.sink.add(LIFESPAN, self._labels, value / 1000)

    def _plan(self) -> None:
        kept = {entry.file.name: entry.wrapping for entry in self._entries}
        folder = self._directory.path.rpartition("/")[2]
        entries: dict[str, _Entry] = {}
        for name, file in self._directory.files.items():
            if name == "lifespan":
                continue
            mapped = self._names.get(name)
            raw_prefix = sample_prefix(RAW, (*self._labels, folder, name)) if self._raw else ""
            if mapped is None and not self._raw:
                # Never opened: each counter file costs the device a firmware command.
                continue
            if mapped is not None and mapped.spec.name in entries and not self._raw:
                entries[mapped.spec.name].rest.append(file)
                continue
            entry = _Entry(file, mapped, self._labels, raw_prefix)
            if mapped is not None and mapped.spec.name in entries:
                entries[mapped.spec.name].rest.append(file)
                entry.prefix = ""
            if entry.wrapping is not None and kept.get(name) is not None:
                entry.wrapping = kept[name]
            entries[name if mapped is None or not entry.prefix else mapped.spec.name] = entry
        self._entries = list(entries.values())
        self._lifespan = self._directory.files.get("lifespan")
        self._taken = frozenset(entry.spec_name for entry in self._entries if entry.prefix)
        self._generation = self._directory.generation

    def close(self) -> None:
        """Gives the descriptors back."""
        self._directory.close()
