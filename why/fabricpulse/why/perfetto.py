"""The same timeline in Perfetto's own form: a `Trace` of its published schema (perfetto_trace.proto).

Takes events of Chrome's trace format, as `trace` and `fleet_trace` make them: with stamps in nanoseconds. Slices of a
track of Perfetto nest; those that overlap without that, as collectives of several streams may, are drawn on further
tracks of the same name. Pure.
"""

import heapq
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

Event = dict[str, Any]
# Of perfetto_trace.proto: numbers of fields, and values of enums.
_PACKET = 1  # of Trace
_CLOCK_SNAPSHOT, _TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _FLAGS, _TRACK = 6, 8, 10, 11, 13, 60
_CLEARED = 1  # TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
_REALTIME, _BOOTTIME = 1, 6  # BuiltinClock; the second is the one of all stamps that name none
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_ONE_SEQUENCE = 1
_MOST_INT = 2**63 - 1
# What Perfetto holds: of signed 64 bits.
MOST_NS = _MOST_INT
_MOST_PID = 2**31 - 1
# Tracks of one thread on which slices may nest; what overlaps further gets tracks without nesting.
_MOST_NESTING = 8


def packets(events: Iterable[Event], clocks: dict[str, Any]) -> Iterator[bytes]:
    """A trace in pieces that belong one behind the other. clocks : what stamps of each host are worth."""
    found = list(events)
    tracks = _Tracks(found)
    first_ns = min((_at(e) for e in found if "ts_ns" in e), default=0)
    # Stamps are nanoseconds since 1970: that both clocks are one says so.
    clock = b"".join(_message(1, _int(1, c) + _int(2, first_ns)) for c in (_BOOTTIME, _REALTIME))
    yield _packet(_message(_CLOCK_SNAPSHOT, clock) + _int(_FLAGS, _CLEARED))
    for track in tracks.described():
        yield _packet(_message(_TRACK, track))
    root = tracks.of_process(0)
    if clocks:
        event = _track_event(_INSTANT, root, "clocks of the hosts", clocks)
        yield _packet(_int(_TIMESTAMP, first_ns) + event)
    for (at_ns, *_), event in sorted(_timed(found, tracks)):
        yield _packet(_int(_TIMESTAMP, at_ns) + event)


# When, then ends before what begins, then the outermost slice first, then by the order of events; an end of a slice
# without duration comes right behind its beginning.
_Order = tuple[int, int, int, int, int]


def _timed(events: list[Event], tracks: "_Tracks") -> Iterator[tuple[_Order, bytes]]:
    for number, e in enumerate(events):
        args = e.get("args", {})
        if e["ph"] == "X":
            start_ns, end_ns = _span(e)
            track = tracks.of_slice(number)
            yield (start_ns, 1, -end_ns, number, 0), _track_event(_BEGIN, track, e["name"], args)
            order = (end_ns, 0, 0, number, 1) if end_ns > start_ns else (end_ns, 1, -end_ns, number, 1)
            yield order, _track_event(_END, track)
        elif e["ph"] == "i":
            at = _track_event(_INSTANT, tracks.of_thread(e["pid"], e["tid"]), e["name"], args)
            yield (_at(e), 1, 0, number, 0), at
        elif e["ph"] == "C":
            value = _key(44, 1) + struct.pack("<d", float(args["value"]))
            counter = _int(9, _COUNTER) + _int(11, tracks.of_counter(e)) + value
            yield (_at(e), 1, 0, number, 0), _message(_TRACK_EVENT, counter)


