"""However a lab's parent ends, nothing of the lab is left: no process, no namespace, no file in /run."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.fixtures.waiting import Patience, wait_for

from fabricpulse.core.errors import UserError
from fabricpulse.lab import Lab, LabClosedError, channel, wire

pytestmark = pytest.mark.root

# A parent with a host busy in every way that could keep it alive: a child that ignores signals, a grandchild in a
# session of its own, a stopped process, an open forward, a fault in force.
PARENT = """
import json, sys, time
from fabricpulse.lab import Lab
lab = Lab(hosts=2, rails=2).start()
stubborn = lab.popen("h0", ["sh", "-c", "trap '' TERM INT HUP; echo ready; while :; do sleep 1000; done"], name="s")
stubborn.wait_for_output("ready")
daemon = lab.popen("h1", ["setsid", "sleep", "1000"]); daemon.wait(60)  # its child goes on
stopped = lab.popen("h1", ["sleep", "1000"]); stopped.suspend()
lab.forward("h0", 80)
lab.host("h0").nic("rail0").flap(20)
started = {"inside": stubborn.outer_pid, "supervisor": lab.supervisor_pid, "directory": str(lab.directory)}
print(json.dumps(started), flush=True)
%s
"""


@contextmanager
def parent_of_a_lab(end: str = "time.sleep(1000)") -> Iterator[tuple[subprocess.Popen[str], list[int], Path]]:
    """A process with a lab, the PIDs of everything that the lab consists of, and its directory."""
    command = [sys.executable, "-c", PARENT % end]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as parent:
        try:
            assert parent.stdout is not None
            line = parent.stdout.readline()
            if not line:
                _, error = parent.communicate()
                if os.environ.get("CI") or "UserError: the lab needs" not in error:
                    pytest.fail(error)
                pytest.skip(error.strip().splitlines()[-1])
            started = json.loads(line)
            inside = namespace(started["inside"], "pid")
            pids = [started["supervisor"], *(pid for pid in all_pids() if namespace(pid, "pid") == inside)]
            # Supervisor and process 1, the stubborn shell and its sleep, the daemon, the stopped one.
            assert len(pids) >= 6
            yield parent, pids, Path(started["directory"])
        finally:
            parent.kill()


def all_pids() -> list[int]:
    """Every process of this machine."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def namespace(pid: int, kind: str) -> str | None:
    """Such as net:[4026532]; None for a process that has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    except OSError:
        return None


def namespaces_of(pids: list[int]) -> set[str]:
    """The network, mount and PID namespaces that these are in."""
    found = {namespace(pid, kind) for pid in pids for kind in ("net", "mnt", "pid")}
    return {name for name in found if name is not None}


def started_at(pid: int) -> int:
    """When a process was started, clock ticks since the boot; 0 for one that has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def ticks_now() -> int:
    """Clock ticks since the boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def living_namespaces(before: int | None = None) -> set[str]:
    """Every namespace that a process of this machine is in, or holds open; with `before`, one that was started by then.

    The kernel gives the number of a namespace that has ended to the next one, of another lab say.
    """
    found = set()
    for pid in all_pids():
        if before is not None and started_at(pid) > before:
            continue
        for pattern in ("ns/*", "fd/*"):
            with suppress(OSError):
                for link in Path(f"/proc/{pid}").glob(pattern):
                    with suppress(OSError):
                        found.add(str(link.readlink()))
    return found


def wait_gone(pids: list[int], seconds: float = 5.0) -> list[int]:
    """Those of `pids` that still live after at most `seconds`."""
    patience = Patience(seconds)
    while True:
        alive = [pid for pid in pids if Path(f"/proc/{pid}").exists() and not is_zombie(pid)]
        if not alive or not patience.left():
            return alive
        time.sleep(0.01)


def is_zombie(pid: int) -> bool:
    """True for a process that has ended and waits for a parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_parent_ends_everything(signum: signal.Signals) -> None:
    """kill -9, Ctrl-C, SIGTERM: within seconds no process of the lab lives, and its namespaces are gone."""
    with parent_of_a_lab() as (parent, pids, directory):
        ours = namespaces_of(pids) - namespaces_of([os.getpid()])
        assert ours & living_namespaces(), "the check must see the namespaces while the lab lives"
        signalled = ticks_now()
        parent.send_signal(signum)
        parent.wait(60)
        assert wait_gone(pids) == []
        assert not directory.exists()
        # A program that the supervisor had just started may be about to end, too.
        wait_for(lambda: not ours & living_namespaces(before=signalled), 5, "no namespace of the lab")


def test_an_exception_in_the_parent_ends_everything() -> None:
    """A lab that was never closed ends with its parent."""
    with parent_of_a_lab("sys.stdin.readline(); raise SystemExit(3)") as (parent, pids, directory):
        assert wait_gone(pids, 0) == pids
        assert parent.stdin is not None
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.wait(60) == 3
        assert wait_gone(pids) == []
        assert not directory.exists()


