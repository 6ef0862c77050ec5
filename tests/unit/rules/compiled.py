"""The mixin as it is compiled, and what its expressions and dashboards are made of."""

import re
from collections.abc import Iterator
from typing import Any

import promql_parser

from fabricpulse.rules.mixin import compile_mixin

MIXIN = compile_mixin()
ALERTS = {rule["alert"]: rule for group in MIXIN.alerts for rule in group["rules"]}
RECORDS = {rule["record"]: rule for group in MIXIN.rules for rule in group["rules"]}


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield from panels(panel) if panel["type"] == "row" and panel["panels"] else [panel]


def dashboard_queries(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in panels(dashboard):
        for target in panel.get("targets", []):
            yield re.sub(r"\$__\w+", "1m", target["expr"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert match
            yield match[1]
    for annotation in dashboard["annotations"]["list"]:
        yield annotation["expr"]


def selectors(expression: str) -> list[tuple[str, list[str]]]:
    """(metric, labels matched) of each selector in the expression, which must be valid PromQL."""
    found: list[tuple[str, list[str]]] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append((node.name or "", [matcher.name for matcher in node.matchers.matchers]))
        elif isinstance(node, promql_parser.MatrixSelector):
            visit(node.vector_selector)
        elif isinstance(
            node,
            (
                promql_parser.AggregateExpr,
                promql_parser.ParenExpr,
                promql_parser.SubqueryExpr,
                promql_parser.UnaryExpr,
            ),
        ):
            visit(node.expr)
        elif isinstance(node, promql_parser.BinaryExpr):
            visit(node.lhs)
            visit(node.rhs)
        elif isinstance(node, promql_parser.Call):
            for argument in node.args:
                visit(argument)

    visit(promql_parser.parse(expression))
    return found
