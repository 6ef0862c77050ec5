"""Whoever can reach a job's listening port and is no peer of it: he learns nothing, and the job goes on."""

import re
import secrets
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fixtures.native.crc32c import crc32c
from tests.fixtures.waiting import wait_for
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab

pytestmark = pytest.mark.root

# struct Hello and HelloReply of nccl_plugin/src/core/wire.h.
PROCESS, NICS = "16sII96s", "768s"
HELLO = struct.Struct("<QIBBH16sQIIII" + PROCESS + "II" + NICS + "128sII")
REPLY = struct.Struct("<QIB3xII120s" + PROCESS + "II" + NICS + "128s")
MAGIC, VERSION = 0x314F4C4C48505046, 4
FIRST_HELLO_BYTES = 976  # of version 1, which had no checksum
LANE, PROBE = 1, 2
UNKNOWN, OTHER_VERSION = 1, 4


@dataclass
class Answer:
    """What a job has said to a hello."""

    status: int
    process_id: bytes
    host: bytes
    nics: bytes


@pytest.fixture(scope="module")
def ring() -> Iterator[Ring]:
    with Lab(hosts=2, rails=1) as lab:
        started = Ring(lab, 2, ["--bytes", "256K"])
        started.wait_running()
        yield started
        started.stop()  # no error, no corrupt byte


def door(ring: Ring) -> tuple[str, int]:
    """Address and port of h0's job."""
    listening = ring.lab.host(0).run(["ss", "-Htln"]).stdout
    address = str(ring.lab.host(0).nic("rail0").address)
    (port,) = re.findall(rf"{re.escape(address)}(?:%\w+)?:(\d+)", listening)
    return address, int(port)


def knock(ring: Ring) -> socket.socket:
    """A connection from h1 to the port of h0's job."""
    return ring.lab.connect("h1", *door(ring), 5.0)


def say(ring: Ring, kind: int, version: int = VERSION) -> Answer:
    """A hello with a token that nobody has given us."""
    hello = HELLO.pack(
        *(MAGIC, version, kind, 0, 1, secrets.token_bytes(16), 1, 0, 1, 1, 0),
        *(secrets.token_bytes(16), 1, 1, b"stranger", 0, 1, b"nic", b"", 0, 0),
    )
    hello = hello[:-4] + struct.pack("<I", crc32c(hello[:-4]))
    if version == 1:
        hello = hello[:FIRST_HELLO_BYTES]
    with knock(ring) as stranger:
        stranger.sendall(hello)
        received = b""
        while len(received) < REPLY.size and (part := stranger.recv(4096)):
            received += part
    _, _, status, _, _, _, process_id, _, _, host, _, _, nics, _ = REPLY.unpack(received)
    return Answer(status, process_id, host.rstrip(b"\0"), nics.rstrip(b"\0"))


@pytest.mark.parametrize("kind", [LANE, PROBE])
def test_a_stranger_learns_nothing(ring: Ring, kind: int) -> None:
    """Not the process's id, which is the token of probes, nor its host's name and NICs."""
    assert say(ring, kind) == Answer(UNKNOWN, bytes(16), b"", b"")


@pytest.mark.parametrize("version", [1, VERSION + 1])
def test_another_version_gets_an_answer(ring: Ring, version: int) -> None:
    """However long its hello is, with the host's name, for the error at the other end; not with the token."""
    assert say(ring, LANE, version) == Answer(OTHER_VERSION, bytes(16), b"h0", b"")


# In one process, as they have to be there before the first is given up, after 3 s.
SILENT = """
import pathlib, resource, socket, sys, time
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
held = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(1100)]
pathlib.Path(sys.argv[3]).touch()
time.sleep(60)
"""


def test_who_keeps_silent_keeps_nobody_out(ring: Ring, tmp_path: Path) -> None:
    """1,100 connections that say nothing, more than are waited for at a time: who says hello is answered, and a lane
    that was taken out of service comes back."""
    address, port = door(ring)
    silent = [sys.executable, "-c", SILENT, address, str(port), str(tmp_path / "held")]
    with ring.lab.host(1).popen(silent):
        wait_for((tmp_path / "held").exists, 20, "1,100 connections")
        assert say(ring, PROBE).status == UNKNOWN
        sends = next(c for c in ring.control("h1", op="status")["connections"] if c["direction"] == "send")
        for number, change in enumerate(("lane.disable", "lane.enable"), 1):
            lane = {"connection": sends["connection"], "lane": 0, "op_id": f"silent-{number}"}
            assert ring.control("h1", op=change, generation=number, **lane)["ok"]
        ring.until(lambda: ring.states("h1", "rail0") <= {"up", "slow_start"}, 2)


def test_garbage_disturbs_nobody(ring: Ring) -> None:
    """Halves of a hello, noise, and silence; the lanes stay as they are."""
    before = [lane["failovers"] for lane in ring.lanes("h0")]
    for payload in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        secrets.token_bytes(HELLO.size),
        secrets.token_bytes(100_000),
    ):
        for _ in range(5):
            with knock(ring) as stranger:
                try:
                    stranger.sendall(payload)
                except (ConnectionResetError, BrokenPipeError):
                    continue
    assert say(ring, PROBE).status == UNKNOWN
    assert [lane["failovers"] for lane in ring.lanes("h0")] == before
