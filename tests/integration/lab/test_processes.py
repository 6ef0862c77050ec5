"""Processes of a lab: where they run, what they see, how they are held."""

import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from fabricpulse.core.errors import UserError
from fabricpulse.core.run_dir import RUN_DIR_ENV
from fabricpulse.core.shm.virtual_clock import ENV as CLOCK_ENV
from fabricpulse.lab import Lab

pytestmark = pytest.mark.root

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the mount point itself

WEB = ["python3", "-c", """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = (self.path * 20000).encode() if self.path == "/big" else b"hello " + self.path.encode()
        self.send_response(404 if self.path == "/none" else 200)
        self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Handler)
print("serving", flush=True)
server.serve_forever()
"""]  # fmt: skip


def test_a_process_sees_its_host_and_nothing_else(shared_lab: Lab) -> None:
    """Host name, NICs in /sys, names, run directory and clock are the host's own."""
    show = "hostname; ls /sys/class/net; echo $FABRICPULSE_RUN_DIR; echo $FABRICPULSE_VIRTUAL_CLOCK"
    script = f"{show}; touch /run/fabricpulse/x"
    lines = shared_lab.run("h2", ["sh", "-c", script]).stdout.split()
    host = shared_lab.host("h2")
    assert lines == ["h2", "fe0", "lo", "rail0", "rail1", str(host.run_dir), str(host.clock.path)]
    assert (host.run_dir / "x").exists()
    assert not (shared_lab.host("h1").run_dir / "x").exists()
    assert "10.1.0.254" in shared_lab.run("h2", ["getent", "hosts", "mgmt"]).stdout


def test_shared_memory_is_per_host_and_shared_within_it(shared_lab: Lab) -> None:
    """Shared memory of a host is seen by its next process, and by no other host."""
    shared_lab.run("h0", ["touch", f"{SHARED_MEMORY}/segment"])
    assert shared_lab.run("h0", ["ls", SHARED_MEMORY]).stdout == "segment\n"
    assert shared_lab.run("h1", ["ls", SHARED_MEMORY]).stdout == ""
    assert not (Path(SHARED_MEMORY) / "segment").exists()


