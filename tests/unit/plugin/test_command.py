"""`fabricpulse plugin status|ctl|path` against a job that answers on its control socket."""

import copy
import itertools
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.fixtures.waiting import Patience

from fabricpulse.core.errors import UserError
from fabricpulse.plugin import command as command_module
from fabricpulse.plugin.command import command

STATUS = {
    "ok": True, "pid": 1, "host": "h0", "workload": "train-7", "generation": 41, "detail": 0,
    "devices": [{"device": "rail0", "link": "up", "avoided": True, "speed_mbps": 10000, "lanes": 1, "lanes_up": 0}],
    "connections": [{
        "connection": "5f0c9a7be1d20001", "direction": "send", "peer": "h1", "peer_pid": 815, "peer_rank": 1,
        "device": "rail0", "state": "open", "requests": 2, "waits_for": "delivery", "bytes": 123,
        "lanes": [{
            "lane": 0, "device": "rail0", "peer_device": "rail1", "transport": "tcp", "state": "disabled",
            "reason": "command", "epoch": 1, "weight": 0, "since_ms": 812, "in_flight_bytes": 0,
            "sent_bytes": 123000000, "received_bytes": 0, "delivery_rate": 0, "rtt_us": 41, "failovers": 3,
        }],
    }],
}  # fmt: skip


class Job:
    """A control socket of this process that remembers what it was asked."""

    def __init__(self, folder: Path, name: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.requests: list[dict[str, Any]] = []
        self.refuse = False
        self.status: dict[str, Any] = STATUS
        self.path = folder / f"{name or os.getpid()}.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(self.path))
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, suppress(OSError):  # a client may hang up without waiting for the answer
                while message := connection.recv(1 << 18):
                    connection.send(json.dumps(self._answer(json.loads(message))).encode())

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        if request["op"] == "status":
            return self.status
        if self.refuse:
            error = {"code": "last_healthy_lane", "message": "rail0 stays in service"}
            return {"ok": False, "op_id": request["op_id"], "error": error}
        return {"ok": True, "op_id": request.get("op_id"), "result": "applied", "changed": []}

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    job = Job(tmp_path / "plugin")
    yield job
    job.close()


def invoke(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(command, arguments)


def test_status_shows_every_lane_and_why_it_is_out(job: Job) -> None:
    """The table names job, NIC, peer, path, state with its reason, and what waits for whom."""
    output = invoke("status").output
    for expected in (
        "train-7",
        "rail0 up avoided 0/1",
        "h1 rank 1",
        "rail0 → rail1",
        "disabled (command)",
        "delivery",
    ):
        assert expected in output
    assert "123 MB" in output


@pytest.mark.parametrize(("idle_ms", "shown"), [(400, "delivery "), (12_300, "delivery 12 s")])
def test_a_request_that_hangs_says_how_long(job: Job, idle_ms: int, shown: str) -> None:
    """Beside the peer's name and rank: who waits for whom, for what, and since when."""
    job.status = copy.deepcopy(STATUS)
    job.status["connections"][0]["idle_ms"] = idle_ms
    (line,) = (line for line in invoke("status").output.splitlines() if "h1 rank 1" in line)
    assert shown in f"{line} "


def test_watching_shows_rates_until_interrupted(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second look has the rate of what was moved since the first one, over the time that has really passed."""
    job.status = copy.deepcopy(STATUS)
    lane = job.status["connections"][0]["lanes"][0]
    clock = itertools.count(100.0, 2.0)  # a slow round: two seconds instead of one
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 2:
            raise KeyboardInterrupt
        lane["sent_bytes"] += 50_000_000

    monkeypatch.setattr(command_module, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: next(clock)))
    result = invoke("status", "--watch")
    assert (result.exit_code, sleeps) == (0, [1.0, 1.0])
    assert "25 MB/s" in result.output


@pytest.mark.parametrize("interval", ["0", "-1", "x"])
def test_an_interval_that_is_none_is_refused(job: Job, interval: str) -> None:
    assert invoke("status", "--watch", "--interval", interval).exit_code == 2


def test_status_as_json_is_the_jobs_own_answer(job: Job) -> None:
    """One object a line, nothing left out."""
    answer = json.loads(invoke("status", "--output", "json").output)
    assert answer == STATUS | {"pid": 1, "process": str(os.getpid())}


def test_ctl_sends_a_change_with_identity_and_the_present_generation(job: Job) -> None:
    """Each change has an operation id and, unless said otherwise, the generation that the job has."""
    assert invoke("ctl", str(os.getpid()), "nic.avoid", "device=rail0").exit_code == 0
    change = job.requests[-1]
    assert change["op"] == "nic.avoid"
    assert change["device"] == "rail0"
    assert change["generation"] == 41
    assert len(change["op_id"]) >= 32
    invoke(
        "ctl",
        "--all",
        "lane.weight",
        "connection=5f0c9a7be1d20001",
        "lane=0",
        "weight=null",
        "--generation",
        "50",
    )
    change = job.requests[-1]
    assert (change["lane"], change["weight"], change["generation"]) == (0, None, 50)
    invoke("ctl", "--all", "nic.restore", "device=rail0", "--op-id", "mine")
    assert job.requests[-1]["op_id"] == "mine"


def test_a_hexadecimal_connection_stays_text(job: Job) -> None:
    """A connection that happens to look like a number is not made one."""
    invoke("ctl", "--all", "lane.disable", "connection=1234567890123456", "lane=1")
    assert job.requests[-1]["connection"] == "1234567890123456"


def test_a_refusal_is_printed_and_fails(job: Job) -> None:
    """The reason is the job's own; the exit code says that something was refused."""
    job.refuse = True
    result = invoke("ctl", "--all", "nic.avoid", "device=rail0")
    assert result.exit_code == 1
    assert json.loads(result.output)["error"]["code"] == "last_healthy_lane"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no job is given"),
        (("--all",), "operation is missing"),
        (("7",), "operation is missing"),
        (("--all", "nic.avoid", "rail0"), "key=value"),
        (("--all", "nic.advoid"), "not known; known are"),
        (("--all", "status", "limit=many"), "takes an integer"),
        (("--all", "status", "connections=maybe"), "takes true or false"),
        (("--all", "nic.avoid", "nic=rail0"), "no argument 'nic'; it has device"),
        (("999999999", "status"), "no plugin control socket"),
    ],
)
def test_bad_input_is_one_sentence(job: Job, arguments: tuple[str, ...], message: str) -> None:
    """What is missing or unknown is said; nothing is sent."""
    result = invoke("ctl", *arguments)
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)
    assert job.requests == []


