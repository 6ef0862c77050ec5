"""Mutation testing of the rules: each threshold, window, quantile, aggregation, duration and branch of a rule is
changed in turn, and the promtool tests of that rule must fail. What survives is a part of the rule that no test holds.

A part that stands in an expression several times (jsonnet puts it there) is changed everywhere at once, as a person who
edits the mixin would.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import yaml
from tests.unit.rules.needed_rules import DUMPER, LOADER, Rule, mentioned, name_of

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


@dataclass(frozen=True, eq=False)
class Case:
    """One test of a promtool test file: what it says of some rules. steps : how often the rules are evaluated in it."""

    path: Path
    test: dict[str, Any]
    steps: int

    def of(self, names: frozenset[str]) -> dict[str, Any] | None:
        """What is said of these rules."""
        alerts = [case for case in self.test.get("alert_rule_test", []) if case["alertname"] in names]
        queries = [case for case in self.test.get("promql_expr_test", []) if _mentions(case["expr"]) & names]
        return (
            self.test | {"alert_rule_test": alerts, "promql_expr_test": queries}
            if alerts or queries
            else None
        )


class Trial:
    """Runs the promtool tests in `tests` against changed rules.

    groups : all rule groups, records first. folder : where files may be written.
    """

    def __init__(self, promtool: str, groups: Sequence[dict[str, Any]], tests: Path, folder: Path) -> None:
        self._promtool = promtool
        self._rules = {name_of(rule): rule for group in groups for rule in group["rules"]}
        self._records = frozenset(name for name, rule in self._rules.items() if "record" in rule)
        self._folder = folder
        self._files = {path: _load(path) for path in sorted(tests.rglob("*.yaml"))}
        self._cases = [
            Case(path, test, _steps(test, content["evaluation_interval"]))
            for path, content in self._files.items()
            for test in content["tests"]
        ]
        # Those at the edges of a rule find most of what is changed in it.
        self._at_edges = [case for case in self._cases if case.path.parent.name == "edges"]

    @cache  # noqa: B019 (one object a test run)
    def _used(self, name: str, alerts: frozenset[str]) -> frozenset[str]:
        """A rule, the records and of `alerts` those that it reads, and what these read."""
        found, left = {name}, [name]
        while left:
            read = mentioned(self._rules[left.pop()]["expr"], self._rules) & (self._records | alerts) - found
            found |= read
            left += read
        return frozenset(found)

    @cache  # noqa: B019 (one object a test run)
    def _loaded(self, path: Path) -> frozenset[str]:
        """The rules that a test file loads."""
        files = [(path.parent / name).resolve() for name in self._files[path]["rule_files"]]
        return frozenset(
            name_of(rule) for file in files for group in _load(file)["groups"] for rule in group["rules"]
        )

    @cache  # noqa: B019 (one object a test run)
    def _dependents(self, name: str) -> frozenset[str]:
        """The rule, and those that read its record, also through other records."""
        found, more = {name}, {name}
        while more:
            records = {known for known in more if "record" in self._rules[known]}
            more = {other for other, rule in self._rules.items() if _mentions(rule["expr"]) & records} - found
            found |= more
        return frozenset(found)

    def survivors(self, batch: Sequence[Mutant], at_once: int = 100) -> list[Mutant]:
        """Those of the mutants with which every test passes. Tests at the edges of the changed rule come first; who is
        caught by one is not tried with the others.
        """
        own = self.survivors_at_edges(batch, at_once)
        return self._tried(own, at_once, lambda mutant: (self._dependents(mutant.name), self._cases))

    def survivors_at_edges(self, batch: Sequence[Mutant], at_once: int = 100) -> list[Mutant]:
        """Those of the mutants with which the tests in edges/ of the changed rule itself pass."""
        return self._tried(batch, at_once, lambda mutant: (frozenset({mutant.name}), self._at_edges))

    def _tried(
        self, batch: Sequence[Mutant], at_once: int, of: Callable[[Mutant], tuple[frozenset[str], list[Case]]]
    ) -> list[Mutant]:
        """Those that survive. of : the names whose tests are run, and the tests.

        The quickest tests first, each round twice as many as the one before: nearly all mutants are caught early.
        """
        out: list[Mutant] = []
        for start in range(0, len(batch), at_once):
            left, begin, count = list(batch[start : start + at_once]), 0, 1
            while left:
                runs = [(mutant, self._ordered(*of(mutant))[begin : begin + count]) for mutant in left]
                out += [mutant for mutant, cases in runs if not cases]
                runs = [(mutant, cases) for mutant, cases in runs if cases]
                left = self._survivors(runs)
                begin, count = begin + count, 2 * count
        return out

    def _ordered(
        self, names: frozenset[str], cases: list[Case]
    ) -> list[tuple[Case, dict[str, Any], frozenset[str]]]:
        """The tests of these rules with what they need, the quickest first."""
        ready = [(case, kept, self._wanted(case, kept)) for case in cases if (kept := case.of(names))]
        return sorted(ready, key=lambda run: run[0].steps * len(run[2]))

    def _wanted(self, case: Case, kept: dict[str, Any]) -> frozenset[str]:
        """The rules that a test needs: those asked for and what they read."""
        read = {each["alertname"] for each in kept["alert_rule_test"]}
        for each in kept["promql_expr_test"]:
            read |= mentioned(each["expr"], self._rules)
        # Of alerts that a rule reads those that the same test tells of: others are given as series, or do not fire.
        alerts = frozenset(each["alertname"] for each in case.test.get("alert_rule_test", []))
        wanted = read.union(*(self._used(name, alerts) for name in read))
        # A record that a test gives as a series is not also made, unless its file says so.
        given = {each["series"].partition("{")[0] for each in kept["input_series"]}
        return frozenset(wanted - (given - self._loaded(case.path)))

    def _survivors(
        self, runs: Sequence[tuple[Mutant, list[tuple[Case, dict[str, Any], frozenset[str]]]]]
    ) -> list[Mutant]:
        if not runs:
            return []
        paths: dict[str, Mutant] = {}
        for number, (mutant, cases) in enumerate(runs):
            rule_files: dict[frozenset[str], Path] = {}
            for case, kept, wanted in cases:
                path = self._write(f"{number}.{len(paths)}", mutant, case, kept, wanted, rule_files)
                paths[str(path)] = mutant
        done = subprocess.run(
            [self._promtool, "test", "rules", *paths],
            # It lives for seconds: to collect garbage less often saves a quarter of its processor time.
            env=os.environ | {"GOGC": "400"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        parts = re.split(r"^Unit Testing:\s+(.+)$", done.stdout, flags=re.M)[1:]
        outcomes = dict(zip(parts[::2], parts[1::2], strict=True))
        if set(outcomes) != set(paths):
            raise RuntimeError(f"promtool did not run all tests: {done.stdout[-2000:]}")
        caught = {id(paths[path]) for path, text in outcomes.items() if "SUCCESS" not in text}
        return [mutant for mutant, _ in runs if id(mutant) not in caught]

    def _write(
        self,
        stem: str,
        mutant: Mutant,
        case: Case,
        kept: dict[str, Any],
        wanted: frozenset[str],
        rule_files: dict[frozenset[str], Path],
    ) -> Path:
        """The test file of a mutant, and its rule file where there is none with these rules."""
        if wanted not in rule_files:
            rule_files[wanted] = self._folder / f"{stem}.rules.yaml"
            rules = [
                mutant.rule if name == mutant.name else rule
                for name, rule in self._rules.items()
                if name in wanted
            ]
            rules.sort(key=lambda rule: "alert" in rule)
            content: dict[str, Any] = {"groups": [{"name": "g", "rules": rules}]}
            rule_files[wanted].write_text(yaml.dump(content, Dumper=DUMPER))
        path = self._folder / f"{stem}.test.yaml"
        content = {
            "rule_files": [rule_files[wanted].name],
            "evaluation_interval": self._files[case.path]["evaluation_interval"],
            "tests": [kept],
        }
        path.write_text(yaml.dump(content, Dumper=DUMPER))
        return path


def _steps(test: dict[str, Any], interval: str) -> int:
    times = [
        case["eval_time"] for key in ("alert_rule_test", "promql_expr_test") for case in test.get(key, [])
    ]
    return max((seconds(time) // seconds(interval) for time in times), default=0) + 1


def _load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.load(path.read_text(), LOADER)  # noqa: S506 (builds nothing but text)
    for test in content.get("tests", []):
        for query in test.get("promql_expr_test", []):
            query["exp_samples"] = [
                sample | {"value": float(sample["value"])} for sample in query.get("exp_samples", [])
            ]
    return content


@cache
def _mentions(expression: str) -> frozenset[str]:
    """The words of an expression: metrics, alerts and more."""
    return frozenset(re.findall(r"[\w:]+", expression))
