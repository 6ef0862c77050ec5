"""Exposition writer: the Prometheus text format 0.0.4 and OpenMetrics 1.0.

The beginning of a sample's line, `name{labels} `, is rendered once and kept between scrapes (`sample_prefix`), for all
callers; prometheus-client takes about fifteen times as long for such a sample (`make bench NAME=exposition`).
Families come out in the order in which they are first added, samples grouped by family. A sample cap cuts whole samples
from the families added last and says what it dropped, so that a scrape never fails because a host has more queue pairs
than expected.
"""

from collections.abc import Iterable, Sequence
from math import isfinite, isnan

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.common import EXPORTER_DROPPED, EXPORTER_SERIES
from fabricpulse.core.metrics.formats import TextFormat

DEFAULT_SAMPLE_CAP = 20_000

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def render_labels(spec: MetricSpec, values: Sequence[str], extra: str = "") -> str:
    """`{device="rail0",network="a"}`, escaped; empty for no labels. `extra` is appended as it is (`le="1"`).

    Raises ValueError when the number of values is not the number of the metric's labels.
    """
    if len(values) != len(spec.labels):
        raise ValueError(f"{spec.name}: {len(spec.labels)} labels expected, got {len(values)}")
    parts = [
        f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in zip(spec.labels, values, strict=True)
    ]
    if extra:
        parts.append(extra)
    return "{" + ",".join(parts) + "}" if parts else ""


# Beginnings of lines by metric and label values: the same few thousand come back with every scrape. Emptied when full,
# because label values may come and go for as long as a daemon runs.
_PREFIXES: dict[tuple[str, tuple[str, ...]], str] = {}
_PREFIXES_MAX = 2 * DEFAULT_SAMPLE_CAP


def sample_prefix(spec: MetricSpec, values: Sequence[str]) -> str:
    """`name{labels} `, what a sample's line begins with, rendered at the first call with these values and kept.

    Raises ValueError when the number of values is not the number of the metric's labels.
    """
    key = (spec.name, tuple(values))
    found = _PREFIXES.get(key)
    if found is None:
        rendered = f"{spec.name}{render_labels(spec, values)} "
        if len(_PREFIXES) >= _PREFIXES_MAX:
            _PREFIXES.clear()
        found = _PREFIXES[key] = rendered
    return found


def format_value(value: float) -> str:
    """A sample value as Prometheus reads it: integers without a point, special values by name."""
    if isinstance(value, int):
        return str(int(value))  # int() also for True and False
    value = float(value)  # numpy's scalars have a repr of their own
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isfinite(value):
        return repr(value)
    if isnan(value):
        return "NaN"
    return "+Inf" if value > 0 else "-Inf"


# What the sample cap takes or leaves as one: number of samples, their text.
_Group = tuple[int, Sequence[str]]


class Exposition:
    """The response to one scrape, being written."""

    def __init__(self, sample_cap: int = DEFAULT_SAMPLE_CAP) -> None:
        self._cap = sample_cap
        self._families: dict[str, tuple[MetricSpec, list[_Group]]] = {}

    def add(self, spec: MetricSpec, values: Sequence[str], value: float) -> None:
        """Adds one sample of a gauge or counter. values : label values in the order of `spec.labels`."""
        self._group(spec).append((1, (f"{sample_prefix(spec, values)}{format_value(value)}\n",)))

    def add_histogram(
        self, spec: MetricSpec, values: Sequence[str], counts: Sequence[int], total: float
    ) -> None:
        """Adds one histogram. counts : per bucket, not cumulative, the last one for +Inf. total : sum of observations.

        Raises ValueError when there is not one count more than the metric has bucket bounds.
        """
        if len(counts) != len(spec.buckets) + 1:
            raise ValueError(f"{spec.name}: {len(spec.buckets) + 1} counts expected, got {len(counts)}")
        lines = []
        running = 0
        for bound, count in zip((*spec.buckets, float("inf")), counts, strict=True):
            running += count
            labels = render_labels(spec, values, f'le="{format_value(bound)}"')
            lines.append(f"{spec.name}_bucket{labels} {running}\n")
        plain = render_labels(spec, values)
        lines.append(f"{spec.name}_sum{plain} {format_value(total)}\n")
        lines.append(f"{spec.name}_count{plain} {running}\n")
        self._group(spec).append((len(lines), lines))

    def add_block(self, spec: MetricSpec, text: str, samples: int) -> None:
        """Adds a family whose lines were rendered elsewhere, natively say. The sample cap takes or leaves it whole."""
        if samples:
            self._group(spec).append((samples, (text,)))

    def declare(self, specs: Iterable[MetricSpec]) -> None:
        """Fixes the place of families that may get no sample; a family without samples is not written."""
        for spec in specs:
            self._group(spec)

    def _group(self, spec: MetricSpec) -> list[_Group]:
        family = self._families.get(spec.name)
        if family is None:
            family = self._families[spec.name] = (spec, [])
        return family[1]

    def render(self, text_format: TextFormat = TextFormat.PLAIN, *, count_samples: bool = True) -> bytes:
        """The text, with the cap applied to whole metrics (a histogram stays or goes as one).

        Only what describes a family depends on the format, so that it costs nothing per sample. `text_format.end` is
        left to the caller that joins the parts of a response. count_samples : add the metrics of samples written and
        dropped, which one part of a response has.
        """
        parts: list[str] = []
        room = self._cap
        written = 0
        dropped: dict[str, int] = {}
        for spec, groups in self._families.values():
            kept: list[str] = []
            for samples, lines in groups:
                written += samples
                if samples <= room:
                    room -= samples
                    kept.extend(lines)
                else:
                    dropped[spec.name] = dropped.get(spec.name, 0) + samples
            if kept:
                parts.append(_header(spec, text_format))
                parts.extend(kept)
        if not count_samples:
            return "".join(parts).encode()
        parts.append(_header(EXPORTER_SERIES, text_format))
        parts.append(f"{EXPORTER_SERIES.name} {written}\n")
        parts.append(_header(EXPORTER_DROPPED, text_format))
        parts.extend(
            f"{EXPORTER_DROPPED.name}{render_labels(EXPORTER_DROPPED, (family,))} {count}\n"
            for family, count in (dropped or {"": 0}).items()
        )
        return "".join(parts).encode()


def _header(spec: MetricSpec, text_format: TextFormat) -> str:
    name, help_text = spec.name, spec.help.replace("\\", r"\\").replace("\n", r"\n")
    if text_format is TextFormat.OPENMETRICS:
        # There a family of counters is named without the suffix of its samples, and HELP escapes as labels do.
        help_text = help_text.replace('"', r"\"")
        if spec.type == "counter":
            name = name.removesuffix("_total")
    return f"# HELP {name} {help_text}\n# TYPE {name} {spec.type}\n"
