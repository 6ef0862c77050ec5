"""What a prober can know of the path of a TCP connection (docs/decisions/0033) and of a queue pair (0034)."""

import errno
import json
import os
import socket
import sys
from contextlib import contextmanager

import pytest

from fabricpulse.lab import Lab
from fabricpulse.mesh.path_schedule import contradicts

pytestmark = [pytest.mark.root, pytest.mark.slow]

PORT, FIRST, COUNT = 5001, 40_000, 64
SPINES = 4
LEAST = 6  # source ports of which two traces show the spine

# Switches that answer to a hop limit of two, over UDP and by a SYN, for source ports; then connections with some of
# them, by the spine that carries their bytes.
TRACE = """
import json, select, socket, sys
source, destination, port, first, count = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
IP_TTL, IP_RECVERR = 2, 11

def offender(link):
    link.setsockopt(socket.SOL_IP, IP_RECVERR, 1)
    link.setsockopt(socket.SOL_IP, IP_TTL, 2)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    link.setblocking(False)
    link.connect_ex((destination, port))
    if link.type & socket.SOCK_DGRAM:
        link.send(b"trace")
    ready = select.poll()
    ready.register(link, select.POLLERR)
    ready.poll(2000)
    for level, kind, data in link.recvmsg(64, 512, socket.MSG_ERRQUEUE)[1]:
        if (level, kind) == (socket.SOL_IP, IP_RECVERR):
            return socket.inet_ntoa(data[20:24])

def traced(kind, own):
    with socket.socket(socket.AF_INET, kind) as link:
        link.bind((source, own))
        return offender(link)

ports = range(first, first + count)
print(json.dumps([[traced(kind, own) for own in ports] for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)]))
"""
SEND = """
import errno, socket, sys
source, destination, port, own = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
link, again = socket.socket(), socket.socket()
for each in (link, again):
    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    each.bind((source, own))
link.connect((destination, port))
link.sendall(bytes(50_000))
print(errno.errorcode[again.connect_ex((destination, port))])
"""
SERVE = f"""
import socket
server = socket.create_server(("", {PORT}))
print("event=listening", flush=True)
while True:
    link = server.accept()[0]
    while link.recv(65536):
        pass
"""

# Twice the switches between two addresses, from source ports of queue pairs; then what comes of a hop more, and of a
# source port that a socket has.
HOPS = """
import json, socket, sys
from fabricpulse.mesh.rdma_plane.hop_probe import ROCE_PORT, Way, traced

near, far, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
[reference] = traced([Way(near, far, 0, 9620)])
length = len(reference.hops)
ways = [Way(near, far, 0xC000 + n, ROCE_PORT, 32, "rail0", length) for n in range(count)]
once, again = ([one.hops for one in traced(ways)] for _ in range(2))
print(json.dumps([length, once, again]), flush=True)
input()
traced([Way(near, far, 0xC000, ROCE_PORT, 32, "rail0", length + 1)])
family = socket.AF_INET6 if ":" in near else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as other:
    other.bind((near, 0xC001))
    print(json.dumps(traced(ways[:2])[1].error), flush=True)
"""


@pytest.fixture(scope="module")
def lab():
    """Two hosts below two leaves, with four spines between them."""
    with Lab(hosts=2, rails=1, spines=SPINES, pods=2) as lab:
        yield lab


def test_the_path_of_a_connection_is_that_of_its_syn_and_not_of_udp(lab):
    """The same ports over UDP are another draw; a SYN with a hop limit shows what the connection then takes; while it
    is there, nobody else can ask.
    """
    near, far = lab.hosts
    ends = [str(host.nic("rail0").address).partition("/")[0] for host in (near, far)]
    lab.popen(far.name, [sys.executable, "-c", SERVE]).wait_for_output("event=listening")

    def run(code, *arguments):
        return lab.run(near.name, [sys.executable, "-c", code, *ends, *map(str, arguments)]).stdout

    udp, tcp = json.loads(run(TRACE, PORT, FIRST, COUNT))
    assert None not in udp + tcp
    assert len(set(tcp)) == SPINES
    # Independent draws agree in a quarter, 16 of 64: more than half would be one in 10^6.
    assert sum(a == b for a, b in zip(udp, tcp, strict=True)) <= COUNT // 2

    def carried():
        text = "/sys/class/net/{}/statistics/rx_bytes".format(near.nic("rail0").leaf)
        return {spine: int(lab.run(spine, ["cat", text]).stdout) for spine in lab.fabric.spine_names}

    spine_of: dict[str, set[str]] = {}
    for own in range(FIRST, FIRST + 12):
        before = carried()
        assert run(SEND, PORT, own).strip() == "EADDRNOTAVAIL"
        after = carried()
        spine_of.setdefault(tcp[own - FIRST], set()).add(max(after, key=lambda s: after[s] - before[s]))
    assert all(len(spines) == 1 for spines in spine_of.values())
    assert len(set.union(*spine_of.values())) == len(spine_of)


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_the_path_of_a_source_port_is_found_and_nothing_reaches_the_peer(lab, family):
    """The same switches each time; what is sent to the port of RoCE ends at the last one, and one hop more brings one
    packet to the peer.
    """
    near, far = (host.nic("rail0") for host in lab.hosts)
    ends = [str(nic.address if family == "IPv4" else nic.address6).partition("/")[0] for nic in (near, far)]
    kind = socket.AF_INET if family == "IPv4" else socket.AF_INET6
    with lab.socket(lab.hosts[1].name, socket.SOCK_DGRAM, kind) as peer:
        peer.bind((ends[1], 4791))
        peer.setblocking(False)
        command = [sys.executable, "-c", HOPS, *ends, str(2 * LEAST)]
        with subprocess_of(lab, lab.hosts[0].name, command) as (ask, answers):
            length, once, again = json.loads(answers.readline())
            assert length == 3
            # Routers answer so many packets a second, and are silent then.
            known = [(a, b) for a, b in zip(once, again, strict=True) if len(a) > 1 and len(b) > 1]
            assert len(known) >= LEAST
            assert not any(contradicts(a, b) for a, b in known)
            assert len({a[1] for a, _ in known}) > 1
            assert max(map(len, once)) == 3
            with pytest.raises(BlockingIOError):
                peer.recv(100)
            ask.write("\n")
            ask.flush()
            assert json.loads(answers.readline()) == errno.EADDRINUSE
            assert len(peer.recv(100)) == 32
            with pytest.raises(BlockingIOError):
                peer.recv(100)


@contextmanager
def subprocess_of(lab, node, command):
    """A program of a node, by its input and output."""
    inner_in, requests = os.pipe()
    answers, inner_out = os.pipe()
    process = lab.popen(node, command, stdin=inner_in, stdout=inner_out)
    os.close(inner_in)
    os.close(inner_out)
    with os.fdopen(requests, "w") as writing, os.fdopen(answers) as reading:
        yield writing, reading
    assert process.wait(10) == 0
