"""A timeline that Perfetto opens, in Chrome's trace format (JSON object form) or Perfetto's own: collectives by rank,
and instants.

Slices are collectives: those that the plugin's profiler saw on all hosts, on fleet time (`fleet_trace`), and those of
Flight Recorder's dumps, from where a rank enqueued one to where it was seen to end, on that host's clock, as PyTorch
stamps it. A counter is the job's bandwidth from Prometheus; instants are state changes of lanes and
NICs, what remediation did by the receiver's clock, and when the job became slow. Inside, an event has its stamp and
duration in nanoseconds; what no clock can have said, before 1970 or after 2262, is left out.
"""

import json
import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, BinaryIO, TextIO

from fabricpulse.plugin_ipc.timeline import HostTimeline
from fabricpulse.why.fleet_trace import fleet_events, summary
from fabricpulse.why.perfetto import MOST_NS, packets
from fabricpulse.why.report import Report
from fabricpulse.why.sources.flight_recorder import Dump

# A slice that has not ended gets this colour of Chrome's palette, and its end is the last stamp of all dumps.
_UNFINISHED = "terrible"
_JOB = 0  # process number of what concerns the whole job; ranks are 1 and up


def write_trace(
    report: Report, dumps: Iterable[Dump], out: TextIO, timelines: Iterable[HostTimeline] = ()
) -> int:
    """Writes the file; returns the number of events. Times are microseconds since 1970, of which readers know a quarter
    of one: `bound_us` has what that costs in it."""
    count = 0
    dumps, timelines = list(dumps), list(timelines)
    clocks = json.dumps(summary(timelines), ensure_ascii=True)
    out.write(f'{{"displayTimeUnit": "ms", "otherData": {{"clocks": {clocks}}}, "traceEvents": [')
    for event in _all(report, dumps, timelines):
        out.write(("," if count else "") + "\n" + json.dumps(_in_us(event), ensure_ascii=True))
        count += 1
    out.write("\n]}\n")
    return count


def write_perfetto(
    report: Report, dumps: Iterable[Dump], out: BinaryIO, timelines: Iterable[HostTimeline] = ()
) -> None:
    """Writes the same as a `Trace` of Perfetto."""
    dumps, timelines = list(dumps), list(timelines)
    for piece in packets(_all(report, dumps, timelines), summary(timelines)):
        out.write(piece)


def _all(report: Report, dumps: list[Dump], timelines: list[HostTimeline]) -> Iterator[dict[str, Any]]:
    of_ranks = max((dump.rank + 1 for dump in dumps), default=_JOB)
    found = chain(events(report, dumps), fleet_events(timelines, of_ranks + 1))
    return (e for e in found if 0 <= e.get("ts_ns", 0) <= MOST_NS)


def _in_us(event: dict[str, Any]) -> dict[str, Any]:
    """The same as the format has it."""
    found = {key: value for key, value in event.items() if key not in ("ts_ns", "dur_ns")}
    if "ts_ns" not in event:
        return found
    # Of integers: 1e3 would make a float of the stamp first, to a quarter of a microsecond as well.
    found["ts"] = at_us = event["ts_ns"] / 1000
    if "dur_ns" in event:
        # No further than the rounded end: what follows at once begins there.
        end_us = (event["ts_ns"] + event["dur_ns"]) / 1000
        found["dur"] = min(event["dur_ns"] / 1000, end_us - at_us)
    if "bound_us" in event.get("args", {}):
        found["args"] = event["args"] | {"bound_us": event["args"]["bound_us"] + math.ulp(at_us) / 2}
    return found


def events(report: Report, dumps: list[Dump]) -> Iterator[dict[str, Any]]:
    """Events as the format defines them, but for their stamps: M (names), X (slices), C (counters), i (instants).
    Pure."""
    v = report.answer
    yield {"ph": "M", "name": "process_name", "pid": _JOB, "tid": 0, "args": {"name": f"job {v.workload}"}}
    for at_s, bandwidth in report.history:
        if not math.isfinite(bandwidth):
            continue
        yield {
            "ph": "C",
            "name": "bandwidth, B/s",
            "pid": _JOB,
            "tid": 0,
            "ts_ns": _ns(at_s),
            "args": {"value": bandwidth},
        }
    if v.since_s is not None:
        yield _instant("slow from here", v.since_s)
    for done in report.journal or ():
        yield _instant(f"{done.subject}: {done.text}", done.at_s)
    yield _instant(v.headline, v.at_s)
    last_ns = max((max(e.created_ns, e.started_ns, e.ended_ns) for d in dumps for e in d.entries), default=0)
    for dump in dumps:
        pid = dump.rank + 1
        yield {
            "ph": "M",
            "name": "process_name",
            "pid": pid,
            "tid": 0,
            "args": {"name": f"rank {dump.rank}, its dump: host clock"},
        }
        groups = sorted({e.group for e in dump.entries})
        for number, group in enumerate(groups):
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": group}}
        for e in dump.entries:
            start_ns = e.started_ns or e.created_ns
            if not start_ns:
                continue
            end_ns = e.ended_ns or last_ns
            slice_ = {
                "ph": "X",
                "name": e.name or "collective",
                "pid": pid,
                "tid": groups.index(e.group),
                "ts_ns": start_ns,
                "dur_ns": max(end_ns - start_ns, 0),
                "args": {
                    "sequence": e.sequence,
                    "state": e.state,
                    "waited_us": (start_ns - e.created_ns) / 1e3 if e.created_ns else 0,
                },
            }
            yield slice_ if e.ended_ns else {**slice_, "cname": _UNFINISHED}


def _instant(name: str, at_s: float) -> dict[str, Any]:
    return {"ph": "i", "s": "g", "name": name, "pid": _JOB, "tid": 0, "ts_ns": _ns(at_s)}


def _ns(at_s: float) -> int:
    """-1 for no time at all."""
    return round(at_s * 1e9) if 0 <= at_s <= MOST_NS / 1e9 else -1
