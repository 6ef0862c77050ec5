"""The timeline of all hosts: valid, ordered on fleet time within bounds, and honest where there is no fleet time."""

import io
import json
import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import jsonschema
import msgspec
import pytest
from tests.fixtures.web.loopback_http import LoopbackServer, Reply
from tests.unit.why.test_report import report
from tests.unit.why.test_trace import SCHEMA

from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.plugin_ipc.timeline import Change, HostTimeline, Operation, ProcessTimeline
from fabricpulse.why.fleet_trace import fleet_events
from fabricpulse.why.sources.timeline import Exporters, read_timelines
from fabricpulse.why.trace import write_trace

T0 = 1_700_000_000_000_000_000


def host(
    name: str, rank: int, operations: list[Operation], changes: list[Change] | None = None
) -> HostTimeline:
    return HostTimeline(name, [ProcessTimeline("train", rank, 100 + rank, operations, changes or [])])


def operation(number: int, end_ns: int, took_ns: int, bound_ns: int = 500, **more) -> Operation:
    fields: dict[str, Any] = {
        "communicator": "ab",
        "function": "AllReduce",
        "rank": 0,
        "size": 1 << 20,
    } | more
    return Operation(number=number, end_ns=end_ns, took_ns=took_ns, bound_ns=bound_ns, **fields)


def slices(timelines: list[HostTimeline]) -> list[dict[str, Any]]:
    return [e for e in fleet_events(timelines) if e["ph"] == "X"]


def test_order_and_lateness_hold_within_the_bounds() -> None:
    """Random truth: hosts whose clocks err by up to their bounds. What lies further apart than both bounds is drawn in
    the true order, and how late a rank is, is true within the bound beside it."""
    rng = random.Random(3)
    for _ in range(30):
        timelines, truth = [], {}
        for rank in range(rng.randint(2, 6)):
            bound = rng.choice([100, 2_000, 400_000])
            error = rng.randint(-bound, bound)
            operations = []
            for number in range(20):
                start = T0 + number * 1_000_000 + rng.randint(0, 800_000)
                took = rng.randint(1, 300_000)
                truth[f"h{rank}", number] = start
                operations.append(operation(number, start + took + error, took, bound, rank=rank))
            timelines.append(host(f"h{rank}", rank, operations))
        found = slices(timelines)
        assert [e["ts_ns"] for e in found] == sorted(e["ts_ns"] for e in found)
        keys = [(f"h{e['args']['rank']}", e["args"]["number"]) for e in found]
        for at, (key, event) in enumerate(zip(keys, found, strict=True)):
            first = min(start for (_, number), start in truth.items() if number == key[1])
            late_us = (truth[key] - first) / 1e3
            assert abs(event["args"]["late_us"] - late_us) <= event["args"]["late_bound_us"] + 1e-9
            for other_key, other in zip(keys[at + 1 :], found[at + 1 :], strict=True):
                apart_us = (other["ts_ns"] - event["ts_ns"]) / 1e3
                if apart_us > event["args"]["bound_us"] + other["args"]["bound_us"]:
                    assert truth[key] < truth[other_key]


def test_a_host_without_fleet_time_is_not_compared() -> None:
    """It has its events on a track that says so, no lateness and no bound; nor is another's lateness made of it."""
    timelines = [
        host("h0", 0, [operation(0, T0 + 5000, 1000, rank=0)]),
        host("h1", 1, [operation(0, T0 - 10**12, 1000, -1, rank=1)]),
        host("h2", 2, [operation(0, T0 + 9000, 1000, rank=2)]),
    ]
    events = fleet_events(timelines)
    by_rank = {e["args"]["rank"]: e for e in events if e["ph"] == "X"}
    assert "late_us" not in by_rank[1]["args"]
    assert "bound_us" not in by_rank[1]["args"]
    assert (by_rank[0]["args"]["late_us"], by_rank[2]["args"]["late_us"]) == (0, 4)
    tracks = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in events
        if e["ph"] == "M" and e["name"] == "thread_name"
    }
    assert [tracks[e["pid"], e["tid"]].startswith("host clock") for e in by_rank.values()].count(True) == 1
    assert tracks[by_rank[1]["pid"], by_rank[1]["tid"]].startswith("host clock")


