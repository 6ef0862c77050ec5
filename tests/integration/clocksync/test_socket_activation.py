"""A coordinator on a socket that systemd hands over: reports as datagrams come as its HTTP does."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import pytest
from tests.fixtures.ports import reserved_port

from fabricpulse.clocksync.sidecar.datagram_client import DatagramClient
from fabricpulse.clocksync.wire.messages import (
    PROTOCOL,
    ROUND_PATH,
    HostInfo,
    RoundReply,
    RoundReport,
    reply_decoder,
    report_encoder,
)

# As systemd does it: the sockets begin at descriptor 3, and LISTEN_PID says that they are for the process.
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.argv[2], sys.argv[2:])
"""


def listener_on(address: str, *, dual_stack: bool) -> socket.socket:
    """Listens on a port whose number is free for datagrams too."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, reserved_port()), family=family, dualstack_ipv6=dual_stack)


@contextmanager
def coordinator(listener: socket.socket) -> Iterator[None]:
    """The daemon, handed `listener`."""
    command = [sys.executable, "-I", "-c", ACTIVATE, str(listener.fileno()), sys.executable, "-I", "-m"]
    arguments = ["fabricpulse.core.cli", "clocksync", "coordinator", "--web.systemd-socket"]
    process = subprocess.Popen([*command, *arguments], pass_fds=[listener.fileno()])
    try:
        yield
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def report() -> RoundReport:
    """Of a host that nobody measures."""
    info = HostInfo(1, "", (), (), "none")
    now_ns = time.time_ns()
    return RoundReport(PROTOCOL, "a", 1, 1, now_ns, b"", None, None, "", 0, info, datagrams=True)


async def joined(url: str) -> RoundReply:
    """The answer to the first report by HTTP, which the listener's queue holds until the daemon is up."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session,
        session.post(url + ROUND_PATH, data=report_encoder.encode(report())) as response,
    ):
        assert response.status == 200
        return reply_decoder.decode(await response.read())


async def answered(url: str) -> bool:
    """Whether a report by datagram comes through after one by HTTP."""
    client = DatagramClient(url)
    await client.open(await joined(url))
    try:
        return (
            await client.report(RoundReport(PROTOCOL, "a", 1, 1, 1, b"", None, None, "", 0, None), 20.0)
            is not None
        )
    finally:
        client.close()


@pytest.mark.parametrize(
    ("address", "dual_stack", "hosts"),
    [
        ("::", True, ["127.0.0.1", "[::1]"]),
        ("::", False, ["[::1]"]),
        ("::ffff:127.0.0.1", True, ["127.0.0.1"]),
        ("127.0.0.1", False, ["127.0.0.1"]),
    ],
)
async def test_datagrams_come_wherever_http_does(address: str, dual_stack: bool, hosts: list[str]) -> None:
    """`ListenStream=9613` is a listener of both families; one of IPv6 alone leaves IPv4's port to others."""
    with listener_on(address, dual_stack=dual_stack) as listener, coordinator(listener):
        port = listener.getsockname()[1]
        for host in hosts:
            assert await answered(f"http://{host}:{port}")
        if "127.0.0.1" not in hosts:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
                free.bind(("127.0.0.1", port))
