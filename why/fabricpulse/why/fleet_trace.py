"""Collectives and state changes of all hosts as events of Chrome's trace format, on fleet time. Pure.

Stamps are whole nanoseconds, `ts_ns` and `dur_ns`, until they are written.

An event is where its stamp says, and true time is within `bound_us` of it. So two events of different hosts are in the
order in which they are drawn if they lie further apart than both bounds; `late_us` of a collective, by how much a rank
entered it after the first of those that are seen, has its own bound beside it. Stamps of a host without fleet
time are on that host's clock: they have tracks of their own, which say so, and no lateness.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from fabricpulse.plugin_ipc.timeline import Change, HostTimeline, Operation, ProcessTimeline

Event = dict[str, Any]
_Key = tuple[str, str, int]
_CHANGES = 0  # track of a process
_PAIRWISE = {"Send", "Recv"}
_ALONE = "host clock, compare on this host alone: "


def fleet_events(timelines: Iterable[HostTimeline], first_pid: int = 1) -> list[Event]:
    """Names of tracks, then slices and instants in the order of their stamps. first_pid : of the first process."""
    hosts = sorted(timelines, key=lambda t: t.host)
    first = _first_starts(o for t in hosts for p in t.processes for o in p.operations)
    names: list[Event] = []
    events: list[Event] = []
    pid = first_pid
    for timeline in hosts:
        for process in sorted(timeline.processes, key=lambda p: (p.rank is None, p.rank or 0, p.pid)):
            tracks = _Tracks(pid)
            events += _of_process(process, tracks, first)
            rank = f"rank {process.rank}" if process.rank is not None else f"process {process.pid}"
            names.append(_name("process_name", pid, 0, f"{rank} on {timeline.host}"))
            names += tracks.names()
            pid += 1
    return [*names, *sorted(events, key=lambda e: (e["ts_ns"], e["pid"], e["tid"]))]


def summary(timelines: Iterable[HostTimeline]) -> dict[str, Any]:
    """What the stamps of each host are worth: for the file's `otherData`."""
    found = {}
    for t in timelines:
        bounds = [o.bound_ns for p in t.processes for o in p.operations]
        bounds += [c.bound_ns for p in t.processes for c in p.changes]
        known = [b for b in bounds if b >= 0]
        found[t.host] = {
            "on_fleet_time": len(known),
            "on_host_clock": len(bounds) - len(known),
            "largest_bound_us": max(known) / 1e3 if known else None,
        }
    return found


class _Tracks:
    """Tracks of one process: one of changes, one a communicator, and as many again on the host's clock."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._numbers: dict[tuple[str, bool], int] = {}

    def number(self, communicator: str, comparable: bool) -> int:
        return self._numbers.setdefault((communicator, comparable), len(self._numbers) + _CHANGES + 1)

    def names(self) -> Iterator[Event]:
        for (communicator, comparable), number in self._numbers.items():
            what = f"communicator {communicator}" if communicator else "lanes and NICs"
            yield _name("thread_name", self.pid, number, what if comparable else _ALONE + what)


def _of_process(
    process: ProcessTimeline, tracks: _Tracks, first: dict[_Key, tuple[int, int]]
) -> Iterator[Event]:
    for o in process.operations:
        args: dict[str, Any] = {"number": o.number, "rank": o.rank, "bytes": o.size}
        if o.took_ns > 0:
            args["bytes_per_second"] = round(o.size * 1e9 / o.took_ns)
        if o.is_comparable:
            args["bound_us"] = o.bound_ns / 1e3
            if (entered := first.get(_key(o))) is not None:
                args["late_us"] = (o.start_ns - entered[0]) / 1e3
                args["late_bound_us"] = (o.bound_ns + entered[1]) / 1e3
        yield {
            "ph": "X",
            "name": o.function or "collective",
            "pid": tracks.pid,
            "tid": tracks.number(o.communicator, o.is_comparable),
            "ts_ns": o.start_ns,
            "dur_ns": max(o.took_ns, 0),
            "args": args,
        }
    for c in process.changes:
        comparable = c.bound_ns >= 0
        yield {
            "ph": "i",
            "s": "p",
            "name": _change(c),
            "pid": tracks.pid,
            "tid": tracks.number("", comparable),
            "ts_ns": c.at_ns,
            "args": {"value": c.value, **({"bound_us": c.bound_ns / 1e3} if comparable else {})},
        }


def _key(o: Operation) -> _Key:
    return o.communicator, o.function, o.number


def _first_starts(operations: Iterable[Operation]) -> dict[_Key, tuple[int, int]]:
    """Collective of which several ranks are seen -> fleet time at which the first one entered it, and its bound.

    The first by its stamp need not be the first in truth: the earliest time at which any rank may have entered, and
    that before which one surely has, enclose it.
    """
    starts: defaultdict[_Key, list[tuple[int, int]]] = defaultdict(list)
    for o in operations:
        # Sends and receives have no number, and concern two ranks.
        if o.is_comparable and o.function not in _PAIRWISE:
            starts[_key(o)].append((o.start_ns, o.bound_ns))
    found = {}
    for key, known in starts.items():
        first_ns = min(start_ns for start_ns, _ in known)
        earliest_ns = min(start_ns - bound_ns for start_ns, bound_ns in known)
        latest_ns = min(start_ns + bound_ns for start_ns, bound_ns in known)
        if len(known) > 1:
            found[key] = (first_ns, max(first_ns - earliest_ns, latest_ns - first_ns))
    return found


def _change(c: Change) -> str:
    where = c.device
    if c.peer:
        where += f" to {c.peer_device + ' of ' if c.peer_device else ''}{c.peer}"
    return c.kind + (f" {where}" if where else "") + (f": {c.reason}" if c.reason else "")


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
