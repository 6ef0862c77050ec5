"""Ports that tests hand to the processes which they start: nobody else's, for as long as the test process lives."""

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.fixtures import ports
from tests.fixtures.ports import reserved_port

ROOT = Path(__file__).parents[2]
# Other holders that begin at the same port as each other; they live until their standard input ends.
HOLDER = """
import os, sys
os.getpid = lambda: 0
from tests.fixtures import ports
from tests.fixtures.ports import reserved_port
print(*(reserved_port() for _ in range(50)), flush=True)
sys.stdin.read()
"""


def test_processes_side_by_side_get_other_ports() -> None:
    with ExitStack() as stack:
        holders = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", HOLDER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            for _ in range(4)
        ]
        lines = [holder.stdout.readline() for holder in holders if holder.stdout]
    got = [int(port) for line in lines for port in line.split()]
    assert len(got) == len(set(got)) == 200


def test_it_refuses_until_a_server_listens_and_again_after() -> None:
    """A daemon is killed and starts again on its port, and has its number for datagrams too."""
    port = reserved_port()
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)) as server:
            near = socket.create_connection(("127.0.0.1", port))
            far, _ = server.accept()
            far.close()  # first: it is this end that the kernel keeps in TIME_WAIT
            near.close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.bind(("127.0.0.1", port))


def test_what_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a listener, or by datagrams alone; without any other port that is said."""
    first, second = reserved_port(), reserved_port()
    with (
        socket.create_server(("", first)),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(("127.0.0.1", second))
        for port in (first, second):
            ports._held.pop(port).close()
        monkeypatch.setattr(ports, "_PORTS", [first, second])
        monkeypatch.setattr(ports, "_held", {})
        with pytest.raises(OSError, match=f"no port of {first} to {second} of 127.0.0.1 is free"):
            reserved_port()


def test_a_process_of_many_tests_does_not_run_out() -> None:
    """Of descriptors, nor of ports: what was reserved long ago is given back."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    got = [reserved_port() for _ in range(1_000)]
    assert len(set(got)) == 1_000
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 256
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", got[-1]))
