"""Whether the rules, as configured, find anything in a Prometheus: a selector that matches nothing makes all but the
watchdog silent, a window in which no two scrapes fall every rule with a rate, and no rule file shows either.
"""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import promql_parser

from fabricpulse.core.errors import UserError
from fabricpulse.core.metrics.common import BUILD_INFO, METRICS_VERSION
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.prometheus import PromQl, RefusedError
from fabricpulse.core.web.urls import redact
from fabricpulse.rules.absence import counters_of, daemon_of, only_amid_faults, waits_for
from fabricpulse.rules.mixin import Mixin

# Whether there is such a series is asked of now.
_OFFSET = re.compile(r" offset -?\w+$")
# Functions that need two samples.
_RATES = frozenset(
    ("changes", "delta", "deriv", "idelta", "increase", "irate", "predict_linear", "rate", "resets")
)


# Daemons of which FabricExporterOld says that they are too old.
VERSIONED = ("mesh", "nic", "qp")


@dataclass(frozen=True)
class Exporters:
    """How many of one daemon there are. outdated : of these, too old to give all that the rules read."""

    count: int = 0
    outdated: int = 0


@dataclass(frozen=True)
class Found:
    """What is there now. selectors : number of series that each selector of the rules matches. short : windows of rates
    in which none of their series has two samples: such a rate is never there. exporters : those that are scraped, by
    daemon. uncounted : selectors of counters that have grown, or of GIDs, of which no NIC has any.
    """

    selectors: dict[str, int]
    short: list[str]
    exporters: dict[str, Exporters] = field(default_factory=dict)
    uncounted: frozenset[str] = frozenset()

    def empty(self) -> list[str]:
        """Selectors without a series, sorted, although all that they need is there: a fault of the set-up."""
        explained = {*self.quiet(), *self.waiting(), *(s for some in self.unscraped().values() for s in some)}
        return [selector for selector in self._without_series() if selector not in explained]

    def quiet(self) -> list[str]:
        """Selectors without a series because nothing is wrong, sorted: alerts that fire, and error metrics of
        daemons of which some are there and none is too old to give them.
        """
        return [selector for selector in self._without_series() if self._is_well(selector)]

    def waiting(self) -> dict[str, str]:
        """Selectors without a series until something is there that a fleet need not have, and what, sorted."""
        found = {
            selector: waits_for(selector)
            for selector in self._without_series()
            if not only_amid_faults(selector) and self._is_scraped(selector)
        }
        found |= {
            selector: waits_for(selector)
            or "NICs that count it: no driver here does, so that nobody knows whether anything is wrong"
            for selector in self.uncounted
            if not self.selectors[selector] and self._is_scraped(selector)
        }
        return {selector: reason for selector, reason in sorted(found.items()) if reason}

    def unscraped(self) -> dict[str, list[str]]:
        """Selectors without a series because no daemon is scraped that gives them, by daemon, sorted."""
        found: dict[str, list[str]] = {}
        for selector in self._without_series():
            if not self._is_scraped(selector):
                found.setdefault(daemon_of(selector), []).append(selector)
        return dict(sorted(found.items()))

    def _without_series(self) -> list[str]:
        return sorted(selector for selector, series in self.selectors.items() if not series)

    def _is_scraped(self, selector: str) -> bool:
        daemon = daemon_of(selector)
        return not daemon or self.exporters.get(daemon, Exporters()).count > 0

    def _is_well(self, selector: str) -> bool:
        if selector.startswith("ALERTS{"):
            return True
        if selector in self.uncounted:
            return False
        name = daemon_of(selector)
        givers = [each for daemon, each in self.exporters.items() if name in ("", daemon)]
        return only_amid_faults(selector) and bool(givers) and not any(each.outdated for each in givers)

    def nothing(self) -> bool:
        """Whether no selector of the rules matches anything."""
        return not any(self.selectors.values())


def selectors_of(mixin: Mixin) -> list[str]:
    """Each distinct vector selector of the rules on series of exporters (not of recording rules), sorted."""
    found: set[str] = set()
    for group in mixin.alerts + mixin.rules:
        for rule in group["rules"]:
            _collect(promql_parser.parse(rule["expr"]), found)
    # Exporters that are too old match this one: that there is none is well, and is asked for by daemon.
    return sorted(s for s in found if ":" not in s.partition("{")[0] and "metrics_version!~" not in s)


