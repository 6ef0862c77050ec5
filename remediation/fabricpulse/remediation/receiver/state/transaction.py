"""A transaction: changes to the state that are committed together, with the journal lines that explain them.

Changes lie beside the state until `apply`: an event that touches one of ten thousand episodes costs one change, readers
see committed state only, and one event's changes can be undone (`mark`, `rollback`) without the others'.
"""

import itertools
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from fabricpulse.remediation.receiver.state.episode_changes import EpisodeChanges
from fabricpulse.remediation.receiver.state.model import (
    Action,
    AgentState,
    Drain,
    Episode,
    Rebalance,
    State,
    TargetState,
)
from fabricpulse.remediation.receiver.state.targets_of_host import TargetsOfHost

V = TypeVar("V")

COLLECTIONS = ("episodes", "targets", "actions", "agents", "rebalances", "drains")
# What of an episode does not change while it is only reported again.
_identity = attrgetter("status", "first_seen", "began_at", "ended_at", "target", "alert", "causes")
_versions = itertools.count(1)
_REMOVED: Any = object()
_UNCHANGED: Any = object()


@dataclass(frozen=True)
class Transition:
    """One line of the journal: what changed, and why."""

    subject: str
    event: str
    detail: dict[str, Any]


def with_changes(value: Any, **changes: Any) -> Any:
    """A copy of a frozen struct with some fields changed."""
    return msgspec.structs.replace(value, **changes)