def test_kill_of_the_supervisor_ends_everything_and_is_reported() -> None:
    """Whoever kills the supervisor kills the lab; the parent's next call says so in one sentence."""
    with Lab(hosts=1, rails=1) as lab:
        process = lab.popen("h0", ["sleep", "1000"])
        os.kill(lab.supervisor_pid, signal.SIGKILL)
        assert wait_gone([process.outer_pid]) == []
        with pytest.raises(LabClosedError, match="supervisor has ended unexpectedly: it was killed"):
            lab.run("h0", ["true"])
        assert process.wait(60) == -signal.SIGKILL


def test_the_end_of_the_supervisor_is_reported_to_who_noticed_it_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request that fails before the reading thread has seen the end still says why."""
    ended, refused = threading.Event(), threading.Event()
    send = channel.Channel._send

    def late_receive(connection: socket.socket) -> tuple[bytes, list[int]]:
        try:
            data, descriptors = wire.receive(connection)
        except OSError:  # a reset, where the supervisor had not read everything
            data, descriptors = b"", []
        if not data:
            ended.set()
        assert data or refused.wait(60)
        return data, descriptors

    def watched_send(self: channel.Channel, message: bytes, descriptors: Sequence[int]) -> OSError | None:
        failed = send(self, message, descriptors)
        if failed is not None:
            refused.set()
        return failed

    monkeypatch.setattr(channel, "receive", late_receive)
    monkeypatch.setattr(channel.Channel, "_send", watched_send)
    with Lab(hosts=1, rails=1) as lab:
        os.kill(lab.supervisor_pid, signal.SIGKILL)
        # A child that it had just forked may hold its end a moment longer.
        assert ended.wait(60)
        assert wait_gone([lab.supervisor_pid]) == []
        with pytest.raises(LabClosedError, match="supervisor has ended unexpectedly: it was killed"):
            lab.run("h0", ["true"])
    assert refused.is_set()


def test_close_leaves_nothing_and_may_be_called_twice(lab: Lab) -> None:
    """After close the processes are gone, not only going, and so is the directory."""
    directory = lab.directory
    process = lab.popen("h0", ["sleep", "1000"])
    lab.host("h0").nic(0).flap(50)
    outer = process.outer_pid
    assert Path(f"/proc/{outer}").exists()
    lab.close()
    assert not Path(f"/proc/{outer}").exists()
    assert not directory.exists()
    lab.close()
    with pytest.raises(LabClosedError):
        lab.run("h0", ["true"])


def test_the_directory_is_kept_on_request() -> None:
    """With `keep` the logs survive."""
    directory = Path(tempfile.gettempdir()) / f"fabricpulse-kept-{os.getpid()}"
    try:
        with Lab(hosts=1, rails=1, directory=directory, keep=True) as lab:
            lab.popen("h0", ["echo", "hello"], name="hello").wait(60)
        assert (directory / "h0" / "log" / "hello.log").read_text() == "hello\n"
    finally:
        subprocess.run(["rm", "-rf", directory], check=True)


def test_a_directory_that_holds_a_lab_is_refused_and_left_alone(lab: Lab) -> None:
    """A second lab in the same directory is refused; the first goes on."""
    with pytest.raises(UserError, match="already holds"):
        Lab(hosts=1, rails=1, directory=lab.directory).start()
    assert lab.run("h0", ["hostname"]).stdout == "h0\n"


def test_a_supervisor_under_strict_warnings_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONWARNINGS=error of the caller does not break the lab, and the supervisor's log is empty."""
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    with Lab(hosts=1, rails=1) as lab:
        assert lab.run("h0", ["hostname"]).stdout == "h0\n"
        assert (lab.directory / "supervisor.log").read_text() == ""


def test_two_labs_with_equal_addresses_do_not_meet(lab: Lab) -> None:
    """Side by side: each sees only its own network, processes and names."""
    with Lab() as other:
        lab.popen("h0", ["sleep", "4242"])
        assert lab.host("h0").nic(0).address == other.host("h0").nic(0).address
        with lab.host("h0").nic(0).down():
            state = other.run("h0", ["cat", "/sys/class/net/rail0/carrier"]).stdout
            assert state == "1\n"
        assert "sleep 4242" not in other.run("h0", ["ps", "ax"]).stdout
        assert "sleep 4242" in lab.run("h0", ["ps", "ax"]).stdout
    assert lab.run("h0", ["hostname"]).stdout == "h0\n"


def test_nothing_is_written_outside(lab: Lab) -> None:
    """The machine's own /run/netns and links are as before."""
    outside = Path("/run/netns")
    names = {path.name for path in outside.iterdir()} if outside.exists() else set()
    assert not names & set(lab.fabric.nodes)
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    assert "rail0" not in links
