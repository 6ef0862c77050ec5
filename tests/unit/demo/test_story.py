"""The story marks a milestone only on evidence, and fails when one is missing."""

import pytest

from fabricpulse.lab.demo.observed import Observed, new_observed
from fabricpulse.lab.demo.story import Milestone, Phase, Story


def milestone(name: str, mark: str, within_s: float = 10.0) -> Milestone:
    return Milestone(name, name, lambda seen: f"saw {mark}" if mark in seen.marks else None, within_s)


@pytest.fixture
def observed() -> Observed:
    return new_observed({"h0": ["rail0"]})


def test_time_alone_marks_no_milestone(observed: Observed) -> None:
    """Without evidence no milestone is seen, however often and late the story is asked."""
    story = Story([Phase("one", "One", (milestone("a", "a", 100), milestone("b", "b", 100)))])
    for now in range(100):
        story.advance(observed, float(now))
    assert [result.seen_at for result in story.results] == [None, None]
    assert not story.ended


def test_a_missing_milestone_ends_the_story_and_is_named(observed: Observed) -> None:
    """A milestone that is not seen within its time fails the story at once; later phases are never entered."""
    story = Story([Phase("one", "One", (milestone("a", "a"),)), Phase("two", "Two", (milestone("b", "b"),))])
    story.advance(observed, 0.0)
    assert story.advance(observed, 9.9) == []
    kinds = [event.kind for event in story.advance(observed, 10.1)]
    assert kinds == ["missed", "end"]
    assert story.ended
    assert not story.complete
    assert story.result("a").evidence == "not seen within 10 s, host late 0.0 s"
    assert story.advance(observed, 11.0) == []


def test_milestones_of_a_phase_are_seen_in_any_order_and_phases_in_theirs(observed: Observed) -> None:
    """Evidence for the second milestone may come first; evidence for a later phase counts only in that phase."""
    story = Story(
        [
            Phase("one", "One", (milestone("a", "a"), milestone("b", "b"))),
            Phase("two", "Two", (milestone("c", "c"),)),
        ]
    )
    assert [event.kind for event in story.advance(observed, 0.0)] == ["phase"]
    observed.marks |= {"b": 1.0, "c": 1.0}
    assert [event.result.milestone.name for event in story.advance(observed, 1.0) if event.result] == ["b"]
    observed.marks["a"] = 2.0
    events = story.advance(observed, 2.0)
    assert [event.kind for event in events] == ["seen", "phase"]
    assert story.result("c").seen_at is None
    assert [event.kind for event in story.advance(observed, 3.0)] == ["seen", "end"]
    assert story.complete
    assert [result.seen_at for result in story.results] == [2.0, 1.0, 3.0]


def test_milestone_names_are_unique() -> None:
    """Two milestones of one name would hide one another in the result."""
    with pytest.raises(ValueError, match="one name"):
        Story([Phase("one", "One", (milestone("a", "a"), milestone("a", "b")))])
