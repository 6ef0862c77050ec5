"""How often groups are evaluated: no burst of events may fall between two evaluations, and no `for` be drawn out."""

from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
from tests.unit.rules.mutation import groups, seconds
from tests.unit.rules.needed_rules import Rule

# Functions that count events of their window. Of `rate` and `*_over_time` an alert judges a mean or a last value.
COUNTING = {"increase", "changes", "resets"}


def raising(node: Any) -> Iterator[Any]:
    """Each call and selector of an expression, but of what `unless` takes away: that raises nothing."""
    match node:
        case promql_parser.Call():
            yield node
            for argument in node.args:
                yield from raising(argument)
        case promql_parser.VectorSelector():
            yield node
        case promql_parser.BinaryExpr():
            yield from raising(node.lhs)
            if str(node.op) != "unless":
                yield from raising(node.rhs)
        case promql_parser.AggregateExpr() | promql_parser.ParenExpr() | promql_parser.UnaryExpr():
            yield from raising(node.expr)
        # When a last value was said: of `max_over_time`, which counts nothing.
        case promql_parser.SubqueryExpr(expr=promql_parser.Call(func=func)) if func.name == "timestamp":
            pass
        case promql_parser.SubqueryExpr():
            raise AssertionError("a subquery: its range and step are not judged here")


def counting_windows(node: Any) -> Iterator[float]:
    """Seconds of each window in which an expression counts events."""
    for call in raising(node):
        if isinstance(call, promql_parser.Call) and call.func.name in COUNTING:
            yield from (argument.range.total_seconds() for argument in call.args)


def unseen_bursts(found: list[dict[str, Any]]) -> list[str]:
    """Alerts that may miss events which lie within three quarters of the window in which they are counted: evaluated
    less often than each quarter of it, their records included. Not those that wait for as long as the window: they
    need events that go on.
    """
    rules: list[tuple[Rule, int]] = [
        (rule, seconds(group.get("interval", "0s"))) for group in found for rule in group["rules"]
    ]
    parsed = [(rule, interval, promql_parser.parse(rule["expr"])) for rule, interval in rules]
    recorded = {rule["record"]: (interval, node) for rule, interval, node in parsed if "record" in rule}

    def reads(node: Any, lag: int) -> Iterator[tuple[float, int]]:
        yield from ((window, lag) for window in counting_windows(node))
        read = {part.name for part in raising(node) if isinstance(part, promql_parser.VectorSelector)}
        for interval, below in (recorded[name] for name in read & recorded.keys()):
            # A record may read itself.
            if below is not node:
                yield from reads(below, lag + interval)

    return [
        f"{rule['alert']}: counts over {window:g} s, lags by {lag} s"
        for rule, interval, node in parsed
        if "alert" in rule
        for window, lag in sorted(set(reads(node, interval)))
        if 4 * lag > window > seconds(rule.get("for", "0s"))
    ]


def test_no_burst_falls_between_two_evaluations() -> None:
    """What an alert counts within a window it sees for certain if it lies within three quarters of it."""
    assert unseen_bursts(groups()) == []


@pytest.mark.parametrize(
    ("interval", "record_interval", "waits", "missed"),
    [
        ("75s", "0s", "0s", 0),
        ("76s", "0s", "0s", 1),
        ("40s", "40s", "0s", 1),
        ("4m", "0s", "4m", 1),
        ("4m", "0s", "5m", 0),
    ],
)
def test_which_bursts_are_missed(interval: str, record_interval: str, waits: str, missed: int) -> None:
    """The check above adds the intervals of an alert and its record, and leaves out alerts on what goes on."""
    record = {"record": "nic:flaps", "expr": "sum(increase(flaps_total[5m]) > 0) >= 3"}
    alert = {
        "alert": "A",
        "expr": "nic:flaps or last_over_time(flapping[1m]) == 1 unless changes(up[1m]) > 1",
        "for": waits,
    }
    found = [{"interval": record_interval, "rules": [record]}, {"interval": interval, "rules": [alert]}]

    assert len(unseen_bursts(found)) == missed


def test_an_alert_is_late_by_no_more_than_it_waits() -> None:
    """An alert with `for` comes up to nearly two intervals later: above a minute they are no longer than its `for`."""
    late = [
        rule["alert"]
        for group in groups()
        if (interval := seconds(group.get("interval", "0s"))) > 60
        for rule in group["rules"]
        if 0 < seconds(rule.get("for", "0s")) < 2 * interval
    ]
    assert late == []
