"""Mutation testing of the rules: each threshold, window, quantile, aggregation, duration and branch of a rule is
changed in turn, and the promtool tests of that rule must fail. What survives is a part of the rule that no test holds.

A part that stands in an expression several times (jsonnet puts it there) is changed everywhere at once, as a person who
edits the mixin would.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import yaml
from tests.unit.rules.needed_rules import Rule, name_of

_RULES = Path(__file__).parents[3] / "rules"

# A factor between those would survive: tests hold thresholds to 1.5 times, windows and durations to twice.
THRESHOLD_FACTOR = 1.5
_AGGREGATIONS = {"max": "min", "min": "max", "sum": "max", "avg": "max", "count": "sum"}
_FUNCTIONS = {
    "increase": "delta",
    "rate": "deriv",
    "max_over_time": "min_over_time",
    "avg_over_time": "max_over_time",
}
# A value may hold braces and parentheses: they end neither the matchers nor a call.
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_MATCHERS = rf'\{{(?:[^{{}}"]|{_QUOTED})*\}}'
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


# Not when the module is imported: each process of a run imports it, and one of them runs it.
@cache
def groups() -> list[dict[str, Any]]:
    """All groups of rules, records first."""
    return [
        group
        for folder in ("recording", "alerts")
        for path in sorted((_RULES / folder).glob("*.yaml"))
        for group in yaml.safe_load(path.read_text())["groups"]
    ]


@dataclass(frozen=True)
class Mutant:
    """A changed rule. what : the change, in words."""

    name: str
    what: str
    rule: Rule = field(hash=False)


def mutants(rule: Rule) -> list[Mutant]:
    """Every mutant of a rule, each once. The changed expressions are PromQL."""
    expression = str(promql_parser.parse(rule["expr"]))
    found: dict[str, Mutant] = {}
    for what, changed in _changes(expression):
        if changed != expression and changed not in found:
            promql_parser.parse(changed)
            found[changed] = Mutant(name_of(rule), what, rule | {"expr": changed})
    timed = [Mutant(name_of(rule), what, changed) for what, changed in _durations(rule)]
    return [*found.values(), *timed]


def _changes(text: str) -> Iterator[tuple[str, str]]:
    yield from _thresholds(text)
    yield from _windows(text)
    for match in sorted(set(re.findall(r"\b(histogram_quantile|quantile by \([^)]*\))\(([0-9.]+),", text))):
        call, number = match
        other = "0.9" if float(number) != 0.9 else "0.5"
        yield f"{call} {number} -> {other}", text.replace(f"{call}({number},", f"{call}({other},")
    for head in sorted(set(re.findall(r"\b(?:max|min|sum|avg|count) (?:by|without) \([^)]*\)", text))):
        name, _, rest = head.partition(" ")
        other = _AGGREGATIONS[name]
        yield f"{head} -> {other}", re.sub(rf"\b{re.escape(head)}", f"{other} {rest}", text)
    for name, other in _FUNCTIONS.items():
        for inner in sorted(set(re.findall(rf"\b{name}\(((?:[^()\"]|{_QUOTED})+)\)", text))):
            yield f"{name}({inner}) -> {other}", text.replace(f"{name}({inner})", f"{other}({inner})")
    yield from _branches(text)


def _thresholds(text: str) -> Iterator[tuple[str, str]]:
    """Numbers that something is compared with, or multiplied with before that."""
    pattern = r"(?<![\w:])(?:>=|<=|==|!=|>|<)(?: bool)? -?[0-9.e+]+(?![\w.])"
    for comparison in sorted(set(re.findall(pattern, text))):
        head, _, number = comparison.rpartition(" ")
        for other in _other_numbers(float(number)):
            changed = re.sub(rf"{re.escape(comparison)}(?![\w.])", f"{head} {other:g}", text)
            yield f"{comparison} -> {other:g}", changed
        if head == "==":
            yield f"{comparison} -> !=", text.replace(comparison, f"!= {number}")
    for factor in sorted(set(re.findall(r"(?<![\w.\[])[0-9.]+ \* ", text))):
        number = factor.split()[0]
        for other in _other_numbers(float(number)):
            yield f"{factor}-> {other:g}", re.sub(rf"(?<![\w.\[]){re.escape(factor)}", f"{other:g} * ", text)


def _other_numbers(number: float) -> list[float]:
    if number == 0:
        return [2.0]  # the increase of a single event comes out a little above 1
    if number == int(number) and abs(number) <= 10:
        return [number - 1, number + 1]
    return [number * THRESHOLD_FACTOR, number / THRESHOLD_FACTOR]


def _windows(text: str) -> Iterator[tuple[str, str]]:
    for selector in sorted(set(re.findall(rf"[a-z_:0-9]+(?:{_MATCHERS})?\[\w+\](?: offset \w+)?", text))):
        for duration in re.findall(r"\[(\w+)\]|offset (\w+)", selector):
            old = duration[0] or duration[1]
            for new in _other_durations(old):
                changed = (
                    selector.replace(f"[{old}]", f"[{new}]")
                    if duration[0]
                    else selector.replace(f"offset {old}", f"offset {new}")
                )
                yield f"{selector} -> {new}", text.replace(selector, changed)


def seconds(duration: str) -> int:
    """1h30m -> 5400."""
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhd])", duration))


def _other_durations(duration: str) -> list[str]:
    return [f"{seconds(duration) * 2}s", f"{seconds(duration) // 2}s"]


def _durations(rule: Rule) -> Iterator[tuple[str, Rule]]:
    for key in ("for", "keep_firing_for"):
        if key in rule and seconds(rule[key]):
            for other in _other_durations(rule[key]):
                yield f"{key} {rule[key]} -> {other}", rule | {key: other}
            yield f"no {key}", {name: value for name, value in rule.items() if name != key}


def _branches(text: str) -> Iterator[tuple[str, str]]:
    """Without one side of `or`, without what `and` and `unless` add."""
    seen: set[str] = set()
    for node in _binaries(promql_parser.parse(text)):
        whole = str(node)
        if whole in seen:
            continue
        seen.add(whole)
        left, right = str(node.lhs), str(node.rhs)
        between = whole[len(left) : len(whole) - len(right)]
        word = between.split()[0]
        if word in {"and", "or", "unless"}:
            yield f"{word} {right[:60]}: dropped", text.replace(whole, left)
            if word == "or":
                yield f"{left[:60]} or: dropped", text.replace(whole, right)


def _binaries(node: Any) -> Iterator[Any]:
    match node:
        case promql_parser.BinaryExpr():
            yield node
            yield from _binaries(node.lhs)
            yield from _binaries(node.rhs)
        case promql_parser.Call():
            for argument in node.args:
                yield from _binaries(argument)
        case promql_parser.AggregateExpr() | promql_parser.ParenExpr() | promql_parser.UnaryExpr():
            yield from _binaries(node.expr)
