"""The control socket of a running job."""

import json
import os
import socket
import stat
import statistics
import time
from collections import deque
from collections.abc import Iterator

import pytest
from tests.fixtures.plugin.control_schema import check_answer, check_request
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab
from fabricpulse.plugin.jobs import Job
from fabricpulse.plugin_ipc.control import ControlClient

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def ring() -> Iterator[Ring]:
    # Slow NICs and seldom looks: what is asked of the socket takes a minute, and the job would take half a core of it.
    with Lab(hosts=2, rails=2, nic_mbit=100) as lab:
        started = Ring(lab, 2, ["--bytes", "1M", "--poll-us", "1000"])
        started.wait_running()
        yield started
        started.stop()


def test_the_socket_is_the_users_alone(ring: Ring) -> None:
    (path,) = (ring.lab.host("h0").run_dir / "plugin").glob("*.sock")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_ISSOCK(path.stat().st_mode)


def test_hello_says_who_it_is(ring: Ring) -> None:
    answer = ring.control("h0", op="hello")
    assert (answer["ok"], answer["protocol"], answer["host"], answer["abi"]) == (True, 1, "h0", "v12")


def test_avoid_and_restore_a_nic(ring: Ring) -> None:
    """All lanes over the NIC leave service on both ends, the job runs on; the same request again changes nothing; then
    everything comes back."""
    request = {"op": "nic.avoid", "op_id": "a-1", "generation": 10, "device": "rail0"}
    answer = ring.control("h0", **request)
    assert (answer["ok"], answer["result"]) == (True, "applied")
    assert answer["changed"]
    ring.until(lambda: ring.states("h0", "rail0") == {"disabled"}, 3.0)
    since = time.time()
    ring.until(lambda: ring.bandwidth(since, time.time()) > 0)
    assert ring.control("h0", **request)["result"] == "duplicate"
    stale = ring.control("h0", op="nic.restore", op_id="a-0", generation=9, device="rail0")
    assert stale["error"]["code"] == "stale_generation"
    assert ring.control("h0", op="status", op_id="a-1")["result"] == "applied"
    assert ring.control("h0", op="nic.restore", op_id="a-2", generation=11, device="rail0")["ok"]
    ring.until(lambda: ring.states("h0", "rail0") <= {"up", "slow_start"}, 5.0)


def test_an_operation_id_is_of_one_operation(ring: Ring) -> None:
    """The same id with another operation, or other arguments, is refused: answered as a duplicate, a client would take
    for done what is not."""
    request = {"op": "detail", "op_id": "once", "generation": 1, "level": 0}
    assert ring.control("h0", **request)["ok"]
    for other in (
        {**request, "level": 1},
        {"op": "nic.avoid", "op_id": "once", "generation": 1, "device": "rail0"},
    ):
        answer = ring.control("h0", **other)
        assert answer["error"]["code"] == "op_id_reused"
    assert ring.control("h0", **{**request, "generation": 2})["result"] == "duplicate"
    assert ring.control("h0", op="status")["detail"] == 0
    assert not any(device["avoided"] for device in ring.control("h0", op="status")["devices"])


