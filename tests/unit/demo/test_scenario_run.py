"""A run marks a milestone only on evidence, and fails when one is missing."""

import pytest

from fabricpulse.lab.demo.observed import Observed, new_observed
from fabricpulse.lab.demo.scenario_run import Milestone, Phase, ScenarioRun


def milestone(name: str, mark: str, within_s: float = 10.0) -> Milestone:
    return Milestone(name, name, lambda seen: f"saw {mark}" if mark in seen.marks else None, within_s)


@pytest.fixture
def observed() -> Observed:
    return new_observed({"h0": ["rail0"]})


def test_time_alone_marks_no_milestone(observed: Observed) -> None:
    """Without evidence no milestone is seen, however often and late the run is asked."""
    run = ScenarioRun([Phase("one", "One", (milestone("a", "a", 100), milestone("b", "b", 100)))])
    for now in range(100):
        run.advance(observed, float(now))
    assert [result.seen_at for result in run.results] == [None, None]
    assert not run.ended


def test_a_missing_milestone_ends_the_story_and_is_named(observed: Observed) -> None:
    """A milestone that is not seen within its time fails the run at once; later phases are never entered."""
    run = ScenarioRun(
        [Phase("one", "One", (milestone("a", "a"),)), Phase("two", "Two", (milestone("b", "b"),))]
    )
    run.advance(observed, 0.0)
    assert run.advance(observed, 9.9) == []
    kinds = [event.kind for event in run.advance(observed, 10.1)]
    assert kinds == ["missed", "end"]
    assert run.ended
    assert not run.complete
    assert run.result("a").evidence == "not seen within 10 s, host late 0.0 s"
    assert run.advance(observed, 11.0) == []


def test_milestones_of_a_phase_are_seen_in_any_order_and_phases_in_theirs(observed: Observed) -> None:
    """Evidence for the second milestone may come first; evidence for a later phase counts only in that phase."""
    run = ScenarioRun(
        [
            Phase("one", "One", (milestone("a", "a"), milestone("b", "b"))),
            Phase("two", "Two", (milestone("c", "c"),)),
        ]
    )
    assert [event.kind for event in run.advance(observed, 0.0)] == ["phase"]
    observed.marks |= {"b": 1.0, "c": 1.0}
    assert [event.result.milestone.name for event in run.advance(observed, 1.0) if event.result] == ["b"]
    observed.marks["a"] = 2.0
    events = run.advance(observed, 2.0)
    assert [event.kind for event in events] == ["seen", "phase"]
    assert run.result("c").seen_at is None
    assert [event.kind for event in run.advance(observed, 3.0)] == ["seen", "end"]
    assert run.complete
    assert [result.seen_at for result in run.results] == [2.0, 1.0, 3.0]


def test_milestone_names_are_unique() -> None:
    """Two milestones of one name would hide one another in the result."""
    with pytest.raises(ValueError, match="one name"):
        ScenarioRun([Phase("one", "One", (milestone("a", "a"), milestone("a", "b")))])
