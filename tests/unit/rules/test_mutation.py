"""The tests of the rules test every part of them: what is changed in a rule, a case notices.

`surviving_mutants.txt` lists the changes that no case notices yet, or that change nothing (an `increase` above 0 of one
event, a `min` of values that are all 1). It only ever gets shorter: a new one fails, so does one that is caught now.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.rules.mutant_trial import Trial
from tests.unit.rules.mutation import Mutant, groups, mutants
from tests.unit.rules.needed_rules import Rule, name_of
from tests.unit.rules.test_promtool import PROMTOOLS

ROOT = Path(__file__).parents[3]
SURVIVING = set((Path(__file__).parent / "surviving_mutants.txt").read_text().splitlines())
# The changes of one rule in so many are tried in each run; all are in the slow tests.
SAMPLE = 29
# All of them take minutes: less is lost when one of the parts fails.
PARTS = 4


@cache
def rules() -> list[Rule]:
    """Those that can be changed."""
    return [rule for group in groups() for rule in group["rules"] if name_of(rule) != "FabricWatchdog"]


@cache
def every_mutant() -> list[Mutant]:
    """Of all rules."""
    return [mutant for rule in rules() for mutant in mutants(rule)]


def reported(mutant: Mutant) -> str:
    return f"{mutant.name}: {mutant.what}"


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    """Runs cases against changed rules."""
    promtool = PROMTOOLS[0]
    if promtool is None:
        pytest.skip("promtool is not installed; scripts/fetch_tools.sh gets it")
    return Trial(promtool, groups(), ROOT / "rules" / "tests", tmp_path)


@pytest.mark.prometheus
@pytest.mark.timeout(900)
def test_sample_of_mutants_is_caught(trial: Trial) -> None:
    """All changes of one rule in twenty-nine that are known to be noticed are."""
    names = {name_of(rule) for rule in rules()[7::SAMPLE]}
    sample = [
        mutant for mutant in every_mutant() if mutant.name in names and reported(mutant) not in SURVIVING
    ]

    assert len(sample) >= 20
    assert [reported(mutant) for mutant in trial.survivors(sample)] == []


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_new_mutant_survives(trial: Trial, part: int) -> None:
    """Of all changes to all rules only those that are listed go unnoticed.

    Each case in edges/ passes without a change (test_promtool.py runs the others): one that fails proves nothing.
    """
    # All changes of a rule in one part: they are tried together.
    names = set(sorted({name_of(rule) for rule in rules()})[part::PARTS])
    changed = [mutant for mutant in every_mutant() if mutant.name in names]
    # Two changes far to the right of an expression may have one name: they are judged together.
    survivors = {reported(mutant) for mutant in trial.survivors(changed, all_edges=True)}
    listed = SURVIVING & {reported(mutant) for mutant in changed}

    assert sorted(survivors - SURVIVING) == []
    assert sorted(listed - survivors) == [], "caught now: take them off the list"


@pytest.mark.prometheus
def test_mutants_that_are_tried_together_are_judged_apart(tmp_path: Path) -> None:
    """Of a record, through an alert that reads it and a test that reads all alerts; one cannot be evaluated."""
    promtool = PROMTOOLS[0]
    if promtool is None:
        pytest.skip("promtool is not installed; scripts/fetch_tools.sh gets it")
    record: Rule = {"record": "a:b", "expr": "2 * b"}
    alert: Rule = {"alert": "A", "expr": "a:b > 3"}
    all_rules = {"name": "g", "rules": [record, alert]}
    folder = tmp_path / "tests"
    folder.mkdir()
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [all_rules]}))

    def trial(asked: dict[str, Any]) -> Trial:
        series = [{"series": 'b{c="1"}', "values": "2"}, {"series": 'b{c="2"}', "values": "1"}]
        test = {"input_series": series, **asked}
        content = {"rule_files": ["../rules.yaml"], "evaluation_interval": "15s", "tests": [test]}
        (folder / "t.yaml").write_text(yaml.safe_dump(content))
        return Trial(promtool, [all_rules], folder, tmp_path)

    def of_the_alert(*expected: dict[str, Any]) -> dict[str, Any]:
        return {"alert_rule_test": [{"eval_time": "0s", "alertname": "A", "exp_alerts": list(expected)}]}

    changes = [
        Mutant(name_of(rule), expression, rule | {"expr": expression})
        for rule, expressions in (
            (record, ("1 * b", "2.5 * b", "4 * b", "b * on () b")),
            (alert, ("a:b > 3.5", "a:b > 1")),
        )
        for expression in expressions
    ]
    all_alerts = {
        "eval_time": "0s",
        "expr": "count(ALERTS{alertname=~'A|.+'})",
        "exp_samples": [{"value": 1}],
    }
    for asked in (of_the_alert({"exp_labels": {"c": "1"}}), {"promql_expr_test": [all_alerts]}):
        survivors = trial(asked).survivors(changes)
        assert [mutant.what for mutant in survivors] == ["2.5 * b", "a:b > 3.5"]
    with pytest.raises(AssertionError, match=r"t\.yaml.*fails without a change"):
        trial(of_the_alert()).survivors(changes[:1])


def test_listed_mutants_exist() -> None:
    """Each line of the list is a change that is still tried."""
    assert sorted(SURVIVING - {reported(mutant) for mutant in every_mutant()}) == [], (
        "gone: take them off the list"
    )


def test_windows_behind_any_matcher_are_changed() -> None:
    """A matcher's value may hold braces and parentheses."""
    found = {
        mutant.what
        for mutant in mutants(
            {"record": "a:b:c", "expr": 'increase(b_total{code!~"[45][0-9]{2}|(x)"}[5m]) > 0'}
        )
    }
    selector = 'b_total{code!~"[45][0-9]{2}|(x)"}[5m]'
    assert {f"{selector} -> 600s", f"{selector} -> 150s", f"increase({selector}) -> delta"} <= found
