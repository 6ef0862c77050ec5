"""The timeline in Perfetto's own form parses by the schema that Perfetto publishes, and says what the JSON says."""

import io
import json
import random
import sys
from collections import defaultdict
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from click.testing import CliRunner
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema
from tests.fixtures.web.loopback_http import LoopbackServer
from tests.unit.why.test_credentials import prometheus
from tests.unit.why.test_fleet_trace import T0, host, operation
from tests.unit.why.test_flight_recorder import stuck
from tests.unit.why.test_report import report

from fabricpulse.plugin_ipc.timeline import Change
from fabricpulse.why.command import command
from fabricpulse.why.fleet_trace import fleet_events
from fabricpulse.why.perfetto import packets
from fabricpulse.why.sources.flight_recorder import read_dumps
from fabricpulse.why.trace import write_perfetto, write_trace

Slice = tuple[str, str, str, int, int]
TIMELINES = [
    host(
        f"h{rank}",
        rank,
        [operation(n, T0 + n * 1_000_000 + rank * 700, 400_000, 500 + rank, rank=rank) for n in range(20)]
        + [operation(30, T0 - 5_000_000, 1_000, -1, rank=rank)],
        [Change("lane_down", "stall", T0 + 3, 900, "rail0", "h1", "rail1", 3)],
    )
    for rank in range(2)
]


def parsed(data: bytes) -> Any:
    """Strict: no field that the schema does not have, on any level."""
    trace = schema.Trace()
    trace.ParseFromString(data)
    assert trace.SerializeToString(deterministic=True) and not unknown(trace)
    return trace


def unknown(message: Message) -> bool:
    if len(UnknownFieldSet(message)):
        return True
    for field, value in message.ListFields():
        if field.message_type is not None:
            parts = value if not hasattr(value, "ListFields") else [value]
            if any(unknown(part) for part in parts):
                return True
    return False


def slices(trace: Any) -> list[Slice]:
    """(process, track, name, start, end), as Perfetto reads them: an end is of the innermost slice of its track."""
    tracks = {
        p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")
    }
    open_: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
    found, last = [], 0
    for p in trace.packet:
        if not p.HasField("track_event"):
            continue
        event = p.track_event
        assert event.track_uuid in tracks and p.timestamp >= last and p.trusted_packet_sequence_id
        last = p.timestamp
        if event.type == event.TYPE_SLICE_BEGIN:
            open_[event.track_uuid].append((event.name, p.timestamp))
        elif event.type == event.TYPE_SLICE_END:
            track = tracks[event.track_uuid]
            process = tracks[track.parent_uuid].process.process_name
            name, start = open_[event.track_uuid].pop()
            found.append((process, track.name, name, start, p.timestamp))
    assert not any(open_.values())
    return sorted(found)


def drawn(events: list[dict[str, Any]]) -> list[Slice]:
    """The same of the events that the JSON has."""
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}

    def one(e: dict[str, Any]) -> Slice:
        start, end = e["ts_ns"], e["ts_ns"] + e["dur_ns"]
        process = names.get(("process_name", e["pid"], 0), f"process {e['pid']}")
        return process, names.get(("thread_name", e["pid"], e["tid"]), "events"), e["name"], start, end

    return sorted(one(e) for e in events if e["ph"] == "X")


def test_all_hosts(tmp_path: Path) -> None:
    """Collectives of two hosts with their bounds, instants, and what stamps are worth."""
    events = fleet_events(TIMELINES)
    trace = parsed(b"".join(packets(events, {"h0": {"largest_bound_us": 9.3, "on_fleet_time": 5}})))
    assert slices(trace) == drawn(events) and drawn(events)
    instants = [
        p.track_event.name for p in trace.packet if p.track_event.type == schema.TrackEvent.TYPE_INSTANT
    ]
    assert sorted(instants) == sorted(["clocks of the hosts", *(e["name"] for e in events if e["ph"] == "i")])
    bounds = {
        a.name: a.double_value
        for p in trace.packet
        for a in p.track_event.debug_annotations
        if a.name == "bound_us"
    }
    assert bounds["bound_us"] > 0


def test_dumps_and_history(tmp_path: Path) -> None:
    """With counters of Prometheus; a rank that has not ended its collective included."""
    stuck(tmp_path)
    out = io.BytesIO()
    write_perfetto(report(), read_dumps([tmp_path]).found, out)
    trace = parsed(out.getvalue())
    assert slices(trace)
    counters = [p for p in trace.packet if p.track_event.type == schema.TrackEvent.TYPE_COUNTER]
    assert [p.track_event.double_counter_value for p in counters] == [value for _, value in report().history]
    tracks = {
        p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")
    }
    assert all(tracks[p.track_event.track_uuid].HasField("counter") for p in counters)


