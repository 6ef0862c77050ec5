"""`/api/v1/edges` is what docs/mesh-api.md says that it is."""

import re
from pathlib import Path

import pytest
from tests.unit.mesh.synthetic import view_and_snapshot

from fabricpulse.diagnosis.wire.queue_pairs import QueuePairFlow
from fabricpulse.mesh._probe_engine import MAX_PATHS
from fabricpulse.mesh.api import edges_document
from fabricpulse.mesh.config import Probe
from fabricpulse.mesh.front_end import FrontEndWatch
from fabricpulse.mesh.rdma_plane.queue_pairs import Carried
from fabricpulse.mesh.rdma_plane.tracing import QueuePairTracing
from fabricpulse.mesh.snapshot import HealthState

PAGE = Path(__file__).parents[3] / "docs" / "mesh-api.md"
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]*) \|", re.MULTILINE)


def document(**changes):
    """What the endpoint gives for a small fleet. changes : fields of the first edge."""
    view, snapshot = view_and_snapshot(1, 2)
    snapshot.edges[0] = snapshot.edges[0]._replace(**changes)
    watch = FrontEndWatch([("am", 9093)], 1, lambda *_: None)
    hops = ("10.0.0.254", "", "10.9.0.1")
    tracing = QueuePairTracing(Probe(), lambda: (view, None))
    flow = QueuePairFlow("eth1", "10.0.0.1", "h1", "eth1", "10.0.0.2", 0xC001, 106)
    tracing.follow({flow: Carried([77], ["train-7"])})
    tracing.known = {flow: hops}
    return edges_document(view, snapshot, 9620, watch, {(0, 1): hops}, tracing.document())


def leaves(value, path=""):
    """Every field that is no container: path, value."""
    if isinstance(value, dict):
        for name, inner in value.items():
            key = "<host:port>" if path == "front_end.targets" else name
            yield from leaves(inner, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, f"{path}[]")
    else:
        yield path, value


def documented():
    """Field to unit, of the page's section on edges."""
    section = PAGE.read_text().split("\n## ")[1]
    assert section.startswith("`GET /api/v1/edges`")
    return dict(ROW.findall(section))


def test_each_field_is_documented_and_each_documented_field_is_there():
    reported = documented()
    assert reported.pop("edges[].owd_ns").strip() == "object"  # says when there is none of its fields
    assert {path for path, _ in leaves(document())} == set(reported)


def test_values_are_of_the_kind_that_is_documented():
    """Counts and times are integers, words are text, for a NIC that is down and edges that are well."""
    kinds = {"text": str, "true, false": bool, "0 to 1": float}
    reported = documented()
    for path, value in leaves(document()):
        unit = reported[path].strip()
        assert unit, f"{path} has no unit"
        if value is None:
            continue
        assert type(value) is kinds.get(unit, int), path
        if "≥ 0" in unit or unit in {"packets", "count", "index", "UDP port"}:
            assert value >= 0, path


def test_the_unknown_is_null():
    """What was never measured has no number."""
    first = document(
        window_count=0,
        received_age_ns=-1,
        received_by_peer_age_ns=-1,
        latency=HealthState.UNKNOWN,
        baseline_ns=0,
        rtt_ns=-(1 << 63),
        raw_paths=(0, 0, -(1 << 63), int(HealthState.UNKNOWN), 0, 0, 0, 0) * MAX_PATHS,
    )["edges"][0]
    unknown = {path for path, value in leaves(first) if value is None}
    assert unknown == {
        *("evidence", "owd_ns", "worst_port", "received_age_ns", "received_by_peer_age_ns"),
        *("latency.elevated", "latency.baseline_ns", "paths[].owd_ns"),
        *("rtt_ns", "paths[].elevated", "degraded_host_ns", "mtu_black_hole_bytes"),
    }


@pytest.mark.parametrize("status", [0, 3])
def test_without_fleet_time_there_is_no_error_bound(status):
    view, snapshot = view_and_snapshot(1, 2)
    watch = FrontEndWatch([], 1, lambda *_: None)
    got = edges_document(view, snapshot._replace(clock_status=status), 9620, watch)
    assert (got["clock_synchronized"], got["clock_error_bound_ns"]) == (False, None)
