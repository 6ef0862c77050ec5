"""A coordinator and sidecars that exchange datagrams in one process, for tests of the wire."""

import socket

import msgspec
from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import wait_for

from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.coordinator.report_channels import ReportChannels
from fabricpulse.clocksync.wire.datagram import (
    pack_request,
    unpack_reply,
)
from fabricpulse.clocksync.wire.messages import (
    PROTOCOL,
    Channel,
    EdgeName,
    EdgeReport,
    HostInfo,
    Line,
    RoundReply,
    RoundReport,
    pack_edges,
)

NOW = 1_700_000_000 * 10**9
HOSTS = ["a", "b", "c"]


def report_of(host: str, offset_ns: int = 0, *, info: bool = False, edges: int | None = None) -> RoundReport:
    """A host whose clock is `offset_ns` behind those of the others."""
    peers = [peer for peer in HOSTS if peer != host]
    names = tuple(EdgeName("rail0", peer, "rail0") for peer in peers)
    count = len(peers) if edges is None else edges
    block = [EdgeReport(NOW - 10**9, offset_ns, 0, 500_000, 20, 5_000, 2_000, k, 0) for k in range(count)]
    return RoundReport(
        PROTOCOL, host, 1, 1, NOW, pack_edges(block), Line(NOW, 0, 0, 1_000), None, "", 0,
        HostInfo(1, f"http://{host}:9613", (), names, "none") if info else None,
    )  # fmt: skip


def packed(channel: Channel, sequence: int, report: RoundReport) -> bytes:
    """A report of one datagram."""
    (data,) = pack_request(channel, sequence, report)
    return data


def rejoin(coordinator: "Coordinator", host: str, edges: int) -> None:
    """`host` says by HTTP that it has so many edges."""
    peers = [peer for peer in HOSTS if peer != host]
    names = tuple(EdgeName(f"rail{k}", peers[k % 2], "rail0") for k in range(edges))
    info = HostInfo(1, f"http://{host}:9613", (), names, "none")
    coordinator.fleet.report(
        msgspec.structs.replace(report_of(host), info=info), coordinator.now_s, again=False
    )
    # What came by HTTP counts as later than what came by datagram before the same solve.
    coordinator.solve()


class Coordinator:
    """A fleet whose three hosts have joined by HTTP, and its channels on a port of the loopback."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.port = reserved_port()
        self.channels = ReportChannels(self.fleet, [("127.0.0.1", self.port)])
        self.now_s = 100.0
        for host in HOSTS:
            self.fleet.report(report_of(host, info=True), self.now_s, again=False)
        self.channel = {host: self.channels.open(self.fleet.roster.members[host]) for host in HOSTS}
        for host in HOSTS:
            self.fleet.roster.members[host].neighbours_sent = self.fleet.roster.generation
        self.solve()

    def solve(self) -> int:
        """One round; returns how many datagrams were answered."""
        rows, records = self.channels.take()
        rows["received_s"] = self.now_s
        self.fleet.solve_round(self.now_s + 0.01, (rows, records))
        self.now_s += 1
        return self.channels.answer()

    def counts(self) -> dict[str, int]:
        return self.channels.intake.counts()

    def wait_for(self, **counts: int) -> None:
        """Until the intake has counted so many; it works in a thread of its own."""

        def counted() -> bool:
            now = self.counts()
            return all(now[name] >= value for name, value in counts.items())

        wait_for(counted, 10, f"{counts} in the intake", poll_s=0.005)


class Sidecar:
    """The other end, as a plain socket."""

    def __init__(self, channel: Channel, port: int) -> None:
        self.channel = channel
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(60)
        self.socket.connect(("127.0.0.1", port))

    def receive(self, sequence: int) -> RoundReply:
        answer = unpack_reply(self.channel, sequence, self.socket.recv(2048), "before")
        assert answer is not None
        return answer[0]
