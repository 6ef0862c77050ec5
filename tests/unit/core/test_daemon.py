"""The life of a daemon, in a process of its own: signals, readiness, memory."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fabricpulse.core.daemon import Lifetime, run_daemon
from fabricpulse.core.errors import ConfigError, TemporaryError, UserError
from fabricpulse.core.systemd import watchdog_s

CHILD = Path(__file__).with_name("daemon_child.py")


@contextmanager
def daemon(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-I", str(CHILD), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_ends_cleanly(signum: signal.Signals) -> None:
    """SIGTERM and SIGINT let it finish and it exits with 0."""
    with daemon() as process:
        assert line(process).startswith("ready")
        process.send_signal(signum)

        assert (line(process), line(process)) == ("stopping", "stopped")
        assert process.wait(60) == 0


def test_second_signal_does_not_wait() -> None:
    """A shutdown that hangs is cut short by a second SIGTERM."""
    with daemon("hang") as process:
        line(process)
        process.terminate()
        assert line(process) == "stopping"
        process.terminate()

        assert process.wait(60) == 1


@pytest.mark.parametrize("when", ["resolve", "resolve-at-start"])
def test_a_look_up_that_hangs_does_not_hold_up_the_end(when: str) -> None:
    """A name server that does not answer blocks a thread; the daemon exits all the same."""
    with daemon(when) as process:
        assert line(process) == "in the resolver"
        if when == "resolve":
            assert line(process).startswith("ready")
        process.terminate()

        assert process.wait(60) == 0  # nothing ends the look-up


def test_reload() -> None:
    """SIGHUP runs the hooks; one that fails is logged in a sentence and the daemon lives on."""
    with daemon() as process:
        line(process)
        for expected in ("reload 1", "reload 2", "reload 3"):
            process.send_signal(signal.SIGHUP)
            assert line(process) == expected
        process.terminate()
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 0
    assert (
        errors.count('event="reload failed, the old settings stay in force" error="the new file is bad"') == 1
    )
    assert "Traceback" not in errors


def test_systemd_is_notified(tmp_path: Path) -> None:
    """With Type=notify systemd learns when it is ready and when it stops."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(60)
        with daemon(NOTIFY_SOCKET=str(tmp_path / "notify")) as process:
            line(process)
            assert notify.recv(100) == b"READY=1"
            process.terminate()
            assert notify.recv(100) == b"STOPPING=1"


def test_systemd_learns_that_the_event_loop_goes_on(tmp_path: Path) -> None:
    """With WatchdogSec= it is notified again and again, and of one that hangs the stacks are in the journal by then."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(60)
        asked = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        with daemon("block", **asked) as process:
            line(process)
            while notify.recv(100) != b"READY=1":
                pass
            assert [notify.recv(100) for _ in range(5)] == 5 * [b"WATCHDOG=1"]
            process.terminate()
            while line(process) != "blocks":
                pass
            assert process.stderr
            shown = ""
            while "daemon_child.py" not in shown:
                shown += process.stderr.readline()
            assert "Timeout" in shown


def test_a_watchdog_of_another_process_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is nonsense one."""
    for usec, pid, expected in (
        ("60000000", "", 60.0),
        ("60000000", str(os.getpid()), 60.0),
        ("60000000", "1", 0.0),
        ("-1", "", 0.0),
        ("", "", 0.0),
    ):
        monkeypatch.setenv("WATCHDOG_USEC", usec)
        if pid:
            monkeypatch.setenv("WATCHDOG_PID", pid)
        else:
            monkeypatch.delenv("WATCHDOG_PID", raising=False)
        assert watchdog_s() == expected


# As systemd does it: the sockets begin at descriptor 3, and LISTEN_PID names the process.
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_socket_activation() -> None:
    """With --web.systemd-socket it serves on the socket that it is handed; who connected before it ran is answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=60)
        client.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
        command = [sys.executable, "-I", "-c", ACTIVATE, str(listener.fileno())]
        process = subprocess.Popen(
            [*command, sys.executable, "-I", str(CHILD), "socket"],
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[listener.fileno()],
        )
        with client, process:
            try:
                assert line(process) == f"ready {listener.getsockname()[1]}"
                assert client.recv(100).startswith(b"HTTP/1.0 200 ")
                process.terminate()
                assert process.wait(60) == 0
            finally:
                process.kill()


@pytest.mark.parametrize("pid", ["", "1"])
def test_no_socket_from_systemd(pid: str) -> None:
    """Asked for a socket and handed none, or one for another process, it ends with a sentence."""
    with daemon("socket", LISTEN_FDS="1", LISTEN_PID=pid) as process:
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 1
    assert "systemd has handed over no socket" in errors


def test_bare_daemon_is_small() -> None:
    """A daemon that does nothing yet takes less than 45 MB; what is heavy is imported by who needs it."""
    with daemon() as process:
        line(process)
        status = Path(f"/proc/{process.pid}/status").read_text()

    resident_kib = int(next(row for row in status.splitlines() if row.startswith("VmRSS")).split()[1])
    assert resident_kib < 45 * 1024


@pytest.mark.parametrize(
    ("error", "cause", "code"),
    [
        (UserError("token_file cannot be read"), None, 2),
        (TemporaryError("address in use"), None, 1),
        (UserError("cannot write"), OSError(errno.ENOSPC, "full"), 1),
        (UserError("cannot write"), OSError(errno.EACCES, "no"), 2),
        (UserError("cannot write"), OSError(errno.ENFILE, "too many"), 1),
        (ConfigError("cannot read"), OSError(errno.EMFILE, "too many"), 1),
        (ConfigError("bad key"), None, 2),
    ],
)
def test_exit_code_of_what_stops_the_start(error: UserError, cause: OSError | None, code: int) -> None:
    """2 for what a person has to fix, which the units do not restart; 1 for what may have passed by then."""

    async def main(_: Lifetime) -> None:
        raise error from cause

    with pytest.raises(UserError) as raised:
        run_daemon(main)
    assert raised.value.exit_code == code


def test_exit_code_of_what_stops_it_later() -> None:
    """Once it was ready, a restart may help."""

    async def main(life: Lifetime) -> None:
        life.ready()
        raise UserError("the disk is gone")

    with pytest.raises(UserError) as raised:
        run_daemon(main)
    assert raised.value.exit_code == 1


async def test_one_reload_at_a_time() -> None:
    """SIGHUP and POST /-/reload in the same moment do not mix two configurations."""
    life, running, most = Lifetime(), 0, 0

    async def hook() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    life.on_reload(hook)
    await asyncio.gather(life.reload(), life.reload(), life.reload())
    assert most == 1


async def test_a_daemon_that_reads_nothing_again_says_so() -> None:
    """`reloaded` would be taken for: what I have changed is in force."""
    life = Lifetime()
    await life.reload()
    life.ready()
    with pytest.raises(UserError, match="restart it"):
        await life.reload()
