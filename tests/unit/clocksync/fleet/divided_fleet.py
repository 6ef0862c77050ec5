"""Hosts and coordinators of which not all reach each other, in virtual time, with known clocks.

The solve, the choice of coordinators, neighbour averaging and fleet clocks are those of the daemons; edge fits are made
from the truth, with an error that their bound allows for.
"""

import random
from contextlib import suppress
from dataclasses import dataclass, field, replace

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import FleetClock, FleetClockParameters
from fabricpulse.clocksync.coordinator.duplicate_hosts import NameHeldError
from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.edge.estimator import EdgeFit, Extremes, Quality
from fabricpulse.clocksync.edge.ownership import is_ours
from fabricpulse.clocksync.sidecar.coordinator_selection import (
    CoordinatorHealth,
    NamedQuorum,
    left_out,
    select_coordinator,
)
from fabricpulse.clocksync.sidecar.neighbour_doubt import NeighbourDoubt
from fabricpulse.clocksync.sidecar.neighbours import consensus
from fabricpulse.clocksync.sidecar.sidecar import correction_of
from fabricpulse.clocksync.wire.messages import (
    PROTOCOL,
    EdgeName,
    EdgeReport,
    HostInfo,
    Line,
    LineReply,
    RoundReply,
    RoundReport,
    pack_edges,
)
from fabricpulse.core.shm.clock_page import ClockStatus, FleetTime

_NS = 10**9
# Seconds without a coordinator after which a sidecar asks its neighbours; a window that a fit stays in.
_ALONE_S, _WINDOW_S = 2.0, 4.0
_EDGE_BOUND_NS, _EDGE_ERROR_NS = 400, 15


@dataclass
class Host:
    """One host: its clock runs by rate_ppb faster than the truth since since_s, when it was ahead by ahead_ns."""

    name: str
    ahead_ns: float
    rate_ppb: float
    coordinators: int
    since_s: float = 0.0
    turned_ns: float = 0.0
    epoch: int = 1
    clock: FleetClock | None = None
    healths: list[CoordinatorHealth] = field(default_factory=list)
    fits: dict[str, EdgeFit] = field(default_factory=dict)
    named: NamedQuorum = field(default_factory=NamedQuorum)
    placed: bool = False
    root: str = ""
    doubt: NeighbourDoubt | None = None

    def begin(self, now: CrossTimestamp) -> None:
        """The sidecar starts; its previous page is still there."""
        old = None if self.clock is None else self.clock.page
        self.clock = FleetClock.start(FleetClockParameters(), now, old)
        self.healths = [CoordinatorHealth() for _ in range(self.coordinators)]
        self.named, self.placed, self.root, self.doubt = NamedQuorum(), False, "", None
        self.epoch += 1

    def cross_timestamp(self, t_s: float) -> CrossTimestamp:
        """Both its clocks at `t_s`."""
        raw = _NS + round(t_s * 1e9 + self.turned_ns + (t_s - self.since_s) * self.rate_ppb)
        return CrossTimestamp(raw + round(self.ahead_ns), raw)

    def change_rate(self, t_s: float, by_ppb: float) -> None:
        """Its crystal runs faster by `by_ppb` from now on."""
        self.turned_ns += (t_s - self.since_s) * self.rate_ppb
        self.since_s, self.rate_ppb = t_s, self.rate_ppb + by_ppb


