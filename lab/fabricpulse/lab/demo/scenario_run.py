"""One run of a scenario as a pure state machine: phases, and in each phase milestones that must really be seen.

A milestone is seen when its check finds its evidence in what has been observed; time alone never marks one. Those of
a phase are watched side by side, because the speeds of data path, push and rules overlap. A phase ends when all its
milestones have been seen, and the run fails when one was not seen within its time.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fabricpulse.lab.demo.observed import Observed

# So a machine on which nothing moves ends the run too.
PATIENCE = 10

Check = Callable[[Observed], str | None]
Act = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True)
class Milestone:
    """One thing that must be seen.

    name : identifier in the JSON result. title : what a person reads. check : evidence in words, or None as long as
    there is none. within_s : seconds from the start of the phase after which the run fails.
    """

    name: str
    title: str
    check: Check
    within_s: float


@dataclass(frozen=True)
class Phase:
    """Milestones that are watched together. act : what the demo does to the lab at the start of the phase."""

    name: str
    title: str
    milestones: tuple[Milestone, ...]
    act: Act | None = None


@dataclass
class MilestoneResult:
    """What became of a milestone. seen_at : monotonic seconds, None if it was not seen."""

    milestone: Milestone
    phase: str
    seen_at: float | None = None
    evidence: str = ""


@dataclass(frozen=True)
class Event:
    """Something that the run reports: kind is "phase", "seen", "missed" or "end"."""

    kind: str
    at: float
    text: str
    phase: Phase | None = None
    result: MilestoneResult | None = None


@dataclass
class ScenarioRun:
    """Goes through the phases; `advance` is called with each new observation."""

    phases: Sequence[Phase]
    results: list[MilestoneResult] = field(default_factory=list)
    _index: int = -1
    _phase_start: float = 0.0
    ended: bool = False

    def __post_init__(self) -> None:
        self.results = [
            MilestoneResult(milestone, phase.name) for phase in self.phases for milestone in phase.milestones
        ]
        names = [result.milestone.name for result in self.results]
        if len(set(names)) != len(names):
            raise ValueError("two milestones of a scenario have one name")

    @property
    def complete(self) -> bool:
        """True when every milestone has been seen."""
        return all(result.seen_at is not None for result in self.results)

    @property
    def phase(self) -> Phase | None:
        """The phase that is being played."""
        return self.phases[self._index] if 0 <= self._index < len(self.phases) and not self.ended else None

    def result(self, name: str) -> MilestoneResult:
        """The result of the milestone `name`. Raises KeyError."""
        for result in self.results:
            if result.milestone.name == name:
                return result
        raise KeyError(name)

    def advance(self, observed: Observed, now: float) -> list[Event]:
        """Takes in what has been observed by `now`; returns what happened in the run, in order."""
        if self.ended:
            return []
        events: list[Event] = []
        if self._index < 0:
            events.append(self._enter(0, now))
            return events
        current = self.phases[self._index]
        pending = [r for r in self.results if r.phase == current.name and r.seen_at is None]
        waited = now - self._phase_start
        late = observed.lateness.worst(self._phase_start, now)
        for result in pending:
            evidence = result.milestone.check(observed)
            if evidence is not None:
                result.seen_at = now
                result.evidence = evidence
                events.append(Event("seen", now, evidence, current, result))
            elif waited - late > result.milestone.within_s or waited > PATIENCE * result.milestone.within_s:
                result.evidence = f"not seen within {waited:.0f} s, host late {late:.1f} s"
                events.append(Event("missed", now, result.evidence, current, result))
        if any(event.kind == "missed" for event in events):
            self.ended = True
            events.append(
                Event("end", now, f"the run ends in phase {current.name!r}: a milestone was not seen")
            )
        elif all(r.seen_at is not None for r in self.results if r.phase == current.name):
            if self._index + 1 < len(self.phases):
                events.append(self._enter(self._index + 1, now))
            else:
                self.ended = True
                events.append(Event("end", now, "every milestone was seen"))
        return events

    def _enter(self, index: int, now: float) -> Event:
        self._index = index
        self._phase_start = now
        phase = self.phases[index]
        return Event("phase", now, phase.title, phase)
