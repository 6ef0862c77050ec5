"""What a prober can know of the path of a TCP connection: docs/decisions/0033."""

import json
import sys

import pytest

from fabricpulse.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.slow]

PORT, FIRST, COUNT = 5001, 40_000, 64
SPINES = 4

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
