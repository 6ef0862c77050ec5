"""NCCL's RAS service. Answers are made here after src/ras/client_support.cc of NCCL 2.30; those of jobs are in
test_captured_hangs.py and tests/peers/test_why_captures.py."""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.core.errors import UserError
from fabricpulse.why.analysis import Analysis
from fabricpulse.why.causes import hang, rank_dead
from fabricpulse.why.command import command
from fabricpulse.why.facts import Facts, Rank
from fabricpulse.why.sources import ras

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv")


def rank(number: int, launched: int, name: str = "AllReduce", **status: Any) -> dict[str, Any]:
    return {
        "rank": number, "host": f"10.0.0.{number}", "pid": 1000 + number, "cuda_dev": 0, "nvml_dev": 0,
        "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False,
                   "abort_flag": False, **status},
        "collective_counts": dict.fromkeys(FUNCTIONS, 0) | {name: launched},
    }  # fmt: skip


def lost(number: int, *, dead: bool) -> dict[str, Any]:
    status = {"unresponsive": True, "considered_dead": dead}
    return {
        "rank": number, "host": f"10.0.0.{number}", "pid": 1000 + number, "cuda_dev": 0, "nvml_dev": 0,
        "status": status,
    }  # fmt: skip


def document(ranks: list[dict[str, Any]], missing: list[dict[str, Any]] | None = None) -> bytes:
    missing = missing or []
    return json.dumps({
        "nccl_version": "2.30.7", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
        "timestamp": "2026-11-24 12:00:00", "communicators_count": 1,
        "communicators": [{
            "hash": "0xabc", "secondary_hash": "0x1:0x2", "size": len(ranks) + len(missing),
            "ranks_count": len(ranks), "missing_ranks_count": len(missing), "ranks": ranks,
            "missing_ranks": missing,
        }],
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }, indent=2).encode()  # fmt: skip


def facts(first: bytes, second: bytes) -> ras.RasFacts:
    return ras.facts_of(ras.parse(b"OK\nOK\n" + first, 0.0, "x"), ras.parse(second, 10.0, "x"))


def analysis(reported: ras.RasFacts) -> Analysis:
    return Analysis(ras.add(Facts("job", 0.0), reported))


@given(st.integers(2, 9), st.data())
def test_who_is_behind_is_named(size: int, data: st.DataObject) -> None:
    """A minority that has launched fewer collectives, in a job in which nothing moves: it alone, and no network."""
    behind = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=max(1, (size - 1) // 2)))
    base = data.draw(st.integers(0, 1 << 40))
    more = data.draw(st.integers(1, 3))
    still = document([rank(n, base + (0 if n in behind else more)) for n in range(size)])
    found = list(hang.find(analysis(facts(still, still))))
    assert {f.where for f in found} == {f"rank {n} on 10.0.0.{n}" for n in behind}


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8), st.data())
def test_a_job_that_moves_does_not_hang(launched: list[int], data: st.DataObject) -> None:
    """Whatever its counts are, which RAS takes at different moments: one rank that moves is enough."""
    moves = data.draw(st.integers(0, len(launched) - 1))
    first = document([rank(n, count) for n, count in enumerate(launched)])
    second = document([rank(n, count + (n == moves)) for n, count in enumerate(launched)])
    reported = facts(first, second)
    assert not analysis(reported).stalled
    assert not reported.mismatches


def test_all_in_the_same_collective_is_unknown() -> None:
    """RAS cannot tell a hang from a job that computes; it is said, and the job is not called healthy."""
    still = document([rank(n, 7) for n in range(4)])
    known = analysis(facts(still, still))
    assert not list(hang.find(known))
    assert known.slow is None
    assert "what ranks have launched" in known.facts.limits[0]


def test_ranks_that_nccl_2_28_misses() -> None:
    """It leaves out a comma where it tells of them (as 2.28.9 does; 2.29.1 does not): the answer is no JSON."""
    whole = document([rank(0, 4)], [lost(1, dead=False)])
    broken = re.sub(rb'("nvml_dev": 0),(\s+"status": \{\s+"unresponsive")', rb"\1\2", whole)
    assert broken != whole
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken)
    assert facts(broken, broken) == facts(whole, whole)
    assert [f.where for f in rank_dead.find(analysis(facts(broken, broken)))] == ["rank 1 on 10.0.0.1"]


def test_a_rank_that_ras_misses() -> None:
    """Dead and unresponsive ranks are named, the dead one surer; what is in progress is not guessed without them."""
    still = document([rank(0, 7, async_error=6), rank(1, 6)], [lost(2, dead=True), lost(3, dead=False)])
    known = analysis(facts(still, still))
    dead, unresponsive = rank_dead.find(known)
    assert (dead.where, unresponsive.where) == ("rank 2 on 10.0.0.2", "rank 3 on 10.0.0.3")
    assert dead.confidence > 0.9 > unresponsive.confidence > 0.5
    assert "rank 0 on 10.0.0.0 reports asynchronous error 6" in dead.evidence[1].text
    assert not known.stalled


