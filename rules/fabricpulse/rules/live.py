"""Whether the rules, as configured, find anything in a Prometheus: a selector that matches nothing makes all but the
watchdog silent, and no rule file shows it.
"""

import asyncio
import re
from dataclasses import dataclass
from typing import Any

import promql_parser

from fabricpulse.core.errors import UserError
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.prometheus import PromQl, RefusedError
from fabricpulse.core.web.urls import redact
from fabricpulse.rules.mixin import Mixin

# Whether there is such a series is asked of now.
_OFFSET = re.compile(r" offset -?\w+$")


@dataclass(frozen=True)
class Found:
    """selectors : number of series that each selector of the rules matches now."""

    selectors: dict[str, int]

    def empty(self) -> list[str]:
        """Selectors without a series, sorted."""
        return sorted(selector for selector, series in self.selectors.items() if not series)

    def nothing(self) -> bool:
        """Whether no selector of the rules matches anything."""
        return not any(self.selectors.values())


def selectors_of(mixin: Mixin) -> list[str]:
    """Each distinct vector selector of the rules on series of exporters (not of recording rules), sorted."""
    found: set[str] = set()
    for group in mixin.alerts + mixin.rules:
        for rule in group["rules"]:
            _collect(promql_parser.parse(rule["expr"]), found)
    return sorted(selector for selector in found if ":" not in selector.partition("{")[0])


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
    return asyncio.run(_ask(url, selectors_of(mixin), client))


async def _ask(url: str, selectors: list[str], client: HttpClientConfig) -> Found:
    async with PromQl(url, client) as prometheus:

        async def count(selector: str) -> int:
            try:
                samples = await prometheus.instant(f"count({selector})")
            except RefusedError as error:
                raise UserError(
                    f"{redact(url)} does not tell whether {selector} has series: {error}"
                ) from error
            return int(samples[0].value) if samples else 0

        counts = await asyncio.gather(*map(count, selectors))
    return Found(dict(zip(selectors, counts, strict=True)))
