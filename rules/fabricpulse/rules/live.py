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
from fabricpulse.rules.mixin import Mixin

# Whether there is such a series is asked of now.
_OFFSET = re.compile(r" offset -?\w+$")
# Functions that need two samples.
_RATES = frozenset(
    ("changes", "delta", "deriv", "idelta", "increase", "irate", "predict_linear", "rate", "resets")
)


# Metrics that exist only while something is wrong, or has been lately, by the daemon that gives them.
_ONLY_TROUBLE = {
    "fabricpulse_edge_evidence": "mesh",
    "fabricpulse_edge_mtu_black_hole_bytes": "mesh",
    "fabricpulse_edge_worst_path_loss_ratio": "mesh",
    "fabricpulse_nic_disconnected": "mesh",
    "fabricpulse_nic_recent_disconnect_age_seconds": "mesh",
    "fabricpulse_nic_recent_increase": "nic",
    "fabricpulse_nic_recent_rate": "nic",
    "fabricpulse_plugin_silent_seconds": "qp",
    "fabricpulse_request_waiting_seconds": "qp",
}


@dataclass(frozen=True)
class Exporters:
    """How many of one daemon there are. outdated : of these, too old to give all that the rules read."""

    count: int = 0
    outdated: int = 0


@dataclass(frozen=True)
class Found:
    """What is there now. selectors : number of series that each selector of the rules matches. short : windows of rates
    in which none of their series has two samples: such a rate is never there. exporters : those that are scraped, by
    daemon, of the daemons that give metrics only while something is wrong."""

    selectors: dict[str, int]
    short: list[str]
    exporters: dict[str, Exporters] = field(default_factory=dict)

    def empty(self) -> list[str]:
        """Selectors without a series, sorted, where that is not because nothing is wrong."""
        quiet = set(self.quiet())
        return sorted(
            selector for selector, series in self.selectors.items() if not series and selector not in quiet
        )

    def quiet(self) -> list[str]:
        """Selectors without a series because nothing is wrong, sorted: alerts that fire, and error metrics of
        daemons of which some are there and none is too old to give them.
        """
        return sorted(
            selector for selector, series in self.selectors.items() if not series and self._gives(selector)
        )

    def _gives(self, selector: str) -> bool:
        name = selector.partition("{")[0]
        daemon = self.exporters.get(_ONLY_TROUBLE.get(name, ""), Exporters())
        return name == "ALERTS" or (daemon.count > 0 and not daemon.outdated)

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
    there = [
        (window, most)
        for window, most in zip(windows, samples, strict=True)
        if series[window.rpartition("[")[0]]
    ]
    return Found(series, [window for window, most in there if most < 2], exporters)


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
    return {name: found[name] for name in sorted(set(_ONLY_TROUBLE.values()) & found.keys())}