def test_what_is_no_utf8_is_refused_as_text(ring: Ring) -> None:
    """An answer is JSON text whatever was asked: what is not UTF-8 is not echoed."""
    (path,) = (ring.lab.host("h0").run_dir / "plugin").glob("*.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(path))
        for bad in (b'{"op": "\xff"}', b'{"op": "\xed\xa0\x80"}', b'{"\xc0\xaf": 1}'):
            client.send(bad)
            answer = json.loads(client.recv(1 << 18).decode())
            assert answer["error"]["code"] == "bad_request"


def test_a_boolean_is_a_boolean(ring: Ring) -> None:
    """Text in its place is refused, not ignored."""
    assert ring.control("h0", op="status", connections="false")["error"]["code"] == "bad_request"


def test_never_the_last_healthy_lane(ring: Ring) -> None:
    """With one rail avoided the other one cannot be, and nothing changes by asking."""
    assert ring.control("h0", op="nic.avoid", op_id="b-1", generation=20, device="rail0")["ok"]
    ring.until(lambda: ring.states("h0", "rail0") == {"disabled"}, 3.0)
    refused = ring.control("h0", op="nic.avoid", op_id="b-2", generation=20, device="rail1")
    assert refused["error"]["code"] == "last_healthy_lane"
    assert "rail1" in refused["error"]["message"]
    assert "up" in ring.states("h0", "rail1")
    assert ring.control("h0", op="nic.restore", op_id="b-3", generation=21, device="rail0")["ok"]
    ring.until(lambda: ring.states("h0", "rail0") <= {"up", "slow_start"}, 5.0)


def test_disable_and_enable_a_lane(ring: Ring) -> None:
    """One lane leaves service, its siblings stay."""
    connection = next(c for c in ring.control("h0", op="status")["connections"] if c["direction"] == "send")
    target = {"connection": connection["connection"], "lane": 0}
    assert ring.control("h0", op="lane.disable", op_id="c-1", generation=1, **target)["ok"]

    def state() -> str:
        status = ring.control("h0", op="status")
        (found,) = (c for c in status["connections"] if c["connection"] == target["connection"])
        return str(found["lanes"][0]["state"])

    ring.until(lambda: state() == "disabled", 3.0)
    assert ring.control("h0", op="lane.enable", op_id="c-2", generation=2, **target)["ok"]
    ring.until(lambda: state() in ("up", "slow_start"), 5.0)


@pytest.mark.parametrize(
    ("request_fields", "code"),
    [
        ({"op": "fly"}, "unknown_op"),
        ({}, "bad_request"),
        ({"op": 7}, "bad_request"),
        ({"op": "nic.avoid", "op_id": "d-1", "device": "rail0"}, "bad_request"),
        ({"op": "nic.avoid", "generation": 1, "device": "rail0"}, "bad_request"),
        ({"op": "nic.avoid", "op_id": "d-2", "generation": 99, "device": "rail9"}, "unknown_device"),
        (
            {"op": "lane.disable", "op_id": "d-3", "generation": 1, "connection": "zz", "lane": 0},
            "bad_request",
        ),
        (
            {"op": "lane.disable", "op_id": "d-4", "generation": 1, "connection": "0" * 16, "lane": 0},
            "unknown_lane",
        ),
        ({"op": "detail", "op_id": "d-5", "generation": 1, "level": 9}, "bad_request"),
    ],
)
def test_bad_requests_are_answered(ring: Ring, request_fields: dict[str, object], code: str) -> None:
    """With a code that says whether the request, the device or the lane is what is wrong."""
    answer = ring.control("h0", **request_fields)
    assert (answer["ok"], answer["error"]["code"]) == (False, code)


def test_all_that_is_said_is_of_the_schema(ring: Ring) -> None:
    """Requests and answers of a running job, no field missing and none that the schema does not know."""
    (connection, *_) = (c for c in ring.control("h0", op="status")["connections"] if c["direction"] == "send")
    lane = {"connection": connection["connection"], "lane": 0, "generation": 50}
    nic = {"device": "rail0", "generation": 50}
    for kind, request in (
        ("hello", {"op": "hello"}),
        ("status", {"op": "status"}),
        ("status", {"op": "status", "connections": False}),
        ("status", {"op": "status", "limit": 1}),
        ("events", {"op": "events", "since": 0}),
        ("change", {"op": "nic.avoid", "op_id": "s-1", **nic}),
        ("error", {"op": "nic.avoid", "op_id": "s-2", "generation": 50, "device": "rail1"}),
        ("change", {"op": "nic.restore", "op_id": "s-3", **nic}),
        ("change", {"op": "lane.weight", "op_id": "s-4", "weight": 500, **lane}),
        ("change", {"op": "lane.weight", "op_id": "s-5", "weight": None, **lane}),
        ("change", {"op": "lane.repath", "op_id": "s-6", **lane}),
        ("change", {"op": "lane.disable", "op_id": "s-7", **lane}),
        ("change", {"op": "lane.enable", "op_id": "s-8", **lane}),
        ("change", {"op": "detail", "op_id": "s-9", "generation": 50, "level": 2}),
        ("change", {"op": "detail", "op_id": "s-9", "generation": 50, "level": 2}),
        ("error", {"op": "detail", "op_id": "s-10", "generation": 49, "level": 0}),
        ("status_of_operation", {"op": "status", "op_id": "s-1"}),
        ("status_of_operation", {"op": "status", "op_id": "s-2"}),
        ("status_of_operation", {"op": "status", "op_id": "s-none"}),
        ("events", {"op": "events"}),
    ):
        check_request(request)
        if request["op"] == "nic.avoid" and request["op_id"] == "s-2":  # the other NIC is on its way out
            ring.until(lambda: ring.states("h0", "rail0") == {"disabled"}, 3.0)
        if request["op"] in ("lane.weight", "lane.disable"):
            ring.until(lambda: ring.states("h0", "rail0") <= {"up", "slow_start"}, 5.0)
        check_answer(ring.control("h0", **request), f"answer_{kind}")
    check_answer(ring.control("h0", op="fly"), "answer_error")
    ring.until(lambda: ring.states("h0", "rail0") <= {"up", "slow_start"}, 5.0)


def test_status_comes_in_pages(ring: Ring) -> None:
    """Page by page the same connections as in one piece, each once."""
    whole = ring.control("h0", op="status")
    assert whole["next"] is None
    ids = [c["connection"] for c in whole["connections"]]
    assert ids == sorted(ids)
    assert len(ids) == whole["connections_total"] >= 4
    seen: list[str] = []
    page = ring.control("h0", op="status", limit=1)
    while page["next"] is not None:
        assert page["devices"][0]["lanes"] == whole["devices"][0]["lanes"]
        seen += [c["connection"] for c in page["connections"]]
        page = ring.control("h0", op="status", limit=1, after=page["next"])
    assert [*seen, *(c["connection"] for c in page["connections"])] == ids


@pytest.mark.parametrize("fields", [{"after": "zz"}, {"after": 1}, {"limit": 0}, {"limit": "1"}])
def test_a_wrong_page_is_refused(ring: Ring, fields: dict[str, object]) -> None:
    assert ring.control("h0", op="status", **fields)["error"]["code"] == "bad_request"


def test_a_status_larger_than_a_message_arrives_whole() -> None:
    """128 connections do not fit into one answer."""
    with Lab(hosts=2, rails=1) as lab:
        many = Ring(lab, 2, ["--bytes", "1M", "--channels", "64"])
        many.wait_running()
        first = many.control("h0", op="status")
        assert first["next"] is not None
        (path,) = (lab.host("h0").run_dir / "plugin").glob("*.sock")
        whole = Job(int(path.stem.partition("-")[0]), path).status()
        assert len({c["connection"] for c in whole["connections"]}) == len(whole["connections"]) == 128
        assert whole["next"] is None
        many.stop()


def knock(path: os.PathLike[str]) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(os.fspath(path))  # waits for a place in the queue
    client.settimeout(60)
    return client


def garbage(path: os.PathLike[str], count: int) -> None:
    """That many clients, one after the other: some say nothing, some nonsense, some hang up at once."""
    kept: deque[socket.socket] = deque()
    for number in range(count):
        client = knock(path)
        if number % 3 == 0:
            client.send(b"\xff{garbage" * 100)
        if number % 3 == 1:
            kept.append(client)
            if len(kept) > 100:
                kept.popleft().close()
        else:
            client.close()
    for client in kept:
        client.close()


def test_five_hundred_garbage_clients_disturb_nobody(ring: Ring) -> None:
    """As many as are let in: who asked before them is still served, so is a new one, and the job keeps its bandwidth
    (median of the rounds' ratios to as long a time without them)."""
    (path,) = (ring.lab.host("h0").run_dir / "plugin").glob("*.sock")
    ratios = []
    with ControlClient(path) as known:
        assert known.call({"op": "hello"})["ok"]
        for _ in range(5):
            with ring.lateness() as lateness:
                start = time.time()
                garbage(path, 100)
                middle = time.time()
            time.sleep(middle - start)  # as long without them
            end = time.time()
            ring.wait_printed(end)
            assert ring.stall_ms(start, middle, lateness) < 1000
            ratios.append(ring.bandwidth(start, middle) / ring.bandwidth(middle, end))
            assert known.call({"op": "hello"})["ok"]
    assert ring.control("h0", op="hello")["ok"]
    assert statistics.median(ratios) >= 0.8, ratios


def test_who_talks_nonsense_has_to_go(ring: Ring) -> None:
    (path,) = (ring.lab.host("h0").run_dir / "plugin").glob("*.sock")
    with knock(path) as client:
        for _ in range(16):
            client.send(b"nonsense")
            assert b"bad_request" in client.recv(65536)
        assert client.recv(65536) == b""


def test_who_says_nothing_has_to_go(ring: Ring) -> None:
    (path,) = (ring.lab.host("h0").run_dir / "plugin").glob("*.sock")
    with knock(path) as client:
        assert client.recv(65536) == b""  # within the time limit of 10 s
