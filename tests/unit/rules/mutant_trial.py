"""Runs promtool tests against mutants of rules.

The mutants of one rule are tried at once: the rules of a test have a copy of the changed rule for each of them, and of
what reads its record, under names of their own (`FabricNicLossy__m3`), and the test asks for each of the names what it
asks of the one. Series are loaded and what the rule reads is evaluated once, not once a mutant. The first copy is the
rule as it is: a test that fails with that one says nothing about the others.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tests.unit.rules.mutation import Mutant, seconds
from tests.unit.rules.needed_rules import DUMPER, LOADER, Rule, mentioned, name_of

_COPY = "__m"
# What stands where the changed rule does in a message of promtool.
_FAILED = re.compile(r"^\s*(?:alertname|expr|rule): .*$", re.M)


@dataclass(frozen=True, eq=False)
class Case:
    """One test of a promtool test file: what it says of some rules. steps : how often the rules are evaluated in it."""

    path: Path
    test: dict[str, Any]
    steps: int

    def of(self, names: frozenset[str]) -> dict[str, Any] | None:
        """What is said of these rules."""
        alerts = [case for case in self.test.get("alert_rule_test", []) if case["alertname"] in names]
        queries = [case for case in self.test.get("promql_expr_test", []) if _words(case["expr"]) & names]
        return (
            self.test | {"alert_rule_test": alerts, "promql_expr_test": queries}
            if alerts or queries
            else None
        )


@dataclass(frozen=True, eq=False)
class Run:
    """A test that is run. kept : what of it is asked. wanted : the rules that it needs. changed : of these the rule
    that is changed and what reads it. alone : whether it must be run for each mutant by itself."""

    case: Case
    kept: dict[str, Any]
    wanted: frozenset[str]
    changed: frozenset[str]
    alone: bool


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
        self._written = 0

    def survivors(self, batch: Iterable[Mutant], *, all_edges: bool = False) -> list[Mutant]:
        """Those of the mutants with which every test passes. AssertionError where one fails with the rule as it is.

        Tests at the edges of the changed rule come first; who is caught by one is not tried with the others.
        all_edges : whether those tests at the edges of these rules are run, too, for which nobody is left.
        """
        by_rule: dict[str, list[Mutant]] = {}
        for mutant in batch:
            by_rule.setdefault(mutant.name, []).append(mutant)
        left = self._tried(by_rule, self._own_runs, all_edges)
        left = self._tried({name: some for name, some in left.items() if some}, self._runs, False)
        return [mutant for mutants in left.values() for mutant in mutants]

    def _tried(
        self, by_rule: dict[str, list[Mutant]], runs_of: Callable[[str], list[Run]], to_the_end: bool
    ) -> dict[str, list[Mutant]]:
        """Those that survive. runs_of : the tests of a rule, the quickest first.

        Each round has twice as many tests as the one before: nearly all mutants are caught early. to_the_end : whether
        the rule as it is goes on when all are caught.
        """
        out: dict[str, list[Mutant]] = {}
        left, begin, count = dict(by_rule), 0, 1
        while left:
            runs = {name: runs_of(name)[begin : begin + count] for name in left}
            out |= {name: left[name] for name, some in runs.items() if not some}
            caught = self._caught([(run, name, left[name]) for name, some in runs.items() for run in some])
            kept = {
                name: [each for each in left[name] if id(each) not in caught] for name in left if runs[name]
            }
            left = {name: some for name, some in kept.items() if some or to_the_end}
            begin, count = begin + count, 2 * count
        return out

    @cache  # noqa: B019 (one object a test run)
    def _read_by(self, expression: str) -> frozenset[str]:
        """The rules whose records or alerts an expression reads."""
        return frozenset(mentioned(expression, self._rules))

    @cache  # noqa: B019 (one object a test run)
    def _used(self, name: str, alerts: frozenset[str]) -> frozenset[str]:
        """A rule, the records and of `alerts` those that it reads, and what these read."""
        found, left = {name}, [name]
        while left:
            read = self._read_by(self._rules[left.pop()]["expr"]) & (self._records | alerts) - found
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
            more = {other for other, rule in self._rules.items() if _words(rule["expr"]) & records} - found
            found |= more
        return frozenset(found)

    @cache  # noqa: B019 (one object a test run)
    def _own_runs(self, name: str) -> list[Run]:
        """The tests at the edges of a rule."""
        return self._ordered(name, frozenset({name}), self._at_edges)

    @cache  # noqa: B019 (one object a test run)
    def _runs(self, name: str) -> list[Run]:
        """All tests of a rule and of what reads its record."""
        return self._ordered(name, self._dependents(name), self._cases)

    def _ordered(self, name: str, asked: frozenset[str], cases: list[Case]) -> list[Run]:
        """The tests that ask for these rules, the quickest first. name : the rule that is changed."""
        runs = []
        for case in cases:
            if kept := case.of(asked):
                wanted = self._wanted(case, kept)
                changed = self._changed(name, wanted)
                runs.append(Run(case, kept, wanted, changed, self._mixes(kept, wanted, changed)))
        return sorted(runs, key=lambda run: run.case.steps * len(run.wanted))

    def _wanted(self, case: Case, kept: dict[str, Any]) -> frozenset[str]:
        """The rules that a test needs: those asked for and what they read."""
        read = {each["alertname"] for each in kept["alert_rule_test"]}
        for each in kept["promql_expr_test"]:
            read |= self._read_by(each["expr"])
        # Of alerts that a rule reads those that the same test tells of: others are given as series, or do not fire.
        alerts = frozenset(each["alertname"] for each in case.test.get("alert_rule_test", []))
        wanted = read.union(*(self._used(name, alerts) for name in read))
        # A record that a test gives as a series is not also made, unless its file says so.
        return frozenset(wanted - (_given(kept) - self._loaded(case.path)))

    def _changed(self, name: str, wanted: frozenset[str]) -> frozenset[str]:
        """A rule, and those of the wanted ones that read its record or its alerts, also through others."""
        found: set[str] = set()
        more = {name}
        while more:
            found |= more
            more = {other for other in wanted - found if self._read_by(self._rules[other]["expr"]) & more}
        return frozenset(found & wanted)

    def _mixes(self, kept: dict[str, Any], wanted: frozenset[str], changed: frozenset[str]) -> bool:
        """Whether copies would not be apart: a pattern of names (`alertname=~"Fabric.*"`) reads all of them, or the
        test gives a series of a changed record, which is under one name only.
        """
        if _given(kept) & changed:
            return True
        copies = {f"{name}{_COPY}0": self._rules[name] for name in changed}
        read = [
            *(self._rules[name]["expr"] for name in wanted),
            *(each["expr"] for each in kept["promql_expr_test"]),
        ]
        return any(mentioned(each, copies) for each in read)

    def _caught(self, trials: Sequence[tuple[Run, str, Sequence[Mutant]]]) -> set[int]:
        """The ids of the mutants, each a tuple's of one rule, with which that tuple's test fails."""
        caught: set[int] = set()
        while trials:
            paths: dict[str, tuple[Run, Sequence[Mutant]]] = {}
            for run, name, mutants in trials:
                tried = [Mutant(name, "as it is", self._rules[name]), *mutants]
                parts: list[list[Mutant]] = [[one] for one in tried] if run.alone else [tried]
                for part in parts:
                    paths[str(self._write(run, part))] = run, part
            again: list[tuple[Run, str, Sequence[Mutant]]] = []
            for path, text in self._promtool_says(list(paths)).items():
                run, some = paths[path]
                if "SUCCESS" in text:
                    continue
                failed = _copies_in(text) if not run.alone else {0}
                assert failed, text
                reported = [some[number] for number in failed]
                # The unchanged one comes first.
                assert all(mutant.what != "as it is" for mutant in reported), (
                    f"{run.case.path.name}, {run.case.test.get('name')}: fails without a change\n{text}"
                )
                caught |= {id(mutant) for mutant in reported}
                # promtool ends a test in which a rule cannot be evaluated, and says nothing of the others.
                rest = [mutant for mutant in some[1:] if id(mutant) not in caught]
                if rest and re.search(r"^\s*rule: ", text, re.M):
                    again.append((run, some[0].name, rest))
            trials = again
        return caught

    def _promtool_says(self, paths: list[str]) -> dict[str, str]:
        """What it says of each test file."""
        if not paths:
            return {}
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
        return outcomes

    def _write(self, run: Run, mutants: Sequence[Mutant]) -> Path:
        """The test file of some mutants of a rule, or of one under its own name, and its rule file."""
        stem = f"{self._written}"
        self._written += 1
        rules: list[Rule] = []
        for name, rule in self._rules.items():
            if name not in run.wanted:
                continue
            if name not in run.changed:
                rules.append(rule)
                continue
            for number, mutant in enumerate(mutants):
                own = mutant.rule if name == mutant.name else rule
                rules.append(own if run.alone else _copy(own, run.changed, number))
        rules.sort(key=lambda rule: "alert" in rule)
        rule_file = self._folder / f"{stem}.rules.yaml"
        groups: dict[str, Any] = {"groups": [{"name": "g", "rules": rules}]}
        rule_file.write_text(yaml.dump(groups, Dumper=DUMPER))
        path = self._folder / f"{stem}.test.yaml"
        content = {
            "rule_files": [rule_file.name],
            "evaluation_interval": self._files[run.case.path]["evaluation_interval"],
            "tests": [run.kept if run.alone else _asked_of_copies(run.kept, run.changed, len(mutants))],
        }
        path.write_text(yaml.dump(content, Dumper=DUMPER))
        return path


def _copy(rule: Rule, changed: frozenset[str], number: int) -> Rule:
    """A rule under the names of a copy, which reads what that copy makes."""
    kind = "alert" if "alert" in rule else "record"
    return rule | {
        kind: f"{rule[kind]}{_COPY}{number}",
        "expr": _renamed(rule["expr"], changed, number),
    }


def _renamed(text: str, changed: frozenset[str], number: int) -> str:
    """An expression, or the name and labels of a sample, with the names of a copy."""
    return re.sub(r"[\w:]+", lambda word: word[0] + f"{_COPY}{number}" * (word[0] in changed), text)


def _asked_of_copies(kept: dict[str, Any], changed: frozenset[str], count: int) -> dict[str, Any]:
    """What a test asks, of each copy."""
    return kept | {
        "alert_rule_test": [
            each | {"alertname": f"{each['alertname']}{_COPY}{number}"}
            for each in kept["alert_rule_test"]
            for number in range(count)
        ],
        "promql_expr_test": [
            each
            | {
                "expr": _renamed(each["expr"], changed, number),
                "exp_samples": [
                    sample | {"labels": _renamed(sample.get("labels", "{}"), changed, number)}
                    for sample in each["exp_samples"]
                ],
            }
            for each in kept["promql_expr_test"]
            for number in range(count)
        ],
    }


def _given(test: dict[str, Any]) -> frozenset[str]:
    """The names of the series that a test gives."""
    return frozenset(each["series"].partition("{")[0] for each in test["input_series"])


def _copies_in(text: str) -> set[int]:
    """The numbers of the copies of which promtool says that they fail."""
    return {int(number) for line in _FAILED.findall(text) for number in re.findall(rf"{_COPY}(\d+)", line)}


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
def _words(expression: str) -> frozenset[str]:
    """The words of an expression: metrics, alerts and more."""
    return frozenset(re.findall(r"[\w:]+", expression))
