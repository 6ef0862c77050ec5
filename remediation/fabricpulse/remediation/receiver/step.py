"""The result of an event: a new state, and the lines of the journal that explain it.

A step reads through to the state it began with and copies a collection only when it is first written to: an event that
touches one of ten thousand episodes must not cost ten thousand copies, and one with ten thousand alerts one copy each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fabricpulse.remediation.receiver.model import Action, AgentState, Episode, State, TargetState


@dataclass(frozen=True)
class Transition:
    """One line of the journal: what changed, and why."""

    subject: str
    event: str
    detail: dict[str, Any]


def with_changes(value: Any, **changes: Any) -> Any:
    """A copy of a frozen struct with some fields changed."""
    return msgspec.structs.replace(value, **changes)


class Step:
    """A state being changed."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._drafts: dict[str, dict[str, Any]] = {}
        self.transitions: list[Transition] = []

    @property
    def state(self) -> State:
        """The state as it is now."""
        if self._drafts:
            self._state = msgspec.structs.replace(self._state, **self._drafts)
            self._drafts = {}
        return self._state

    @property
    def episodes(self) -> Mapping[str, Episode]:
        """By fingerprint."""
        return self._drafts.get("episodes", self._state.episodes)

    @property
    def targets(self) -> Mapping[str, TargetState]:
        """By target key."""
        return self._drafts.get("targets", self._state.targets)

    @property
    def actions(self) -> Mapping[str, Action]:
        """By op_id."""
        return self._drafts.get("actions", self._state.actions)

    @property
    def agents(self) -> Mapping[str, AgentState]:
        """By host."""
        return self._drafts.get("agents", self._state.agents)

    def log(self, subject: str, event: str, **detail: Any) -> None:
        """Adds a line to the journal."""
        self.transitions.append(Transition(subject, event, detail))

    def set(self, **fields: Any) -> None:
        """Replaces fields of the state that are no collections, or whole collections."""
        self._state = msgspec.structs.replace(self.state, **fields)

    def put_target(self, target: TargetState) -> None:
        """Replaces or adds a target's state."""
        self._draft("targets")[target.target.key] = target

    def put_action(self, action: Action) -> None:
        """Replaces or adds an action."""
        self._draft("actions")[action.op_id] = action

    def put_episode(self, episode: Episode) -> None:
        """Replaces or adds an episode."""
        self._draft("episodes")[episode.fingerprint] = episode

    def put_agent(self, agent: AgentState) -> None:
        """Replaces or adds an agent."""
        self._draft("agents")[agent.host] = agent

    def drop(self, collection: str, keys: list[str]) -> None:
        """Forgets members of a collection."""
        if keys:
            draft = self._draft(collection)
            for key in keys:
                del draft[key]

    def _draft(self, name: str) -> dict[str, Any]:
        draft = self._drafts.get(name)
        if draft is None:
            draft = self._drafts[name] = dict(getattr(self._state, name))
        return draft