def test_lateness_needs_two_ranks_of_one_collective() -> None:
    """A rank alone is not late; sends have no number, and other communicators and functions are other collectives."""
    timelines = [
        host("h0", 0, [operation(1, T0, 10), operation(0, T0, 10, function="Send")]),
        host("h1", 1, [operation(1, T0, 10, communicator="cd"), operation(0, T0, 10, function="Send")]),
        host("h2", 2, [operation(1, T0, 10, function="AllGather")]),
    ]
    assert not any("late_us" in e["args"] for e in slices(timelines))


def test_stamps_of_the_file_are_within_its_bounds() -> None:
    """Readers hold microseconds since 1970 as floats, a quarter of one apart: that is in the bound beside each, and
    what follows at once does not overlap."""
    took = [operation(n, T0 + n * 137, 137, 9) for n in range(50)]
    out = io.StringIO()
    write_trace(report(), [], out, [host("h0", 0, took)])
    found = [e for e in json.loads(out.getvalue())["traceEvents"] if e["ph"] == "X"]
    for o, e in zip(took, found, strict=True):
        assert (
            abs(Fraction(e["ts"]) - Fraction(o.start_ns, 1000)) + Fraction(9, 1000)
            <= e["args"]["bound_us"] + 1e-9
        )
    assert all(e["ts"] + e["dur"] <= after["ts"] for e, after in pairwise(found))
    assert max(e["args"]["bound_us"] for e in found) < 0.2


@pytest.mark.parametrize("number", [2**64, -(2**64), 10**400])
async def test_numbers_that_no_exporter_has(number: int) -> None:
    """JSON's have any length: that host is named, and the others are drawn."""
    with LoopbackServer(lambda _: Reply(msgspec.json.encode(host("h0", 0, [operation(0, T0, 9)])))) as server:
        exporters = Exporters(server.url, HttpClientConfig(timeout_s=5), "train", 60)
        (found,), silent = await read_timelines(exporters, ["h0"])
        assert found.host == "h0" and not silent
    body = msgspec.json.encode(host("h0", 0, [operation(0, T0, 77)])).replace(b"77", str(number).encode())
    with LoopbackServer(lambda _: Reply(body)) as server:
        none, (said,) = await read_timelines(replace(exporters, url=server.url), ["h0"])
        assert none == [] and "no timeline of h0 (what answers is no qp exporter" in said


def test_the_file_is_valid() -> None:
    """By the documented format, with hostile names and numbers; changes are instants; clocks are named."""
    evil = '"\x1b</script>'
    changes = [
        Change("lane_down", "stall", T0, 900, "rail0", "h1", "rail1", 3),
        Change(evil, evil, 0, -1, evil, evil, evil, 2**63),
    ]
    odd = operation(2**63, -(10**18), 2**62, 2**62, function=evil, communicator=evil)
    timelines = [host("h0", 0, [operation(0, T0, 1000), odd], changes), HostTimeline("h1")]
    timelines.append(HostTimeline(evil, [ProcessTimeline("train", None, 7, [operation(0, T0, 0)])]))
    for timeline in timelines:
        for process in timeline.processes:
            process.operations[:] = [o for o in process.operations if o.start_ns >= 0]
    out = io.StringIO()
    count = write_trace(report(), [], out, timelines)
    document = json.loads(out.getvalue())
    jsonschema.validate(document, SCHEMA)
    assert len(document["traceEvents"]) == count
    assert "lane_down rail0 to rail1 of h1: stall" in [e["name"] for e in document["traceEvents"]]
    clocks = document["otherData"]["clocks"]
    assert clocks["h0"] == {"on_fleet_time": 2, "on_host_clock": 1, "largest_bound_us": 0.9}
    assert clocks["h1"]["largest_bound_us"] is None
