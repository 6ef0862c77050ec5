"""The engine's traces on the loopback device: who may answer one, and what it costs the probes."""

import os
import socket
import struct

import pytest
from tests.fixtures.waiting import wait_for

from fabricpulse.mesh import _probe_engine as native
from fabricpulse.mesh.snapshot import parse_snapshot

pytestmark = pytest.mark.root

OWN, PEER, SWITCH = "127.8.0.1", "127.8.0.2", "127.8.0.9"
PORT = 41620
TRACE_BYTES = 16


def checksum(data: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def time_exceeded(source_port: int, quoted: bytes) -> bytes:
    """The ICMP error of a switch that has dropped a packet from OWN to PEER with this data."""
    udp = struct.pack("!HHHH", source_port, PORT, 8 + len(quoted), 0)
    ends = socket.inet_aton(OWN) + socket.inet_aton(PEER)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(quoted), 1, 0x4000, 1, 17, 0) + ends
    body = struct.pack("!BBHI", 11, 0, 0, 0) + ip + udp + quoted
    return body[:2] + struct.pack("!H", checksum(body)) + body[4:]


@pytest.fixture
def engine():
    """An engine with one NIC and one peer that says nothing."""
    s = native.Settings()
    s.host, s.port, s.paths, s.bind_device, s.priority = "a", PORT, 2, False, 0
    made = native.ProbeEngine(s)
    made.set_keys([bytes(16)])
    made.configure([("lo", "rail0", OWN)], [(0, "b", "lo", "rail0", PEER)])
    made.start()
    yield made
    made.stop()


@pytest.fixture
def peer():
    """Where the probes go."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind((PEER, PORT))
        made.setblocking(False)
        yield made


@pytest.fixture
def switch():
    """Sends ICMP errors."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as made:
        made.bind((SWITCH, 0))
        yield made


def arrived(peer):
    """All that has come: data and source port."""
    found = []
    while True:
        try:
            data, sender = peer.recvfrom(2048)
        except BlockingIOError:
            return found
        found.append((data, sender[1]))


def traced(engine, peer, switch, path, answer):
    """One trace; `answer` makes of its packet's data what the switch quotes. Returns hops and the ports used."""
    ports, done = set(), []
    assert wait_for(lambda: engine.trace(0, path), 10, "the socket is open")

    def step():
        for data, port in arrived(peer):
            if len(data) == TRACE_BYTES:
                ports.add(port)
                # One packet of the eight: the switch is three hops away.
                if data[12] == 3:
                    switch.sendto(time_exceeded(port, answer(data)), (OWN, 0))
        done.extend(engine.take_traces())
        return done

    wait_for(step, 10, "the trace ends")
    ((generation, edge, port, hops),) = done
    assert (generation, edge, port) == (1, 0, path)
    return hops, ports


@pytest.mark.parametrize("path", [0, 1])
def test_an_answer_names_the_switch(engine, peer, switch, path):
    """The packets leave by the source port that is traced, and the answer stands at its place behind silent hops."""
    # The answer has a quarter of a second: a machine that is busy may need another trace.
    hops, ports = wait_for(
        lambda: (got := traced(engine, peer, switch, path, bytes))[0] and got, 30, "an answer in time"
    )
    assert hops == ["", "", SWITCH]
    assert ports == {PORT + path}


@pytest.mark.parametrize(
    "answer",
    [
        lambda data: data[:4] + os.urandom(8) + data[12:],
        lambda data: data[:12] + b"\xff" + data[13:],
        lambda _: b"",
        lambda data: data[:8],
    ],
    ids=["other random bits", "no such hop", "nothing quoted", "cut short"],
)
def test_forged_answers_count_for_nothing(engine, peer, switch, answer):
    """Who does not know the random bits of the packet names no switch."""
    assert traced(engine, peer, switch, 0, answer)[0] == []


def test_traces_cost_no_probe(engine, peer, switch):
    """ICMP errors that come while the socket receives them fail no probe."""
    for path in (0, 1, 0):
        traced(engine, peer, switch, path, bytes)
    (edge,) = parse_snapshot(engine.snapshot()).edges
    assert edge.sent > 0
    assert edge.send_errors == 0


def test_what_cannot_be_traced(engine):
    """An edge or a source port that does not exist is refused."""
    wait_for(lambda: engine.trace(0, 0), 10, "the socket is open")
    assert not engine.trace(0, 0), "is being traced"
    assert not engine.trace(1, 0)
    assert not engine.trace(0, 7)