class DividedFleet:
    """reaches[host] : coordinators that it reaches. deaf[host] : those of them whose replies do not reach it.
    near[host] : hosts that it exchanges probes with. lost : chance that a reply does not arrive.
    """

    def __init__(self, hosts: int, coordinators: int, seed: int, lost: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.lost = lost
        self.coordinators: list[Fleet | None] = [Fleet() for _ in range(coordinators)]
        names = [f"h{i}" for i in range(hosts)]
        self.hosts = {
            name: Host(name, self.random.uniform(-5e9, 5e9), self.random.uniform(-50e3, 50e3), coordinators)
            for name in names
        }
        self.t_s = 1.0
        self.heal()
        for host in self.hosts.values():
            host.begin(host.cross_timestamp(self.t_s))

    def heal(self) -> None:
        """Everybody reaches everybody."""
        self.reaches = {name: set(range(len(self.coordinators))) for name in self.hosts}
        self.deaf: dict[str, set[int]] = {name: set() for name in self.hosts}
        self.near = {name: set(self.hosts) - {name} for name in self.hosts}

    def cut(self, part: set[str], coordinators: set[int]) -> None:
        """`part` and `coordinators` are cut off from the others."""
        rest = set(self.hosts) - part
        for name in self.hosts:
            side = part if name in part else rest
            self.near[name] &= side
            self.reaches[name] &= (
                coordinators if name in part else set(range(len(self.coordinators))) - coordinators
            )

    def times(self, t_s: float) -> dict[str, FleetTime]:
        """Fleet time of all that have it."""
        return {
            host.name: host.clock.page.at(host.cross_timestamp(t_s).raw_ns)
            for host in self.hosts.values()
            if host.clock is not None and host.clock.known
        }

    def outside(self, t_s: float) -> list[tuple[str, FleetTime, str, FleetTime]]:
        """Pairs that differ by more than both bounds allow."""
        times = list(self.times(t_s).items())
        return [
            (a, of_a, b, of_b)
            for i, (a, of_a) in enumerate(times)
            for b, of_b in times[i + 1 :]
            if abs(of_a.fleet_ns - of_b.fleet_ns) > of_a.bound_ns + of_b.bound_ns
        ]

    def spread_ns(self) -> int:
        """Between the first and the last."""
        shown = [time.fleet_ns for time in self.times(self.t_s).values()]
        return max(shown) - min(shown)

    def synchronized(self) -> set[str]:
        """Hosts whose page says so."""
        times = self.times(self.t_s)
        return {name for name, time in times.items() if time.status == ClockStatus.SYNCHRONIZED}

    def play_round(self) -> None:
        """A second: probes, reports, solves, replies, neighbours. Raises AssertionError when a bound does not hold."""
        for quarter in range(1, 4):
            self._tick(self.t_s + quarter / 4)
        self.t_s += 1.0
        self._fit()
        sent: list[tuple[int, Host]] = []
        order = list(self.hosts.values())
        self.random.shuffle(order)
        for host in order:
            at_s = self.t_s + self.random.uniform(0.0, 0.03)
            for index in sorted(self.reaches[host.name]):
                coordinator = self.coordinators[index]
                if coordinator is not None:
                    with suppress(NameHeldError):  # it was restarted just now
                        coordinator.report(
                            self._report(host, at_s, index), at_s + self.random.expovariate(200)
                        )
                    sent.append((index, host))
                else:
                    host.healths[index].up = False
        solving = list(self.coordinators)
        self.random.shuffle(solving)
        for coordinator in solving:
            if coordinator is not None:
                coordinator.solve_round(self.t_s + 0.1)
        self.random.shuffle(sent)
        for index, host in sent:
            if index not in self.deaf[host.name] and self.random.random() >= self.lost:
                self._reply(host, index)
        lines = {name: self._line_reply(host) for name, host in self.hosts.items()}
        for host in order:
            if self.t_s - max((one.placed_s for one in host.healths), default=0.0) > _ALONE_S:
                self._average(host, lines)
        self._tick(self.t_s + 0.2)

    def _tick(self, t_s: float) -> None:
        for host in self.hosts.values():
            if host.clock is not None:
                host.clock.tick(host.cross_timestamp(t_s))
        assert not self.outside(t_s), (t_s, self.outside(t_s))

    def _fit(self) -> None:
        for host in self.hosts.values():
            now = host.cross_timestamp(self.t_s).host_ns
            for peer in sorted(self.near[host.name]):
                offset = self.hosts[peer].cross_timestamp(self.t_s).host_ns - now
                offset += round(self.random.gauss(0, _EDGE_ERROR_NS))
                host.fits[peer] = _fit_of(now, offset, self.hosts[peer].rate_ppb - host.rate_ppb)
            host.fits = {
                peer: fit for peer, fit in host.fits.items() if now - fit.t_last_ns < _WINDOW_S * 1e9
            }

    def _report(self, host: Host, at_s: float, rank: int) -> RoundReport:
        now = host.cross_timestamp(at_s).host_ns
        peers = sorted(set(self.hosts) - {host.name})
        edges = [
            EdgeReport(
                fit.t_ns, fit.offset_ns, round(fit.rate_ppb * 1000), 0, round(fit.sigma_ns),
                round(fit.rate_sigma_ppb * 1000), round(fit.bound_ns), peers.index(peer), int(fit.quality),
            )
            for peer, fit in host.fits.items()
            if is_ours(host.name, EdgeName("rail0", peer, "rail0"))
        ]  # fmt: skip
        info = HostInfo(1, "", (), tuple(EdgeName("rail0", peer, "rail0") for peer in peers), "none")
        return RoundReport(
            PROTOCOL, host.name, host.epoch, 1, now, pack_edges(edges), self._line(host, at_s), None, host.root, 0,
            info, rank, host.named.quorum, host.clock is not None and host.clock.no_quorum,
        )  # fmt: skip

    def _line(self, host: Host, at_s: float) -> Line | None:
        if host.clock is None or not host.clock.known:
            return None
        now = host.cross_timestamp(at_s)
        asked = host.clock.requested(now)
        return Line(now.host_ns, asked.to_ns - now.host_ns, asked.rate_ppt, host.clock.kept_bound_ns(now))

    def _reply(self, host: Host, index: int) -> None:
        coordinator = self.coordinators[index]
        member = coordinator.roster.members.get(host.name) if coordinator is not None else None
        if coordinator is None or member is None or host.clock is None:
            return
        line = member.line if member.epoch == host.epoch else None
        reply = RoundReply(
            0, line, coordinator.root, False, b"", "", None, 0, coordinator.quorum, coordinator.no_quorum
        )
        health = host.healths[index]
        health.answered(reply, self.t_s)
        host.named.take(host.healths, self.t_s)
        leader = select_coordinator(
            host.healths, self.t_s, _ALONE_S, placed=host.placed, named=host.named.quorum
        )
        if leader not in (None, health):
            return
        host.placed = host.placed or line is not None
        host.root = reply.root
        if line is not None:
            host.clock.correct(host.cross_timestamp(self.t_s + 0.15), correction_of(reply, line))

    def _line_reply(self, host: Host) -> LineReply:
        at_s = self.t_s + 0.15
        return LineReply(
            host.name,
            host.cross_timestamp(at_s).host_ns,
            self._line(host, at_s),
            host.name in self.synchronized(),
        )

    def _average(self, host: Host, lines: dict[str, LineReply]) -> None:
        near = {name: line for name, line in lines.items() if name in self.near[host.name]}
        fits = list(host.fits.items())
        own = self._line(host, self.t_s + 0.15)
        if own is None and not any(reply.line for reply in near.values()):
            return
        now = host.cross_timestamp(self.t_s + 0.15)
        correction, host.doubt = consensus(host.name, own, fits, near, now.host_ns, 250.0, host.doubt)
        if correction is not None and host.clock is not None:
            no_quorum = left_out(host.healths, self.t_s, _ALONE_S)
            host.clock.correct(now, replace(correction, free=True, no_quorum=no_quorum))


def _fit_of(now: int, offset: int, rate: float) -> EdgeFit:
    b = float(_EDGE_BOUND_NS)
    return EdgeFit(
        now, now, offset, rate, b, b, b, rate - 50, rate + 50, b, _EDGE_ERROR_NS, 5.0, 200, _WINDOW_S,
        Quality.FILTERED, offset, Extremes(now, offset, now, offset),
    )  # fmt: skip