def test_the_environment_is_the_parents_without_what_would_mislead(
    shared_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxies, NOTIFY_SOCKET and another host's run directory do not get in; `env` does."""
    for key in ("http_proxy", "HTTPS_PROXY", "NOTIFY_SOCKET", RUN_DIR_ENV, CLOCK_ENV):
        monkeypatch.setenv(key, "/elsewhere")
    monkeypatch.setenv("KEPT", "yes")
    text = shared_lab.run("mgmt", ["env"], env={"EXTRA": "1"}).stdout
    env = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert "/elsewhere" not in env.values()
    assert (env["KEPT"], env["EXTRA"]) == ("yes", "1")
    assert CLOCK_ENV not in env
    assert env[RUN_DIR_ENV] == str(shared_lab.mgmt.run_dir)


def test_exit_codes_and_signals(shared_lab: Lab) -> None:
    """Exit codes are as of subprocess; signals reach the process; terminate is SIGTERM, kill SIGKILL."""
    assert shared_lab.popen("h0", ["sh", "-c", "exit 7"]).wait(60) == 7
    sleeper = shared_lab.popen("h0", ["sleep", "1000"])
    assert sleeper.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        sleeper.wait(0.01)
    sleeper.terminate()
    assert sleeper.wait(60) == -signal.SIGTERM
    killed = shared_lab.popen("h0", ["sleep", "1000"])
    killed.kill()
    assert killed.wait(60) == -signal.SIGKILL
    killed.kill()
    assert killed.returncode == -signal.SIGKILL


def test_a_suspended_process_stands_still_until_resumed(shared_lab: Lab) -> None:
    """SIGSTOP and SIGCONT; stop() ends a suspended process too."""
    process = shared_lab.popen("h0", ["sleep", "1000"])
    state = Path(f"/proc/{process.outer_pid}/stat")
    process.suspend()
    assert state.read_text().rpartition(")")[2].split()[0] == "T"
    process.resume()
    assert state.read_text().rpartition(")")[2].split()[0] in "SR"
    process.suspend()
    assert process.stop() == -signal.SIGTERM


def test_stop_kills_what_does_not_listen(shared_lab: Lab) -> None:
    """A process that ignores SIGTERM is killed after the timeout."""
    process = shared_lab.popen(
        "h0", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"], name="deaf"
    )
    process.wait_for_output("ready")
    assert process.stop(timeout=0.1) == -signal.SIGKILL


def test_crash_kills_all_processes_of_one_host(shared_lab: Lab) -> None:
    """Other hosts go on."""
    here = [shared_lab.popen("h0", ["sleep", "1000"]) for _ in range(3)]
    there = shared_lab.popen("h1", ["sleep", "1000"])
    shared_lab.host("h0").crash()
    assert [process.poll() for process in here] == [-signal.SIGKILL] * 3
    assert shared_lab.host("h0").processes() == []
    assert there.poll() is None
    there.stop()


def test_output_goes_to_a_log_of_the_host(shared_lab: Lab) -> None:
    """stdout and stderr, appended over restarts."""
    for word in ("one", "two"):
        shared_lab.popen("h3", ["sh", "-c", f"echo {word}; echo {word}! >&2"], name="talk").wait(60)
    assert (shared_lab.directory / "h3" / "log" / "talk.log").read_text() == "one\none!\ntwo\ntwo!\n"


def test_waiting_for_output_of_a_process_that_ends_says_what_it_wrote(shared_lab: Lab) -> None:
    """The error carries the end of the log."""
    process = shared_lab.popen("h3", ["sh", "-c", "echo no such thing; exit 3"], name="broken")
    with pytest.raises(UserError, match=r"broken on h3 ended with 3 before .*no such thing"):
        process.wait_for_output("ready")


def test_what_cannot_be_started_is_one_sentence(shared_lab: Lab) -> None:
    """Program not found, not executable, unknown node, failing program, program that takes too long."""
    with pytest.raises(UserError, match="cannot start nonesuch on h0: No such file or directory"):
        shared_lab.popen("h0", ["nonesuch"])
    with pytest.raises(UserError, match="cannot start /etc/passwd on h0: Permission denied"):
        shared_lab.popen("h0", ["/etc/passwd"])
    with pytest.raises(UserError, match="no node 'h9'; it has h0, h1"):
        shared_lab.popen("h9", ["true"])
    with pytest.raises(UserError, match="sh on h0 ended with 4: broken"):
        shared_lab.run("h0", ["sh", "-c", "echo broken >&2; exit 4"])
    with pytest.raises(UserError, match=r"has not ended in 0\.05 s"):
        shared_lab.run("h0", ["sleep", "100"], timeout=0.05)


def test_no_descriptor_leaks(shared_lab: Lab) -> None:
    """Programs get 0, 1, 2 and nothing else; the parent keeps none of a process that has ended."""
    listing = shared_lab.run("h0", ["sh", "-c", "ls /proc/$$/fd"]).stdout.split()
    assert listing == ["0", "1", "2"]
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        shared_lab.run("h0", ["true"])
        shared_lab.socket("h0").close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_http_from_any_node_and_from_outside(shared_lab: Lab) -> None:
    """A server of h0 answers mgmt by name, pytest through http_get, and a browser through a forwarded port."""
    with shared_lab.popen("h0", WEB, name="web") as web:
        web.wait_for_output("serving")
        assert shared_lab.http_get("mgmt", "http://h0:8080/a?b=c") == "hello /a?b=c"
        assert shared_lab.http_get("h0", "http://localhost:8080/") == "hello /"
        with pytest.raises(UserError, match="answered 404"):
            shared_lab.http_get("mgmt", "http://h0:8080/none")
        port = shared_lab.forward("h0", 8080)
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/big", timeout=60) as answer:
                assert answer.read() == b"/big" * 20000
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            with pytest.raises(UserError, match="choose another port"):
                shared_lab.forward("h0", 8080, outside_port=taken.getsockname()[1])
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60)
