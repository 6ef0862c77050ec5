"""The order in which an engine's trains leave: no peer is always the first, which the kernel serves slower."""

import contextlib
import itertools
import selectors
import socket

from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import Patience

from fabricpulse.mesh import _probe_engine as native

PEERS = 4
POSITION, PATH, TRAIN = 5, 6, 32  # offsets of a packet's place in its train, its path, its number
SOF_RX = 1 << 3 | 1 << 4  # SOF_TIMESTAMPING_RX_SOFTWARE, SOF_TIMESTAMPING_SOFTWARE


def arrivals(sockets, enough):
    """(kernel ns, peer) of the first packets of trains, in order; until each peer has `enough` of them."""
    seen = [[] for _ in sockets]
    patience = Patience(20)
    with selectors.DefaultSelector() as selector:
        for peer, sock in enumerate(sockets):
            selector.register(sock, selectors.EVENT_READ, peer)
        while min(map(len, seen)) < enough:
            assert patience.left(), [len(stamps) for stamps in seen]
            for key, _ in selector.select(1):
                data, ancillary, _, _ = key.fileobj.recvmsg(256, 256)
                if data[POSITION] != 0:
                    continue
                stamp = next((value for level, _, value in ancillary if level == socket.SOL_SOCKET), None)
                if stamp is None:  # the kernel begins to stamp a moment after it was asked to
                    continue
                seconds, ns = int.from_bytes(stamp[:8], "little"), int.from_bytes(stamp[8:16], "little")
                seen[key.data].append(seconds * 10**9 + ns)
    return sorted((ns, peer) for peer, stamps in enumerate(seen) for ns in stamps)


@contextlib.contextmanager
def probed(paths, sweep):
    """The sockets of peers that an engine sends to."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(PEERS)
        ]
        port = reserved_port()
        for peer, sock in enumerate(sockets):
            sock.bind((f"127.0.0.{2 + peer}", port))
            sock.setsockopt(socket.SOL_SOCKET, 37, SOF_RX)  # SO_TIMESTAMPING
            sock.settimeout(20)
        settings = native.Settings()
        settings.host, settings.port, settings.paths, settings.sweep = "h0", port, paths, sweep
        settings.rate, settings.bind_device = 500, False
        engine = native.ProbeEngine(settings)
        engine.set_keys([bytes(16)])
        engine.configure(
            [("lo", "rail0", "127.0.0.1")],
            [(0, f"h{1 + peer}", "rail0", "rail0", f"127.0.0.{2 + peer}") for peer in range(PEERS)],
        )
        engine.start()
        stack.callback(engine.stop)
        yield sockets


def test_every_peer_is_first_at_times():
    with probed(1, 0) as sockets:
        order = arrivals(sockets, 300)
    # Neighbours in time left in one system call, whichever call that was: who of two is the earlier is a coin's toss.
    earlier = dict.fromkeys(itertools.permutations(range(PEERS), 2), 0)
    for (at, one), (then, other) in itertools.pairwise(order):
        if one != other and then - at < 20_000:
            earlier[one, other] += 1
    for (one, other), count in earlier.items():
        both = count + earlier[other, one]
        assert both >= 40
        assert 0.2 < count / both < 0.8, (one, other, count, both)


def test_edges_do_not_leave_the_main_path_together():
    """For an interval nothing would be known of the clocks: a train on another path shows nothing of its delay."""
    sweep, same = 10, 0
    for _ in range(6):
        with probed(4, sweep) as sockets:
            packets = [sock.recv(256) for sock in sockets]
        trains = [int.from_bytes(packet[TRAIN : TRAIN + 4], "little") for packet in packets]
        assert all(
            (packet[PATH] != 0) == (train % sweep == 0) for packet, train in zip(packets, trains, strict=True)
        )
        assert all(0 < train <= 256 for train in trains)
        same += len({train % sweep for train in trains}) == 1
    assert same < 2