def test_a_job_that_is_gone_is_not_asked(job: Job, tmp_path: Path) -> None:
    """The socket of a process that was killed stays behind; it is no job."""
    (tmp_path / "plugin" / "999999999.sock").touch()
    (tmp_path / "plugin" / "notes.sock").touch()
    assert len(invoke("status", "--output", "json").output.splitlines()) == 1


def test_two_containers_with_the_same_pid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are shown, and neither gets what was meant for the other."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    first, second = (Job(tmp_path / "plugin", name) for name in ("1-f0000001", "1-f0000002"))
    output = invoke("status").output
    assert "process 1-f0000001" in output
    assert "process 1-f0000002" in output
    result = invoke("ctl", "1", "nic.avoid", "device=rail0")
    assert isinstance(result.exception, UserError)
    assert "1-f0000001, 1-f0000002" in str(result.exception)
    assert invoke("ctl", "1-f0000002", "nic.avoid", "device=rail0").exit_code == 0
    changed = [[r["op"] for r in job.requests if r["op"] != "status"] for job in (first, second)]
    assert changed == [[], ["nic.avoid"]]


def test_without_jobs_it_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No job is an error for `status` and `ctl`, with the folder in it."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    result = invoke("status")
    assert isinstance(result.exception, UserError)
    assert str(tmp_path) in str(result.exception)


def test_a_silent_job_is_an_error_not_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that accepts and says nothing (stopped, or a debugger holds it) is named within seconds."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    (tmp_path / "plugin").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "plugin" / f"{os.getpid()}.sock"))
        listener.listen()
        assert "timed out" in invoke("status").output
        result = invoke("ctl", "--all", "hello")
    assert result.exit_code == 1
    assert json.loads(result.output)["error"]["code"] == "silent"


def test_a_silent_job_keeps_no_other_from_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs get it, those before and behind the silent ones too; the silent ones cost one time-out together."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    jobs = [Job(tmp_path / "plugin", name) for name in ("1-f0000001", "9-f0000001")]
    with ExitStack() as stack:
        for number in range(2, 8):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            silent.bind(str(tmp_path / "plugin" / f"{number}-f0000001.sock"))
            silent.listen()
        patience = Patience(6 * 2.0)
        result = invoke("ctl", "--all", "nic.avoid", "device=rail0")
        one_by_one = not patience.left()
    assert result.exit_code == 1
    assert [[r["op"] for r in job.requests if r["op"] != "status"] for job in jobs] == [["nic.avoid"]] * 2
    answers = [json.loads(line) for line in result.output.splitlines()]
    assert [answer["ok"] for answer in answers] == [True, *[False] * 6, True]
    assert not one_by_one, "the time-outs were waited for one after the other"


def test_a_dead_socket_is_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens on it, although a process with that pid lives: it is not shown, and nobody waits for it."""
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    (tmp_path / "plugin").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(tmp_path / "plugin" / f"{os.getpid()}.sock"))
    assert isinstance(invoke("status").exception, UserError)


@pytest.mark.parametrize(
    ("operation", "argument", "expected"),
    [
        ("status", "limit=1", {"limit": 1}),
        ("status", "connections=false", {"connections": False}),
        ("status", "after=1234567890123456", {"after": "1234567890123456"}),
        ("events", "since=7", {"since": 7}),
    ],
)
def test_arguments_have_the_types_of_the_protocol(
    job: Job, operation: str, argument: str, expected: dict[str, Any]
) -> None:
    """Numbers and booleans are sent as such."""
    invoke("ctl", "--all", operation, argument)
    assert job.requests[-1] == {"op": operation, **expected}
