"""The timeline is what Chrome's trace format says, in order, and carries what the answer knows."""

import io
import json
from pathlib import Path
from typing import Any

import jsonschema
from tests.unit.why.test_flight_recorder import stuck
from tests.unit.why.test_report import report

from fabricpulse.why.report import Done
from fabricpulse.why.sources.flight_recorder import read_dumps
from fabricpulse.why.trace import write_trace

# After "Trace Event Format" (Google, 2016): what each phase must have.
COMMON = {"name": {"type": "string"}, "pid": {"type": "integer"}, "tid": {"type": "integer"}}
TIME = {"ts": {"type": "number", "minimum": 0}}


def phase(letter: str, required: list[str], **more: Any) -> dict[str, Any]:
    properties = {"ph": {"const": letter}, **COMMON, **TIME, "args": {"type": "object"}, **more}
    return {
        "properties": properties,
        "required": ["ph", "pid", "name", *required],
        "additionalProperties": False,
    }


SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    phase("M", ["args"]),
                    phase("C", ["ts", "args"]),
                    phase("i", ["ts", "s"], s={"enum": ["g", "p", "t"]}),
                    phase("X", ["ts", "dur"], dur={"type": "number", "minimum": 0}, cname={"type": "string"}),
                ]
            },
        }
    },
}


def trace(folder: Path) -> list[dict[str, Any]]:
    stuck(folder)
    out = io.StringIO()
    count = write_trace(
        report(journal=(Done(1e9, "h1/rail0", "nic.avoid"),)), read_dumps([folder]).found, out
    )
    document = json.loads(out.getvalue())
    jsonschema.validate(document, SCHEMA)
    assert len(document["traceEvents"]) == count
    return list(document["traceEvents"])


def test_valid_and_complete(tmp_path: Path) -> None:
    """Each collective of each rank is a slice; what was done and the answer are instants."""
    events = trace(tmp_path)
    slices = [e for e in events if e["ph"] == "X"]
    assert sorted({e["pid"] - 1 for e in slices}) == [0, 1, 2]
    assert len(slices) == 3 * 4 + 2
    assert {e["name"] for e in events if e["ph"] == "i"} >= {"h1/rail0: nic.avoid"}
    assert all(e["dur"] == 499_999.0 for e in slices if "cname" not in e)


def test_unfinished_collectives_are_marked(tmp_path: Path) -> None:
    """What has not ended reaches to the last stamp and stands out."""
    marked = [e for e in trace(tmp_path) if "cname" in e]
    assert {e["pid"] - 1 for e in marked} == {0, 2}
    assert all(e["args"]["sequence"] == 5 for e in marked)
