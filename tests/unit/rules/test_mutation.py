"""The tests of the rules test every part of them: what is changed in a rule, a case notices.

`surviving_mutants.txt` lists the changes that no case notices yet, or that change nothing (an `increase` above 0 of one
event, a `min` of values that are all 1). It only ever gets shorter: a new one fails, so does one that is caught now.
"""

from functools import cache
from pathlib import Path

import pytest
from tests.unit.rules.mutation import Mutant, Trial, groups, mutants
from tests.unit.rules.needed_rules import Rule, name_of
from tests.unit.rules.test_promtool import PROMTOOLS

ROOT = Path(__file__).parents[3]
SURVIVING = set((Path(__file__).parent / "surviving_mutants.txt").read_text().splitlines())
# One in so many is tried in each run; all are in the slow tests.
SAMPLE = 35
# All of them take minutes: parts run beside one another.
PARTS = 4


@cache
def rules() -> list[Rule]:
    """Those that can be changed."""
    return [rule for group in groups() for rule in group["rules"] if name_of(rule) != "FabricWatchdog"]


@cache
def every_mutant() -> list[Mutant]:
    """Of all rules."""
    return [mutant for rule in rules() for mutant in mutants(rule)]


def told(mutant: Mutant) -> str:
    return f"{mutant.name}: {mutant.what}"


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    """Runs cases against changed rules."""
    promtool = PROMTOOLS[0]
    if promtool is None:
        pytest.skip("promtool is not installed; scripts/fetch_tools.sh gets it")
    return Trial(promtool, groups(), ROOT / "rules" / "tests", tmp_path)


@pytest.mark.slow
@pytest.mark.prometheus
def test_rules_pass_the_cases_at_their_edges(trial: Trial) -> None:
    """Each rule passes its cases in edges/ (test_promtool.py runs the others): a case that fails proves nothing."""
    unchanged = [Mutant(name_of(rule), "as it is", rule) for rule in rules()]

    passing = {mutant.name for mutant in trial.survivors_at_edges(unchanged)}
    assert [mutant.name for mutant in unchanged if mutant.name not in passing] == []


@pytest.mark.prometheus
def test_sample_of_mutants_is_caught(trial: Trial) -> None:
    """One in thirty-five of the changes that are known to be noticed is."""
    sample = [mutant for mutant in every_mutant() if told(mutant) not in SURVIVING][::SAMPLE]

    assert len(sample) >= 20
    assert [told(mutant) for mutant in trial.survivors(sample)] == []


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_new_mutant_survives(trial: Trial, part: int) -> None:
    """Of all changes to all rules only those that are listed go unnoticed."""
    # Two changes far to the right of an expression may have one name: they are judged together.
    names = set(sorted({told(mutant) for mutant in every_mutant()})[part::PARTS])
    changed = [mutant for mutant in every_mutant() if told(mutant) in names]
    survivors = {told(mutant) for mutant in trial.survivors(changed)}
    listed = SURVIVING & {told(mutant) for mutant in changed}

    assert sorted(survivors - SURVIVING) == []
    assert sorted(listed - survivors) == [], "caught now: take them off the list"


def test_listed_mutants_exist() -> None:
    """Each line of the list is a change that is still tried."""
    assert sorted(SURVIVING - {told(mutant) for mutant in every_mutant()}) == [], (
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