def test_slices_that_overlap() -> None:
    """Whatever overlaps, each slice begins and ends where it did; nested ones share a track."""
    rng = random.Random(5)
    for _ in range(200):
        events = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "r"}}]
        for number in range(rng.randrange(40)):
            ts, dur = rng.randrange(12), rng.choice([0, 1, 2, 5, 9])
            events.append(
                {"ph": "X", "name": f"c{number}", "pid": 1, "tid": 0, "ts_ns": ts, "dur_ns": dur, "args": {}}
            )
        assert slices(parsed(b"".join(packets(events, {})))) == drawn(events)
    nested = [
        {"ph": "X", "name": n, "pid": 1, "tid": 0, "ts_ns": 0, "dur_ns": d}
        for n, d in (("inner", 1), ("outer", 2))
    ]
    trace = parsed(b"".join(packets(nested, {})))
    assert len({p.track_event.track_uuid for p in trace.packet if p.HasField("track_event")}) == 1


def test_values_that_others_choose() -> None:
    """Names with markup and lone surrogates, and numbers that no integer of the schema holds."""
    args = {"a": 2**70, "b": -1, "c": float("nan"), "d": None, "e": True, "<script>": "\ud800"}
    events = [{"ph": "i", "s": "g", "name": "x\udfff</x>", "pid": 0, "tid": 0, "ts_ns": 1, "args": args}]
    (event,) = (
        p.track_event for p in parsed(b"".join(packets(events, {}))).packet if p.HasField("track_event")
    )
    assert event.name == "x?</x>"
    values = {a.name: a for a in event.debug_annotations}
    assert values["a"].string_value == str(2**70) and values["b"].int_value == -1 and values["e"].bool_value
    assert values["<script>"].string_value == "?"


def test_stamps_are_those_of_the_ring() -> None:
    """To the nanosecond, of which a float of microseconds since 1970 knows 250: collectives of one communicator that
    follow at once share a track."""
    took = [operation(n, T0 + n * 137, 137, 9) for n in range(50)]
    trace = parsed(b"".join(packets(fleet_events([host("h0", 0, took)]), {})))
    assert [s[3:] for s in slices(trace)] == [(o.start_ns, o.end_ns) for o in took]
    assert len({p.track_event.track_uuid for p in trace.packet if p.HasField("track_event")}) == 1


def test_what_no_clock_has_said_is_left_out(tmp_path: Path) -> None:
    """Before 1970, beyond what the schema holds, or no number at all."""
    odd = [operation(n, at_ns, 5) for n, at_ns in enumerate((-(10**18), 2**63 + 5, 2**70, T0))]
    odd_report = replace(
        report(), history=((nan, 1.0), (inf, 1.0), (-1.0, 1.0), (1e300, 1.0), (5.0, nan), (6.0, 7.0))
    )
    out, as_json = io.BytesIO(), io.StringIO()
    write_perfetto(odd_report, [], out, [host("h0", 0, odd)])
    trace = parsed(out.getvalue())
    assert [s[4] for s in slices(trace)] == [T0]
    assert [p.timestamp for p in trace.packet if p.track_event.type == schema.TrackEvent.TYPE_COUNTER] == [
        6 * 10**9
    ]
    write_trace(odd_report, [], as_json, [host("h0", 0, odd)])
    written = json.loads(as_json.getvalue(), parse_constant=pytest.fail)["traceEvents"]
    assert [e["ts"] for e in written if e["ph"] in "XC"] == [6e6, (T0 - 5) / 1000]
    late = {"ph": "X", "name": "x", "pid": 2**31, "tid": 0, "ts_ns": 2**63 - 2, "dur_ns": 2**62}
    assert [s[3:] for s in slices(parsed(b"".join(packets([late], {}))))] == [(2**63 - 2, 2**63 - 1)]


def test_slices_that_all_overlap_take_no_longer_each() -> None:
    """Each is on its own track, and is not compared with all that are open."""

    def lines_of(count: int) -> int:
        lines = 0

        def look(_frame: FrameType, event: str, _arg: object) -> Any:
            nonlocal lines
            lines += event == "line"
            return look

        fields = {"ph": "X", "name": "x", "pid": 1, "tid": 0, "dur_ns": count}
        events = [{**fields, "ts_ns": n} for n in range(count)]
        before = sys.gettrace()
        sys.settrace(look)
        try:
            trace = b"".join(packets(events, {}))
        finally:
            sys.settrace(before)
        tracks = {p.track_event.track_uuid for p in parsed(trace).packet if p.HasField("track_event")}
        assert len(tracks) == count
        return lines

    assert lines_of(800) < 5 * lines_of(200)


def test_the_name_of_the_file_chooses(tmp_path: Path) -> None:
    with LoopbackServer(prometheus) as server:
        for name in ("why.pftrace", "why.perfetto-trace", "why.json"):
            file = tmp_path / name
            result = CliRunner().invoke(command, ["job", "--prometheus", server.url, "--trace", str(file)])
            assert result.exit_code == 0, result.exception
    assert parsed((tmp_path / "why.pftrace").read_bytes()).packet
    assert parsed((tmp_path / "why.perfetto-trace").read_bytes()).packet
    assert (tmp_path / "why.json").read_text().startswith("{")