def test_different_collectives_are_a_deadlock() -> None:
    """Ranks have launched as many, and not the same."""
    still = document([rank(0, 7), rank(1, 7, "AllGather")])
    (reported,) = facts(still, still).mismatches
    assert "ranks 0: 7 AllReduce" in reported
    assert "ranks 1: 7 AllGather" in reported
    assert [f.where for f in hang.find(analysis(facts(still, still)))] == ["deadlock of the program"]


def test_progress_of_exporters_comes_first() -> None:
    """Where the exporters say what has ended, RAS adds who is missing, and nothing about progress."""
    still = document([rank(0, 7), rank(1, 6)], [])
    own = Rank("c", 0, "h0", operations=5.0, rate=1.0, in_progress=0.0)
    reported = ras.add(Facts("job", 0.0, ranks=(own,)), facts(still, still))
    assert reported.ranks == (own,)
    assert reported.window_s == 120.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"ERROR: Unknown command SET FORMAT json\nNCCL version 2.24\n", "2.28"),
        (b"OK\nOK\n", "2.28"),
        (b'OK\n{"communicators": [{"hash": 1, "size": 2}]}', "form of NCCL's RAS"),
        (b'OK\n{"communicators": [', "form of NCCL's RAS"),
        (b'OK\n{"communicators": [{"hash": "\xff", "size": 2}]}', "form of NCCL's RAS"),
        (b'OK\n{"nccl_version": "2.30"}', "form of NCCL's RAS"),
        (b'OK\n{"communicators": [], "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "form of NCCL's RAS"),
        (b'OK\n{"communicators": [{"hash": "a", "size": 1' + b"0" * 400 + b"}]}", "form of NCCL's RAS"),
    ],
)
def test_what_is_no_answer_of_ras(text: bytes, words: str) -> None:
    """Said in one sentence that names the address."""
    with pytest.raises(UserError, match="h0:1") as error:
        ras.parse(text, 0.0, "h0:1")
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("h0", ("h0", 28028)), ("h0:99", ("h0", 99)), ("[fe80::1]:7", ("fe80::1", 7)), ("fe80::1", ("fe80::1", 28028)),
        ("[::1]", ("::1", 28028)),
    ],
)  # fmt: skip
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    """With and without a port, IPv6 in brackets or not."""
    assert ras.host_and_port(address) == parts


@pytest.mark.parametrize("address", ["", ":1", "h:0", "h:65536", "h:x", "[::1]:x", "h:²"])
def test_bad_addresses(address: str) -> None:
    """A sentence that says what to give."""
    with pytest.raises(UserError, match="give HOST"):
        ras.host_and_port(address)


@contextmanager
def service(*answers: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives one answer a connection and ends it, as RAS does; None: it does not answer. Its address, and
    what it was asked.
    """
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    lines = b""
                    while b"STATUS\n" not in lines:
                        lines += connection.recv(4096)
                    asked.append(lines)
                    if answer is None:
                        connection.recv(1)
                        return
                    connection.sendall(b"OK\nOK\n" + answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
        thread.join(30)


def why(address: str, *more: str) -> Any:
    return CliRunner().invoke(
        command,
        ["job", "--prometheus", "http://127.0.0.1:1", "--ras", address, "--ras-seconds", "1", *more],
    )


def test_the_rank_behind_is_named_without_a_prometheus() -> None:
    """By the command: two questions in RAS' own protocol, the answer of a job that stands still."""
    still = document([rank(n, 6 if n == 2 else 7) for n in range(4)])
    with service(still, still) as (address, asked):
        result = why(address, "--output", "json")
    reported = json.loads(result.stdout)
    assert reported["state"] == "stalled"
    assert [(c["cause"], c["where"]) for c in reported["causes"]] == [("hang", "rank 2 on 10.0.0.2")]
    assert asked == [b"TIMEOUT 5\nSET FORMAT json\nSTATUS\n"] * 2


def test_a_service_that_does_not_answer() -> None:
    """A sentence, after the time-out."""
    with service(None) as (address, _):
        result = why(address, "--timeout", "0.2")
    assert result.exit_code == 1
    assert f"--ras {address}: no answer within 0.2 s" in str(result.exception)


def test_too_long_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read to its end."""
    monkeypatch.setattr(ras, "MOST_BYTES", 1000)
    with service(b" " * 70_000) as (address, _), pytest.raises(UserError, match="more than"):
        asyncio.run(ras.ask(address, 0.0, 10.0))


def nobody() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_nobody_listens() -> None:
    """Where RAS listens is said."""
    result = why(nobody())
    assert "NCCL_RAS_ADDR" in str(result.exception)


@pytest.mark.parametrize("address", ["a..b", "a" * 70])
def test_no_name_of_a_host(address: str) -> None:
    """What no resolver takes is said in a sentence."""
    assert "is no name of a host" in str(why(address).exception)


def test_ras_tells_of_now_alone() -> None:
    """It has no past."""
    result = why("h0", "--at", "-1h")
    assert "shows the present only" in str(result.exception)