class _Tracks:
    """Identifiers of tracks: of processes, of their threads, of further ones for slices that do not nest, counters."""

    def __init__(self, events: list[Event]) -> None:
        self._names: dict[tuple[str, int, int], str] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._slices: dict[int, int] = {}
        self.of_process(0)
        for e in events:
            if e["ph"] == "M":
                kind = "process" if e["name"] == "process_name" else "thread"
                self._names[kind, e["pid"], e["tid"] if kind == "thread" else 0] = str(e["args"]["name"])
        open_: defaultdict[tuple[int, int], _Lanes] = defaultdict(_Lanes)
        slices = [(_span(e), number) for number, e in enumerate(events) if e["ph"] == "X"]
        # Of those that begin together the longest is the outermost.
        for (start_ns, end_ns), number in sorted(slices, key=lambda s: (s[0][0], -s[0][1], s[1])):
            e = events[number]
            lane = open_[e["pid"], e["tid"]].place(start_ns, end_ns)
            self._slices[number] = self.of_thread(e["pid"], e["tid"], lane)
        for e in events:
            if e["ph"] == "i":
                self.of_thread(e["pid"], e["tid"])
            elif e["ph"] == "C":
                self.of_counter(e)

    def of_process(self, pid: int) -> int:
        return self._number("process", pid)

    def of_thread(self, pid: int, tid: int, lane: int = 0) -> int:
        self.of_process(pid)
        return self._number("thread", pid, tid, lane)

    def of_slice(self, event: int) -> int:
        return self._slices[event]

    def of_counter(self, event: Event) -> int:
        self.of_process(event["pid"])
        return self._number("counter", event["pid"], event["name"])

    def _number(self, *key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers) + 1)

    def described(self) -> Iterator[bytes]:
        """A TrackDescriptor each; a process before what belongs to it."""
        for key, number in sorted(self._numbers.items(), key=lambda item: (item[0][0] != "process", item[1])):
            kind, pid = key[0], key[1]
            if kind == "process":
                name = self._names.get(("process", pid, 0), f"process {pid}")
                # Numbers of processes begin at 1: 0 is the idle one of the kernel.
                known = _int(1, pid + 1) if pid < _MOST_PID else b""
                yield _int(1, number) + _message(3, known + _text(6, name))
                continue
            name = key[2] if kind == "counter" else self._names.get(("thread", pid, key[2]), "events")
            counter = _message(8, b"") if kind == "counter" else b""
            yield _int(1, number) + _int(5, self.of_process(pid)) + _text(2, name) + counter


class _Lanes:
    """Where slices of one thread go, in the order of their beginnings."""

    def __init__(self) -> None:
        self._nested: list[list[int]] = []
        # Of those without nesting: end of the last slice, and which; the earliest end first.
        self._flat: list[tuple[int, int]] = []

    def place(self, start_ns: int, end_ns: int) -> int:
        """The first on which a slice follows, or lies within, what is open there. That is looked for on a few, as all
        slices of a thread may overlap."""
        for number, ends in enumerate(self._nested):
            # Ends of what is open, the innermost last.
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or end_ns <= ends[-1]:
                ends.append(end_ns)
                return number
        if len(self._nested) < _MOST_NESTING:
            self._nested.append([end_ns])
            return len(self._nested) - 1
        if self._flat and self._flat[0][0] <= start_ns:
            number = self._flat[0][1]
            heapq.heapreplace(self._flat, (end_ns, number))
            return number
        number = _MOST_NESTING + len(self._flat)
        heapq.heappush(self._flat, (end_ns, number))
        return number


def _span(event: Event) -> tuple[int, int]:
    start_ns = _at(event)
    return start_ns, min(start_ns + max(event["dur_ns"], 0), MOST_NS)


def _at(event: Event) -> int:
    return int(min(max(event["ts_ns"], 0), MOST_NS))


def _track_event(kind: int, track: int, name: str = "", args: dict[str, Any] | None = None) -> bytes:
    event = _int(9, kind) + _int(11, track)
    if kind != _END:
        event += _text(23, name)
    return _message(
        _TRACK_EVENT, event + b"".join(_message(4, _annotation(*arg)) for arg in (args or {}).items())
    )


def _annotation(name: str, value: Any) -> bytes:
    if isinstance(value, dict):
        return _text(10, name) + b"".join(_message(11, _annotation(*item)) for item in value.items())
    if isinstance(value, bool):
        return _text(10, name) + _int(2, int(value))
    if isinstance(value, int) and abs(value) <= _MOST_INT:
        return _text(10, name) + _int(4, value)
    if isinstance(value, float):
        return _text(10, name) + _key(5, 1) + struct.pack("<d", value)
    return _text(10, name) + _text(6, "" if value is None else str(value))


def _packet(content: bytes) -> bytes:
    return _message(_PACKET, content + _int(_SEQUENCE, _ONE_SEQUENCE))


def _key(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _int(field: int, value: int) -> bytes:
    return _key(field, 0) + _varint(value & (2**64 - 1))


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode("utf-8", "replace"))


def _message(field: int, content: bytes) -> bytes:
    return _key(field, 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
