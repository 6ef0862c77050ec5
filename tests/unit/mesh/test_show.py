"""`fabricpulse mesh show`: who suffers, on which source port, since when; the exit code says whether anybody does."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner
from tests.unit.mesh.synthetic import edge_state, view_and_snapshot

from fabricpulse.mesh.api import edges_document
from fabricpulse.mesh.command import command
from fabricpulse.mesh.front_end import FrontEndWatch
from fabricpulse.mesh.show import bad_paths, exit_code, impaired_edges
from fabricpulse.mesh.snapshot import PATH_FIELDS, HealthState


def document(change=lambda snapshot: None):
    """`/api/v1/edges` of a host with two NICs and three peers each."""
    view, snapshot = view_and_snapshot()
    change(snapshot)
    return edges_document(view, snapshot, 9620, FrontEndWatch([], 1, lambda *_: None))


def three_faults(snapshot):
    """One edge down, one with two bad source ports, one that is slow."""
    snapshot.edges[4] = edge_state(4, 1, HealthState.DOWN)
    raw = list(snapshot.edges[2].raw_paths)
    raw[PATH_FIELDS * 5 + 5 : PATH_FIELDS * 6] = 1, 0, 15_000
    raw[PATH_FIELDS * 6 + 3] = HealthState.DOWN
    snapshot.edges[2] = snapshot.edges[2]._replace(
        raw_paths=tuple(raw), degraded_host_ns=1_700_000_000_000_000_000
    )
    snapshot.edges[0] = edge_state(0, 0, latency=HealthState.DOWN)


def test_the_worst_comes_first():
    """Edges that are down before those that lose, those before slow ones; each with its bad paths."""
    found = impaired_edges(document(three_faults))
    assert [edge["slot"] for edge in found] == [4, 2, 0]
    assert bad_paths(found[1]) == "9625 loses 1.5 %, 9626 down"


def test_the_exit_code_is_that_of_the_host():
    """0 only when every NIC is connected and no edge suffers; a host without NICs is not well."""
    assert exit_code(document()) == 0
    assert exit_code(document(three_faults)) == 1
    nothing = {**document(), "nics": [], "edges": []}
    assert exit_code(nothing) == 1


@pytest.fixture
def exporter():
    """An HTTP server that answers /api/v1/edges with `answer`; gives its URL and the answer to set."""
    answer = {"status": 200, "body": b"{}"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(
                answer["status"] if self.path in ("/api/v1/edges", "/api/v1/suspects") else 404
            )
            self.send_header("Content-Length", str(len(answer["body"])))
            self.end_headers()
            self.wfile.write(answer["body"])

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answer
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_table_for_people(exporter):
    """Who suffers since when, in UTC, and how many; exit code 1 then, 0 if all are well."""
    url, answer = exporter
    answer["body"] = json.dumps(document(three_faults)).encode()
    result = CliRunner().invoke(command, ["show", "--url", url], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert "host h0" in lines
    assert any("2023-11-14 22:13:20Z" in line and "9626 down" in line for line in lines)
    assert "3 of 6 edges suffer" in lines
    answer["body"] = json.dumps(document()).encode()
    result = CliRunner().invoke(command, ["show", "--url", url], env={"COLUMNS": "200"})
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "all 6 edges are well")


@pytest.mark.parametrize(("flags", "count"), [([], 3), (["--all"], 6)])
def test_json_for_programs(exporter, flags, count):
    """The edges that suffer, or with --all every one; the exit code says the same."""
    url, answer = exporter
    answer["body"] = json.dumps(document(three_faults)).encode()
    result = CliRunner().invoke(command, ["show", "--url", url, "--output", "json", *flags])
    assert result.exit_code == 1
    assert len(json.loads(result.output)["edges"]) == count


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, b"", "status 500"),
        (200, b"not json", "not from a mesh exporter"),
        (200, b'{"edges": 1, "nics": []}', "not from a mesh exporter"),
        (200, b"[]", "not from a mesh exporter"),
    ],
)
def test_what_is_no_exporter_is_said(exporter, status, body, words):
    url, answer = exporter
    answer.update(status=status, body=body)
    result = CliRunner().invoke(command, ["show", "--url", url])
    assert words in str(result.exception)


def test_no_exporter_at_the_url_is_an_error_that_names_it():
    result = CliRunner().invoke(command, ["show", "--url", "http://127.0.0.1:1"])
    assert "no mesh exporter answers at http://127.0.0.1:1" in str(result.exception)


SUSPECT = {
    "what": "loss",
    "kind": "link",
    "component": "leaf-1",
    "peer": "spine-2",
    "share": 0.053,
    "confidence": 0.98,
    "flows": 12,
    "age_s": 73.2,
    "alternatives": ["switch spine-2"],
    "runner_up": "switch spine-2",
    "silent": False,
}


def test_the_fleet_as_a_table(exporter):
    """One line a suspect; exit code 1 while there is one, and a sentence when there is none."""
    url, answer = exporter
    answer["body"] = json.dumps({"hosts": 9, "flows": 576, "paths": 432, "suspects": [SUSPECT]}).encode()
    result = CliRunner().invoke(command, ["show", "--fleet", url], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    (line,) = [line for line in result.output.splitlines() if "leaf-1" in line]
    assert line.split() == [
        "loss",
        "link",
        "leaf-1",
        "to",
        "spine-2",
        "5.3",
        "%",
        "98",
        "%",
        "73",
        "s",
        "switch",
        "spine-2",
    ]
    crossing = {**SUSPECT, "queue_pairs": {"paths": 12, "jobs": ["train-7"], "named": []}}
    answer["body"] = json.dumps({"hosts": 9, "suspects": [crossing]}).encode()
    result = CliRunner().invoke(command, ["show", "--fleet", url], env={"COLUMNS": "200"})
    assert "train-7 (12 paths)" in result.output
    answer["body"] = json.dumps({"hosts": 9, "flows": 576, "paths": 432, "suspects": []}).encode()
    result = CliRunner().invoke(command, ["show", "--fleet", url], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert (
        result.output == "9 hosts report 576 flows, the switches of 432 are known; no component is suspect\n"
    )
    answer["body"] = json.dumps({"suspects": [], "fails": True}).encode()
    result = CliRunner().invoke(command, ["show", "--fleet", url])
    assert result.exit_code == 1 and "not known" in result.output and "no component" not in result.output


def test_the_fleet_for_programs(exporter):
    """The coordinator's suspects as it gave them; an answer of something else is refused."""
    url, answer = exporter
    answer["body"] = json.dumps({"suspects": [SUSPECT]}).encode()
    result = CliRunner().invoke(command, ["show", "--fleet", url, "--output", "json"])
    assert (result.exit_code, json.loads(result.output)) == (1, {"suspects": [SUSPECT]})
    answer["body"] = json.dumps(document()).encode()
    result = CliRunner().invoke(command, ["show", "--fleet", url])
    assert "not from a coordinator" in str(result.exception)


def test_a_leaf_with_fewer_live_paths_is_shown(exporter):
    """With what is missing and since when; exit code 1 also where nothing else suffers."""
    url, answer = exporter
    leaf = {"leaf": "leaf-1", "network": "rail0", "live": 2, "expected": 3, "missing": ["spine-2"]}
    leaf |= {"since": None, "watched_since": "2026-01-02T03:04:05Z"}
    paths = {"whole": 2, "fewer": 1, "unknown": 0, "leaves": [leaf]}
    answer["body"] = json.dumps({"hosts": 4, "suspects": [], "leaf_paths": paths}).encode()
    result = CliRunner().invoke(command, ["show", "--fleet", url], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    (line,) = (line for line in result.output.splitlines() if "leaf-1" in line)
    assert all(
        said in line for said in ("rail0", "2 of 3", "spine-2", "never seen, watched since 2026-01-02")
    )
    leaf["since"] = "2025-11-30T10:00:00Z"
    answer["body"] = json.dumps({"hosts": 4, "suspects": [], "leaf_paths": paths}).encode()
    result = CliRunner().invoke(command, ["show", "--fleet", url], env={"COLUMNS": "200"})
    assert "2025-11-30T10:00:00Z" in result.output and "never seen" not in result.output
