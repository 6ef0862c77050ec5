"""A fleet of hosts that report exact stamps to a coordinator, second by second, and of whom some lie."""

from dataclasses import dataclass, field

from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.wire.messages import (
    PROTOCOL,
    EdgeName,
    EdgeReport,
    HostInfo,
    Line,
    Quorum,
    RoundReport,
    pack_edges,
)

_BEGIN_NS = 1_800_000_000_000_000_000
_NS = 10**9
_SLEW_NS = 500_000
# What each edge can hide.
EDGE_BOUND_NS = 500


@dataclass
class ReportingFleet:
    """`count` hosts with edges to all others. Clocks show true time plus clock_ns, stamps lies_ns more.

    Fleet time is slewed by 500 ppm; shown_ns : the correction that a host shows, on its way to that of its line.
    Reports tell of lines, and of bounds that hold for what is shown, as those of sidecars do.

    anchors : host -> error of its UTC and how large it says that it may be. unheard : hosts that do not get the reply.
    silent : hosts that do not report. edge_errors_ns : (host, other) -> what the stamps of `host` are off by on the NIC
    that it has for that edge. part : hosts without edges to the others. hides_ns : host -> what each of its edges can
    hide, where that is more than usual. unverified : hosts that say so of their lines.
    """

    count: int = 8
    anchors: dict[str, tuple[int, int]] = field(default_factory=dict)
    lies_ns: dict[str, int] = field(default_factory=dict)
    clock_ns: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)
    shown_ns: dict[str, int] = field(default_factory=dict)
    unheard: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    edge_errors_ns: dict[tuple[str, str], int] = field(default_factory=dict)
    part: set[str] = field(default_factory=set)
    hides_ns: dict[str, int] = field(default_factory=dict)
    unverified: set[str] = field(default_factory=set)
    fleet: Fleet = field(default_factory=Fleet)
    quorums: dict[str, Quorum | None] = field(default_factory=dict)
    second: int = 0

    @property
    def hosts(self) -> list[str]:
        """Their names."""
        return [f"h{k:02d}" for k in range(self.count)]

    def _host_ns(self, host: str) -> int:
        return _BEGIN_NS + self.second * _NS + self.clock_ns.get(host, 0)

    def _report(self, host: str) -> RoundReport:
        now = self._host_ns(host)
        peers = [peer for peer in self.hosts if peer > host]

        def stamped(name: str, other: str) -> int:
            lie_ns = self.lies_ns.get(name, 0) + self.edge_errors_ns.get((name, other), 0)
            return self.clock_ns.get(name, 0) + lie_ns

        def hides_ns(peer: str) -> int:
            return max(EDGE_BOUND_NS, self.hides_ns.get(host, 0), self.hides_ns.get(peer, 0))

        edges = [
            EdgeReport(now, stamped(peer, host) - stamped(host, peer), 0, 0, 20, 1_000, hides_ns(peer), k, 0)
            for k, peer in enumerate(peers)
            if (peer in self.part) == (host in self.part)
        ]
        anchor = None
        if host in self.anchors:
            error, bound = self.anchors[host]
            anchor = (error - self.clock_ns.get(host, 0), bound)
        names = tuple(EdgeName("rail0", peer, "rail0") for peer in peers)
        info = HostInfo(1, "", (), names, "system" if anchor else "none")
        return RoundReport(
            PROTOCOL,
            host,
            self.epochs.get(host, 1),
            1,
            now,
            pack_edges(edges),
            self._own_line(host),
            anchor,
            "",
            self.steps.get(host, 0),
            info,
            quorum=self.quorums.get(host, self.fleet.quorum),
            unverified=host in self.unverified,
        )

    def _own_line(self, host: str) -> Line | None:
        line = self.lines.get(host)
        if line is None:
            return None
        left = abs(line.correction_ns - self.shown_ns[host])
        return Line(line.ref_host_ns, line.correction_ns, line.rate_ppt, line.bound_ns + left)

    def run(self, seconds: int = 1) -> None:
        """Reports, solves, and hosts that apply the replies."""
        for _ in range(seconds):
            self.second += 1
            reporting = [host for host in self.hosts if host not in self.silent]
            for host in reporting:
                self.fleet.report(self._report(host), float(self.second))
            self.fleet.solve_round(self.second + 0.1)
            for host in reporting:
                if host in self.lines:
                    left = self.lines[host].correction_ns - self.shown_ns[host]
                    self.shown_ns[host] += max(-_SLEW_NS, min(_SLEW_NS, left))
                if host not in self.unheard:
                    self.quorums[host] = self.fleet.quorum
                line = self.fleet.roster.members[host].line
                if line is not None and host not in self.unheard:
                    self.lines[host] = line
                    self.shown_ns.setdefault(host, line.correction_ns)

    def step_clock(self, host: str, by_ns: int) -> None:
        """Somebody sets its clock, and its sidecar notices."""
        self.clock_ns[host] = self.clock_ns.get(host, 0) + by_ns
        self.steps[host] = self.steps.get(host, 0) + 1
        line = self.lines[host]
        self.shown_ns[host] -= by_ns
        self.lines[host] = Line(
            line.ref_host_ns + by_ns, line.correction_ns - by_ns, line.rate_ppt, line.bound_ns
        )

    def restart(self, host: str) -> None:
        """Its sidecar is restarted, and goes on with its previous line."""
        self.silent.add(host)
        self.run(3)
        self.silent.remove(host)
        self.epochs[host] = self.epochs.get(host, 1) + 1

    def error_ns(self, host: str) -> int:
        """Fleet time of the host minus true time."""
        return self.lines[host].correction_ns + self.clock_ns.get(host, 0)

    def bound_ns(self, host: str) -> int:
        """As by the last reply."""
        return self.lines[host].bound_ns

    def suspects(self) -> dict[str, str]:
        """Why, by host."""
        return self.fleet.suspects()
