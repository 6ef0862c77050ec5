"""What clients of the control socket that ask without pause cost the job and each other.

The rates are those of nccl_plugin/src/control/server.cc, in docs/control-protocol.md.
"""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.fixtures.native.programs import native
from tests.fixtures.waiting import wait_for
from tests.integration.plugin.control_job import control_job

from fabricpulse.plugin_ipc.control import ControlClient

# Of clients, and of further messages to this process, which does nothing.
CLIENTS_AT_ONCE, CLIENTS_PER_S = 24, 50
AT_ONCE, PER_S = 16, 12
# Of a processor, at most: the rate of one bucket, and what the first messages and a debt of a whole bucket take, each
# 100 us.
SHARE, AT_ONCE_S = 0.0003, 2 * AT_ONCE * 1e-4
ASKED = 24
QUESTION = b'{"op":"status","connections":false}'


@pytest.fixture(params=["plain", pytest.param("thread", marks=[pytest.mark.slow, pytest.mark.build])])
def job(request: pytest.FixtureRequest, profiler_host: Path) -> Iterator[Path]:
    """The control socket of a job; also with ThreadSanitizer, under which a data race ends the job."""
    if request.param == "plain":
        with control_job(profiler_host) as path:
            yield path
        return
    program, plugin = (native(name, "thread") for name in ("plugin_profiler_host", "nccl-net-fabricpulse"))
    with control_job(program, plugin, TSAN_OPTIONS="halt_on_error=1") as path:
        yield path


def greedy(path: Path, stack: ExitStack, count: int, messages: int) -> list[socket.socket]:
    """Clients that have sent so many messages each and have read no answer."""
    clients = []
    for _ in range(count):
        client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        client.connect(str(path))
        for _ in range(messages):
            client.send(QUESTION)
        clients.append(client)
    return clients


def answered(client: socket.socket) -> int:
    """How many answers have come that nobody has read."""
    count = 0
    try:
        while client.recv(1 << 18, socket.MSG_DONTWAIT):
            count += 1
    except BlockingIOError:
        return count
    raise AssertionError("the plugin hung up")


def over(client: socket.socket) -> bool:
    """Whether the plugin has hung up."""
    try:
        while client.recv(1 << 18, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def thread_s(pid: int) -> float:
    """Processor time that the control socket's thread has used."""
    (task,) = (
        task
        for task in Path(f"/proc/{pid}/task").iterdir()
        if (task / "comm").read_text().strip() == "fabricpulse-ctl"
    )
    return int((task / "schedstat").read_text().split()[0]) / 1e9


@pytest.mark.parametrize("clients", [1, 4])
def test_answers_are_bounded_however_many_ask(
    job: Path, clients: int, request: pytest.FixtureRequest
) -> None:
    """One client that asks without pause gets 12 answers a second after the first 16, and four get no more: what a
    job pays for being asked has a bound, in processor time too. The first message of each comes with its connection."""
    each = ASKED // clients
    with ExitStack() as stack:
        pid = stack.enter_context(ControlClient(job)).call({"op": "hello"})["pid"]
        used_s, start = thread_s(pid), time.monotonic()
        for client in greedy(job, stack, clients, each):
            for _ in range(each):
                assert json.loads(client.recv(1 << 18))["ok"]
        took_s, used_s = time.monotonic() - start, thread_s(pid) - used_s
    assert took_s >= (ASKED - clients - AT_ONCE) / PER_S
    if "thread" not in request.node.name:
        assert used_s <= AT_ONCE_S + SHARE * took_s


def test_nobody_waits_for_the_greedy(job: Path) -> None:
    """Beside eight clients with 160 messages under way, who connected before them is answered in turn, and a new
    client too: both have what they asked for long before the greedy."""
    with ExitStack() as stack:
        known = stack.enter_context(ControlClient(job, timeout_s=60))
        assert known.call({"op": "hello"})["ok"]
        clients = greedy(job, stack, 8, 20)
        for number in range(3):
            assert known.call({"op": "status", "op_id": f"known-{number}"})["ok"]
        new = stack.enter_context(ControlClient(job, timeout_s=60))
        change = {"op": "detail", "op_id": "new", "generation": 1, "level": 0}
        assert new.call(change)["result"] == "applied"
        assert new.call({"op": "status", "op_id": "new"})["result"] == "applied"
        assert sum(map(answered, clients)) < 8 * 20


def test_connections_are_bounded_too(job: Path) -> None:
    """Who connects anew for each question is let in 50 times a second after the first 24."""
    start = time.monotonic()
    for _ in range(50):
        with ControlClient(job, timeout_s=60) as client:
            assert client.call({"op": "hello"})["ok"]
    assert time.monotonic() - start >= (50 - CLIENTS_AT_ONCE) / CLIENTS_PER_S


def test_who_keeps_many_connections_shuts_nobody_out(job: Path) -> None:
    """Beside 74 clients that have asked something and stay, more than are kept at a time, a new client has time to
    say what it wants: those who come after it displace others of them."""
    with ExitStack() as stack:
        clients = greedy(job, stack, 62, 1)
        assert all(json.loads(client.recv(1 << 18))["ok"] for client in clients)  # they are let in
        new = stack.enter_context(ControlClient(job, timeout_s=60))
        clients += greedy(job, stack, 12, 1)
        wait_for(lambda: any(map(over, clients)), 30, "the oldest has to go")
        assert new.call({"op": "hello"})["ok"]