class _View(Mapping[str, V]):
    """A dictionary with changes on top of it; a key whose change is _REMOVED is not there."""

    def __init__(self, base: dict[str, V], changes: dict[str, Any]) -> None:
        self._base = base
        self._changes = changes

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`, or `default`."""
        value = self._changes.get(key, _UNCHANGED)
        if value is _UNCHANGED:
            return self._base.get(key, default)
        return default if value is _REMOVED else value

    def __getitem__(self, key: str) -> V:
        value = self.get(key, _UNCHANGED)
        if value is _UNCHANGED:
            raise KeyError(key)
        found: V = value
        return found

    def __contains__(self, key: object) -> bool:
        return self.get(str(key), _UNCHANGED) is not _UNCHANGED

    def __iter__(self) -> Iterator[str]:
        return iter(self._merged())

    def __len__(self) -> int:
        count = len(self._base)
        for key, value in self._changes.items():
            count += (value is not _REMOVED) - (key in self._base)
        return count

    def items(self) -> ItemsView[str, V]:
        """The entries as they are now; what is changed later does not show."""
        return self._merged().items()

    def values(self) -> ValuesView[V]:
        """The values as they are now; what is changed later does not show."""
        return self._merged().values()

    def _merged(self) -> dict[str, V]:
        # Copied by the interpreter at once: fifty thousand entries one by one cost a hundred times as much.
        merged: dict[str, V] = self._base | self._changes
        for key in [key for key, value in self._changes.items() if value is _REMOVED]:
            del merged[key]
        return merged


class Transaction:
    """Changes to one state. Its mappings show the state with the changes; it must not be read after `apply`."""

    def __init__(self, state: State) -> None:
        self._base = state
        self._fields: dict[str, Any] = {}
        self._changes: dict[str, dict[str, Any]] = {name: {} for name in COLLECTIONS}
        self._undo: list[tuple[dict[str, Any], str, Any]] = []
        # Episodes that began, ended or went, those of events that were undone as well.
        self._episodes_changed: dict[str, None] = {}
        self.transitions: list[Transition] = []
        self.episodes: Mapping[str, Episode] = _View(state.episodes, self._changes["episodes"])
        self.targets: Mapping[str, TargetState] = _View(state.targets, self._changes["targets"])
        self.actions: Mapping[str, Action] = _View(state.actions, self._changes["actions"])
        self.agents: Mapping[str, AgentState] = _View(state.agents, self._changes["agents"])
        self.rebalances: Mapping[str, Rebalance] = _View(state.rebalances, self._changes["rebalances"])
        self.drains: Mapping[str, Drain] = _View(state.drains, self._changes["drains"])

    def __getattr__(self, name: str) -> Any:
        """A field of the state that is no collection, as it is now: `epoch`, `pause`, `breakers`, ..."""
        if name in State.__struct_fields__:
            return self._fields.get(name, getattr(self._base, name))
        raise AttributeError(name)

    # --- changes -------------------------------------------------------------------------------------------------

    def log(self, subject: str, event: str, **detail: Any) -> None:
        """Adds a line to the journal."""
        self.transitions.append(Transition(subject, event, detail))

    def set(self, **fields: Any) -> None:
        """Replaces fields of the state that are no collections."""
        for name, value in fields.items():
            if name in COLLECTIONS:
                raise ValueError(f"{name} is changed entry by entry")
            self._put(self._fields, name, value)

    def put_target(self, target: TargetState) -> None:
        """Replaces or adds a target's state."""
        self._put(self._changes["targets"], target.target.key, target)

    def put_action(self, action: Action) -> None:
        """Replaces or adds an action."""
        self._put(self._changes["actions"], action.op_id, action)

    def put_rebalance(self, rebalance: Rebalance) -> None:
        """Replaces or adds a rebalancing plan."""
        self._put(self._changes["rebalances"], rebalance.id, rebalance)

    def put_drain(self, drain: Drain) -> None:
        """Replaces or adds a drain."""
        self._put(self._changes["drains"], drain.id, drain)

    def put_episode(self, episode: Episode) -> None:
        """Replaces or adds an episode."""
        before = self.episodes.get(episode.fingerprint)
        if before is None or _identity(before) != _identity(episode):
            self._change_episodes((episode.fingerprint,))
        self._put(self._changes["episodes"], episode.fingerprint, episode)

    def _change_episodes(self, fingerprints: Iterable[str]) -> None:
        self._episodes_changed.update(dict.fromkeys(fingerprints))
        self.set(episodes_version=next(_versions))

    def episodes_changed_since(self, version: int) -> dict[str, None] | None:
        """Fingerprints of the episodes that began, ended or went after `version` of the episodes, oldest first, and
        perhaps of some others; None when that is not known. 0 is no version."""
        if not version:
            return None
        if version == self.episodes_version:
            return {}
        base = self._base
        known = {} if version == base.episodes_version else base.episode_changes.since(version)
        return None if known is None else known | self._episodes_changed

    def put_agent(self, agent: AgentState) -> None:
        """Replaces or adds an agent."""
        self._put(self._changes["agents"], agent.host, agent)

    def drop(self, collection: str, keys: list[str]) -> None:
        """Removes entries of a collection."""
        if collection == "episodes" and keys:
            self._change_episodes(keys)
        for key in keys:
            self._put(self._changes[collection], key, _REMOVED)

    def _put(self, changes: dict[str, Any], key: str, value: Any) -> None:
        self._undo.append((changes, key, changes.get(key, self)))
        changes[key] = value

    def targets_of(self, host: str) -> list[str]:
        """Keys of the targets of one host."""
        keys = dict.fromkeys(self._base.targets_of_host.of(self._base.targets, host))
        for key, value in self._changes["targets"].items():
            if key.partition("/")[0] == host:
                keys[key] = None
                if value is _REMOVED:
                    del keys[key]
        return list(keys)

    # --- undoing and applying ------------------------------------------------------------------------------------

    def mark(self) -> tuple[int, int]:
        """A point to go back to."""
        return len(self._undo), len(self.transitions)

    def rollback(self, mark: tuple[int, int]) -> None:
        """Undoes everything since `mark`."""
        changes, lines = mark
        while len(self._undo) > changes:
            where, key, before = self._undo.pop()
            if before is self:
                del where[key]
            else:
                where[key] = before
        del self.transitions[lines:]

    def changed(self, collection: str) -> tuple[dict[str, Any], list[str]]:
        """Entries that were replaced or added, and keys that were removed."""
        changes, base = self._changes[collection], getattr(self._base, collection)
        put = {k: v for k, v in changes.items() if v is not _REMOVED and base.get(k) is not v}
        return put, [key for key, value in changes.items() if value is _REMOVED and key in base]

    @property
    def fields(self) -> dict[str, Any]:
        """Fields that were replaced."""
        return {name: value for name, value in self._fields.items() if value != getattr(self._base, name)}

    @property
    def state(self) -> State:
        """The state with the changes, as a copy."""
        copies: dict[str, Any] = {
            name: dict(getattr(self, name).items()) if self._changes[name] else getattr(self._base, name)
            for name in COLLECTIONS
        }
        copies |= {"targets_of_host": TargetsOfHost(), "episode_changes": EpisodeChanges()}
        return msgspec.structs.replace(self._base, **copies, **self._fields)

    def apply(self) -> State:
        """The state with the changes, made in place: the dictionaries of the old state are those of the new one."""
        changes = self._changes["targets"]
        gone = [key for key, value in changes.items() if value is _REMOVED]
        self._base.targets_of_host.follow(changes.keys() - gone, gone)
        if self.episodes_version != self._base.episodes_version:
            self._base.episode_changes.note(self.episodes_version, self._episodes_changed)
        for name in COLLECTIONS:
            collection = getattr(self._base, name)
            for key, value in self._changes[name].items():
                if value is _REMOVED:
                    collection.pop(key, None)
                else:
                    collection[key] = value
        return msgspec.structs.replace(self._base, **self._fields)