def windows_of(mixin: Mixin) -> list[str]:
    """Of each selector of which the rules take a rate, the shortest window: `name{labels}[2m]`, sorted."""
    shortest: dict[str, tuple[timedelta, str]] = {}
    for group in mixin.alerts + mixin.rules:
        for rule in group["rules"]:
            for window in _windows(promql_parser.parse(rule["expr"])):
                selector = _OFFSET.sub("", window.vector_selector.prettify())
                text = _OFFSET.sub("", window.prettify())
                shortest[selector] = min(shortest.get(selector, (timedelta.max, "")), (window.range, text))
    return sorted(text for _, text in shortest.values() if ":" not in text.partition("{")[0])


def _windows(node: Any) -> Iterator[promql_parser.MatrixSelector]:
    match node:
        case promql_parser.Call() if node.func.name in _RATES:
            yield from (each for each in node.args if isinstance(each, promql_parser.MatrixSelector))
        case promql_parser.Call():
            for argument in node.args:
                yield from _windows(argument)
        case promql_parser.BinaryExpr():
            yield from _windows(node.lhs)
            yield from _windows(node.rhs)
        case (
            promql_parser.AggregateExpr()
            | promql_parser.ParenExpr()
            | promql_parser.SubqueryExpr()
            | promql_parser.UnaryExpr()
        ):
            yield from _windows(node.expr)


def _collect(node: Any, found: set[str]) -> None:
    match node:
        case promql_parser.VectorSelector():
            found.add(_OFFSET.sub("", node.prettify()))
        case promql_parser.MatrixSelector():
            found.add(_OFFSET.sub("", node.vector_selector.prettify()))
        case promql_parser.BinaryExpr():
            _collect(node.lhs, found)
            _collect(node.rhs, found)
        case promql_parser.Call():
            for argument in node.args:
                _collect(argument, found)
        case (
            promql_parser.AggregateExpr()
            | promql_parser.ParenExpr()
            | promql_parser.SubqueryExpr()
            | promql_parser.UnaryExpr()
        ):
            _collect(node.expr, found)


def ask(url: str, mixin: Mixin, client: HttpClientConfig) -> Found:
    """Counts series in the Prometheus at `url`. Raises UserError when it cannot be asked."""
    return asyncio.run(_ask(url, selectors_of(mixin), windows_of(mixin), client))


async def _ask(url: str, selectors: list[str], windows: list[str], client: HttpClientConfig) -> Found:
    async with PromQl(url, client) as prometheus:

        async def value(query: str, what: str) -> int:
            """0 where there is no such series."""
            try:
                samples = await prometheus.instant(query)
            except RefusedError as error:
                raise UserError(f"{redact(url)} does not tell whether {what} has series: {error}") from error
            return int(samples[0].value) if samples else 0

        counts = await asyncio.gather(*(value(f"count({each})", each) for each in selectors))
        samples = await asyncio.gather(*(value(f"max(count_over_time({each}))", each) for each in windows))
        exporters = await _exporters(prometheus, url, selectors)
        series = dict(zip(selectors, counts, strict=True))
        grown = {each: counters_of(each) for each in selectors if counters_of(each) and not series[each]}
        counters = sorted({counter for some in grown.values() for counter in some})
        counted = await asyncio.gather(*(value(f"count({each})", each) for each in counters))
    there_are = {counter for counter, number in zip(counters, counted, strict=True) if number}
    uncounted = frozenset(each for each, some in grown.items() if not there_are & set(some))
    there = [
        (window, most)
        for window, most in zip(windows, samples, strict=True)
        if series[window.rpartition("[")[0]]
    ]
    return Found(series, [window for window, most in there if most < 2], exporters, uncounted)


async def _exporters(prometheus: PromQl, url: str, selectors: list[str]) -> dict[str, Exporters]:
    """By the selector with which the rules look for any daemon."""
    own = min(
        (s for s in selectors if s.partition("{")[0] == BUILD_INFO.name), key=len, default=BUILD_INFO.name
    )
    query = f"count by (daemon, metrics_version) ({own})"
    try:
        samples = await prometheus.instant(query)
    except RefusedError as error:
        raise UserError(f"{redact(url)} does not tell how old its exporters are: {error}") from error
    found: dict[str, Exporters] = {}
    for sample in samples:
        daemon, text = sample.labels.get("daemon", ""), sample.labels.get("metrics_version", "")
        before = found.get(daemon, Exporters())
        old = not text.isascii() or not text.isdigit() or int(text) < METRICS_VERSION
        number = int(sample.value)
        found[daemon] = Exporters(before.count + number, before.outdated + number * old)
    return dict(sorted(found.items()))
