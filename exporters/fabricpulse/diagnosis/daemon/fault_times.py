"""Since when what is faulty has been so, also after the coordinator or its worker was started again. Pure.

A new worker sees each fault for the first time. What was reported last before it keeps its beginning where it is seen
again after a pause that is too short to distinguish two faults; after a longer one it may have ended and begun anew.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct, structs

from fabricpulse.diagnosis.leaf_paths.found import MOST_LEAVES, FewerPaths, LeafPaths
from fabricpulse.diagnosis.search.suspect import Suspect

# Pauses, seconds: the longest window of evidence; the time in which each path is traced once.
SUSPECT_PAUSE_S, LEAF_PAUSE_S = 120.0, 600.0
# Of the file. Names come from reports, which may hold any; what has a longer one is not kept.
_MOST, _LONGEST_NAME = 256, 256
_VERSION = 1
# How far the time between two moments may differ by the two clocks.
_CLOCKS_APART_S = 60.0
MOST_BYTES = 1 << 20

_Name = Annotated[str, Meta(max_length=_LONGEST_NAME)]
_Seconds = Annotated[float, Meta(ge=0, le=1e11)]
_Key = tuple[str, str, str, str]


class Moment(Struct, frozen=True):
    """monotonic_s : in a file None for one of another boot; in memory below 0 then. utc_s : since 1970, by the clock as
    it was when this was noted."""

    monotonic_s: _Seconds | None
    utc_s: _Seconds

    @property
    def at_s(self) -> float:
        """On the monotonic clock, for ever ago where that is not known."""
        return -math.inf if self.monotonic_s is None else self.monotonic_s


class SuspectTimes(Struct, frozen=True):
    """what to peer : as in Suspect. last : when it was reported last."""

    what: _Name
    kind: _Name
    component: _Name
    peer: _Name
    since: Moment
    last: Moment

    @property
    def key(self) -> _Key:
        """What it is of."""
        return self.what, self.kind, self.component, self.peer


class LeafTimes(Struct, frozen=True):
    """leaf, since, watched : as in FewerPaths. last : when it was reported last."""

    leaf: _Name
    since: Moment | None
    watched: Moment
    last: Moment


class KeptTimes(Struct, frozen=True):
    """boot_id : of the kernel, whose monotonic clock it is."""

    version: int
    boot_id: str
    suspects: Annotated[tuple[SuspectTimes, ...], Meta(max_length=_MOST)] = ()
    leaves: Annotated[tuple[LeafTimes, ...], Meta(max_length=MOST_LEAVES)] = ()


_Times = TypeVar("_Times", SuspectTimes, LeafTimes)
_decoder = msgspec.json.Decoder(KeptTimes)


class FaultTimes:
    """Of one coordinator. boot_id : "" if there is none; times from before a start count by UTC then."""

    def __init__(self, boot_id: str = "") -> None:
        self._boot_id = boot_id
        self._worker = 0
        # Reported by an earlier worker, and not seen again yet.
        self._suspects_before: dict[_Key, SuspectTimes] = {}
        self._leaves_before: dict[str, LeafTimes] = {}
        # Reported now.
        self._suspects: dict[_Key, SuspectTimes] = {}
        self._leaves: dict[str, LeafTimes] = {}
        # What has been restored: the moment from before, and of leaves also since when the worker watches them.
        self._began: dict[_Key, Moment] = {}
        self._leaves_began: dict[str, tuple[float, LeafTimes]] = {}

    def load(self, data: bytes, now_s: float, utc_s: float) -> None:
        """Takes in what was kept before the start. Raises ValueError for what is nonsense, or cannot be true.

        Moments of another boot get their place on the monotonic clock once and for all: somebody may set the other one.
        """
        file = _decoder.decode(data)
        if file.version != _VERSION:
            raise ValueError(f"version {file.version}")
        same = bool(self._boot_id) and file.boot_id == self._boot_id
        items: list[SuspectTimes | LeafTimes] = [*file.suspects, *file.leaves]
        for item in items:
            _check(item, same, now_s, utc_s)

        def placed(moment: Moment) -> Moment:
            return _placed(moment, same, now_s, utc_s)

        self._suspects_before = {one.key: _with_moments(one, placed) for one in file.suspects}
        self._leaves_before = {one.leaf: _with_moments(one, placed) for one in file.leaves}

    def dump(self, now_s: float, utc_s: float) -> bytes:
        """For the file: what is reported, and what was and may be seen again."""
        suspects = [*self._suspects.values(), *self._suspects_before.values()]
        leaves = [*self._leaves.values(), *self._leaves_before.values()]
        suspects = [one for one in suspects if _is_kept(one, SUSPECT_PAUSE_S, now_s)][:_MOST]
        leaves = [one for one in leaves if _is_kept(one, LEAF_PAUSE_S, now_s)][:MOST_LEAVES]

        def filed(moment: Moment) -> Moment:
            return _filed(moment, now_s, utc_s)

        file = KeptTimes(
            _VERSION,
            self._boot_id,
            tuple(_with_moments(one, filed) for one in suspects),
            tuple(_with_moments(one, filed) for one in leaves),
        )
        return msgspec.json.encode(file)

    def follow(self, worker: int) -> None:
        """What comes next is of this worker, by its number: another one begins anew."""
        if worker == self._worker:
            return
        self._worker = worker
        self._suspects_before.update(self._suspects)
        self._leaves_before.update(self._leaves)
        self._suspects, self._leaves, self._began, self._leaves_began = {}, {}, {}, {}

    def suspects(self, found: Iterable[Suspect], now_s: float, utc_s: float) -> tuple[Suspect, ...]:
        """All that are reported now, each since the beginning that is known of it."""
        answer = []
        reported: dict[_Key, SuspectTimes] = {}
        last = Moment(now_s, utc_s)
        for suspect in found:
            key = suspect.what, suspect.kind, suspect.component, suspect.peer
            before = self._suspects_before.pop(key, None) if key not in self._suspects else None
            if before is not None and suspect.since_s - before.last.at_s <= SUSPECT_PAUSE_S:
                self._began[key] = before.since
            began = self._began.get(key)
            since = began if began is not None else _moment(suspect.since_s, now_s, utc_s)
            reported[key] = SuspectTimes(*key, since, last)
            answer.append(replace(suspect, since_s=min(suspect.since_s, since.at_s)))
        self._began = {key: since for key, since in self._began.items() if key in reported}
        self._suspects = reported
        # Its evidence may be older than the moment at which it is reported.
        self._suspects_before = {
            key: one
            for key, one in self._suspects_before.items()
            if now_s - one.last.at_s <= 2 * SUSPECT_PAUSE_S
        }
        return tuple(answer)

    def leaf_paths(self, found: LeafPaths, now_s: float, utc_s: float) -> LeafPaths:
        """The same with what is known of its leaves."""
        answer = []
        reported: dict[str, LeafTimes] = {}
        last = Moment(now_s, utc_s)
        for one in found.leaves:
            began = self._leaf_began(one, now_s, utc_s)
            if began is not None:
                since = began.since.at_s if began.since is not None else None
                answer.append(structs.replace(one, since_s=since, watched_s=began.watched.at_s))
                reported[one.leaf] = structs.replace(began, last=last)
                continue
            answer.append(one)
            since_s = one.since_s
            since_moment = _moment(since_s, now_s, utc_s) if since_s is not None else None
            reported[one.leaf] = LeafTimes(one.leaf, since_moment, _moment(one.watched_s, now_s, utc_s), last)
        self._leaves = reported
        self._leaves_before = {
            leaf: one
            for leaf, one in self._leaves_before.items()
            if now_s - one.last.at_s <= 2 * LEAF_PAUSE_S
        }
        return structs.replace(found, leaves=tuple(answer))

    def _leaf_began(self, one: FewerPaths, now_s: float, utc_s: float) -> LeafTimes | None:
        """From before this worker; None where it has seen the leaf whole itself, or watches it for the first time."""
        before = self._leaves_before.pop(one.leaf, None)
        if before is not None and one.watched_s - before.last.at_s <= LEAF_PAUSE_S:
            self._leaves_began[one.leaf] = one.watched_s, before
        watched_s, began = self._leaves_began.get(one.leaf, (one.watched_s, None))
        if began is None or one.since_s is not None or watched_s != one.watched_s:
            self._leaves_began.pop(one.leaf, None)
            return None
        return began


def _moment(at_s: float, now_s: float, utc_s: float) -> Moment:
    return Moment(at_s, max(utc_s - (now_s - at_s), 0.0))


def _is_kept(one: SuspectTimes | LeafTimes, pause_s: float, now_s: float) -> bool:
    names = one.key if isinstance(one, SuspectTimes) else (one.leaf,)
    return max(map(len, names)) <= _LONGEST_NAME and now_s - one.last.at_s <= pause_s


def _moments(one: SuspectTimes | LeafTimes) -> list[Moment]:
    if isinstance(one, SuspectTimes):
        return [one.since]
    return [one.watched] if one.since is None else [one.watched, one.since]


def _check(one: SuspectTimes | LeafTimes, same_boot: bool, now_s: float, utc_s: float) -> None:
    """Raises ValueError where times are not in order."""
    last = one.last
    for moment in _moments(one):
        if same_boot and moment.monotonic_s is not None:
            if last.monotonic_s is None or moment.monotonic_s > last.monotonic_s:
                raise ValueError("something began after it was seen last")
        elif moment.utc_s > last.utc_s:
            raise ValueError("something began after it was seen last")
    if same_boot and last.monotonic_s is not None:
        if last.monotonic_s > now_s:
            raise ValueError("something was seen in the future")
        # A container may have a monotonic clock of its own.
        if abs((now_s - last.monotonic_s) - (utc_s - last.utc_s)) > _CLOCKS_APART_S:
            raise ValueError("it is not known when something was seen last: a clock has been set")
    elif last.utc_s > utc_s:
        raise ValueError("something was seen in the future: has the clock been set back?")


def _with_moments(one: _Times, change: Callable[[Moment], Moment]) -> _Times:
    if isinstance(one, SuspectTimes):
        return structs.replace(one, since=change(one.since), last=change(one.last))
    since = change(one.since) if one.since is not None else None
    return structs.replace(one, since=since, watched=change(one.watched), last=change(one.last))


def _placed(moment: Moment, same_boot: bool, now_s: float, utc_s: float) -> Moment:
    """Of a file, on the monotonic clock of now."""
    if same_boot and moment.monotonic_s is not None:
        return moment
    return Moment(now_s - (utc_s - moment.utc_s), moment.utc_s)


def _filed(moment: Moment, now_s: float, utc_s: float) -> Moment:
    """For a file. From before this boot by the clock as it is now, so that all are in order by it."""
    if moment.at_s >= 0.0:
        return moment
    return Moment(None, max(utc_s - (now_s - moment.at_s), 0.0))
