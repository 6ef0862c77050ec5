"""A whole fleet in virtual time, event by event, with known clocks: probes, edge fits, reports, solves, pages.

The estimators, the messages, the coordinators' fleets, the choice of a coordinator, neighbour averaging and the fleet
clocks are those of the daemons. What a daemon does when (rounds, gathering, who is asked) is written here once more,
without sockets; the probe engine and its watch over causality are not there.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tests.unit.clocksync.fleet.virtual_host import NS, ROUND_S, UTC_NS, Host, Oscillator

from fabricpulse.clocksync.coordinator.duplicate_hosts import NameHeldError
from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.edge.estimator import EdgeFit
from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE
from fabricpulse.clocksync.wire.messages import (
    RoundReply,
    RoundReport,
)
from fabricpulse.core.shm.clock_page import ClockStatus, FleetTime
from fabricpulse.core.shm.probe_ring import INBOUND, MAIN_PATH, OUTBOUND

_GATHER_S, _PATIENCE_S = 0.022, 0.5


@dataclass
class Link:
    """The path between two hosts. waits : share of the trains that meet a queue. cuts : from and to, s. waiting :
    samples that a host has not read yet. longer : since when, sent by whom, and by how many ns.
    """

    waits: float
    done_s: float
    cuts: list[tuple[float, float]] = field(default_factory=list)
    waiting: dict[str, list[NDArray[np.void]]] = field(default_factory=dict)
    longer: list[tuple[float, str, float]] = field(default_factory=list)


@dataclass
class _Coordinator:
    """What a coordinator's daemon knows of the round that it gathers. waiting : hosts, runs and their members."""

    fleet: Fleet = field(default_factory=Fleet)
    waiting: list[tuple[Host, int]] = field(default_factory=list)
    first_s: float | None = None
    last_s: float = 0.0


class VirtualFleet:
    """`hosts` hosts, each connected with each, and coordinators. t_s : true time.

    reaches[host] : coordinators that it reaches. near : whether sidecars of two hosts reach each other. outside :
    whenever fleet times of two hosts were further apart than their bounds, or one from UTC, and what they were.
    edges_outside : the same of edge fits. looks : how often that was looked for, looked : synchronized hosts then.
    """

    def __init__(
        self,
        hosts: int,
        coordinators: int,
        seed: int,
        *,
        waits: float = 0.3,
        delay_ns: float = 1_500.0,
        trains_per_s: float = 50.0,
    ) -> None:
        self.random, self._rng = random.Random(seed), np.random.default_rng(seed)
        self.t_s, self._delay_ns, self._trains_per_s = 1.0, delay_ns, trains_per_s
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._sequence = itertools.count()
        self.coordinators: list[_Coordinator | None] = [_Coordinator() for _ in range(coordinators)]
        self.hosts: dict[str, Host] = {}
        for name in (f"h{i}" for i in range(hosts)):
            oscillator = Oscillator(self.random.uniform(-50e3, 50e3))
            epoch_ns = UTC_NS + self.random.randint(-5000, 5000) * (1 << 20)
            self.hosts[name] = Host(self, name, oscillator, epoch_ns)
        self.reaches = {name: set(range(coordinators)) for name in self.hosts}
        self.near: Callable[[str, str], bool] = lambda a, b: True
        self.links = {
            pair: Link(waits, self.t_s, waiting={name: [] for name in pair})
            for pair in itertools.combinations(sorted(self.hosts), 2)
        }
        self.outside: list[tuple[float, str, FleetTime, str, FleetTime | None]] = []
        self.edges_outside: list[tuple[float, str, str, EdgeFit]] = []
        self.looks = self.looked = 0
        for host in self.hosts.values():
            self.at(self.t_s + self.random.uniform(0, 0.5), host.start)
        self.at(self.t_s + 1, self._look)

    def at(self, t_s: float, then: Callable[[float], None]) -> None:
        """`then` is called at `t_s`, with it."""
        heapq.heappush(self._events, (t_s, next(self._sequence), then))

    def run_until(self, t_s: float) -> None:
        """Everything happens that does until then."""
        while self._events[0][0] <= t_s:
            self.t_s, _, then = heapq.heappop(self._events)
            then(self.t_s)
        self.t_s = t_s

    def late_s(self) -> float:
        """How late a process has a core."""
        return self.random.expovariate(1 / 0.002)

    def synchronized(self) -> bool:
        """All say so."""
        return all(shown.status == ClockStatus.SYNCHRONIZED for shown in self._times(self.t_s).values())

    def divide(self, part: set[str], until_s: float) -> None:
        """Probes between `part` and the rest are lost from now until then; who is left alone measures nothing."""
        for (a, b), link in self.links.items():
            if (a in part) != (b in part):
                link.cuts.append((self.t_s, until_s))
        self._find_silent()

    def cut(self, a: str, b: str, until_s: float) -> None:
        """Probes between two hosts are lost from now until then."""
        self.links[min(a, b), max(a, b)].cuts.append((self.t_s, until_s))

    def lengthen(self, sender: str, receiver: str, by_ns: float) -> None:
        """Packets that way take longer from now on."""
        link = self.links[min(sender, receiver), max(sender, receiver)]
        link.longer.append((self.t_s, sender, by_ns))

    def end_coordinator(self, number: int) -> None:
        """It is killed; who waits for its answer learns that there is none."""
        coordinator, self.coordinators[number] = self.coordinators[number], None
        for host, run in coordinator.waiting if coordinator is not None else ():
            self._answer(self.t_s, number, host, run, None)

    def start_coordinator(self, number: int) -> None:
        """Another one begins in its place, and knows nothing."""
        self.coordinators[number] = _Coordinator()

    def _find_silent(self) -> None:
        for host in self.hosts.values():
            ends_s = [
                max((back_s for cut_s, back_s in link.cuts if cut_s <= self.t_s), default=0.0)
                for pair, link in self.links.items()
                if host.name in pair
            ]
            if min(ends_s) > self.t_s:
                host.measure_nothing(self.t_s, min(ends_s))

    # Probes

    def read(self, host: Host, t_s: float) -> None:
        """The host's sidecar takes the samples that the engine has written for it."""
        for pair, link in self.links.items():
            if host.name in pair:
                self._probe(pair, link, t_s)
                peer = pair[pair[0] == host.name]
                for block in link.waiting[host.name]:
                    host.windows[peer].add(block)
                link.waiting[host.name].clear()

    def _probe(self, pair: tuple[str, str], link: Link, until_s: float) -> None:
        rng, begin_s, link.done_s = self._rng, link.done_s, until_s
        at = np.sort(rng.uniform(begin_s, until_s, rng.poisson((until_s - begin_s) * self._trains_per_s)))
        for cut_s, back_s in link.cuts:
            at = at[(at < cut_s) | (at >= back_s)]
        for sender, receiver in (pair, pair[::-1]):
            sent = at[:, None] + np.arange(3) * 20e-6
            delay = self._delay_ns + np.abs(rng.normal(0, 15, sent.shape))
            delay[:, 0] += rng.uniform(0, 8_000, len(at))
            delay += (rng.random(len(at)) < link.waits)[:, None] * rng.exponential(50_000, sent.shape)
            for since_s, by, longer_ns in link.longer:
                delay[at >= since_s] += longer_ns * (by == sender)
            block = np.zeros(len(at), SAMPLE_DTYPE)
            block["flags"], block["tx_valid"], block["rx_valid"] = MAIN_PATH, 7, 7
            block["tx_ns"] = self.hosts[sender].stamps(sent)
            block["rx_ns"] = self.hosts[receiver].stamps(sent + delay * 1e-9)
            for name, direction in ((sender, OUTBOUND), (receiver, INBOUND)):
                copy = block.copy()
                copy["direction"] = direction
                link.waiting[name].append(copy)

    # Coordinators

    def send(self, host: Host, t_s: float, number: int) -> None:
        """The report leaves; the answer comes when a solve has used it."""
        report, run = host.report(t_s, number), host.run
        self.at(t_s + self._network_s(), lambda t: self._arrive(t, number, host, run, report))

    def _network_s(self) -> float:
        return 0.0002 + self.random.expovariate(1_000)

    def _answer(self, t_s: float, number: int, host: Host, run: int, reply: RoundReply | None) -> None:
        reached = number in self.reaches[host.name]
        self.at(t_s, lambda t: host.take(t, number, reply if reached else None) if host.run == run else None)

    def _arrive(self, t_s: float, number: int, host: Host, run: int, report: RoundReport) -> None:
        coordinator = self.coordinators[number]
        if coordinator is None:
            return self._answer(t_s, number, host, run, None)
        fleet = coordinator.fleet
        try:
            fleet.report(report, t_s)
        except NameHeldError:  # its sidecar was started just now
            rest = fleet.roster.generation, fleet.quorum, fleet.no_quorum
            reply = RoundReply(fleet.solves, None, fleet.root, True, b"", "", None, *rest)
            return self._answer(t_s + self._network_s(), number, host, run, reply)
        coordinator.waiting.append((host, run))
        coordinator.last_s = t_s
        if coordinator.first_s is None:
            coordinator.first_s = t_s
            self.at(t_s + _GATHER_S, lambda t: self._gather(t, number, coordinator))
        elif t_s > coordinator.first_s + _GATHER_S:
            self._gather(t_s, number, coordinator)
        return None

    def _gather(self, t_s: float, number: int, coordinator: _Coordinator) -> None:
        """Solves when nobody is missing, or has been waited for long enough."""
        if self.coordinators[number] is not coordinator or coordinator.first_s is None:
            return None
        until_s = min(coordinator.first_s + ROUND_S, coordinator.last_s + _PATIENCE_S)
        if coordinator.fleet.missing and t_s < until_s:
            return self.at(until_s + 1e-6, lambda t: self._gather(t, number, coordinator))
        fleet, waiting = coordinator.fleet, coordinator.waiting
        coordinator.first_s, coordinator.waiting = None, []
        fleet.solve_round(t_s)
        for host, run in waiting:
            member = fleet.roster.members.get(host.name)
            if member is None or member.epoch != run:
                self._answer(t_s, number, host, run, None)
                continue
            reply = RoundReply(
                fleet.solves, member.line, fleet.root, fleet.needs_info(member), b"", member.suspect, None,
                fleet.roster.generation, fleet.quorum, fleet.no_quorum, drift_ppb=member.drift_ppb,
            )  # fmt: skip
            self._answer(t_s + 0.002 + self._network_s(), number, host, run, reply)
        return None

    # The truth

    def _times(self, t_s: float) -> dict[str, FleetTime]:
        times = {
            name: host.shown.at(host.raw_ns(t_s))
            for name, host in self.hosts.items()
            if host.shown is not None and t_s > host.frozen_until_s
        }
        says = ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER
        return {name: shown for name, shown in times.items() if shown.status in says}

    def _look(self, t_s: float) -> None:
        self.at(t_s + 0.02, self._look)
        times = list(self._times(t_s).items())
        self.looks += 1
        self.looked += sum(shown.status == ClockStatus.SYNCHRONIZED for _, shown in times)
        for (a, of_a), (b, of_b) in itertools.combinations(times, 2):
            if abs(of_a.fleet_ns - of_b.fleet_ns) > of_a.bound_ns + of_b.bound_ns:
                self.outside.append((t_s, a, of_a, b, of_b))
        if any(host.utc_off_ns is not None for host in self.hosts.values()):
            utc_ns = UTC_NS + round(t_s * 1e9)
            wrong = [(a, of_a) for a, of_a in times if abs(of_a.fleet_ns - utc_ns) > of_a.bound_ns]
            self.outside += [(t_s, a, of_a, "UTC", None) for a, of_a in wrong]

    def judge(self, host: Host, t_s: float) -> None:
        """What the host's edges say, at their ends."""
        for peer, fit in host.fits.items():
            other = self.hosts[peer]
            gained_ns = fit.t_last_ns - 10 * NS - host.epoch_ns
            then_s = gained_ns * 1e-9
            for _ in range(4):
                then_s = (gained_ns - float(host.oscillator(then_s))) * 1e-9
            truth = other.epoch_ns - host.epoch_ns + float(other.oscillator(then_s) - host.oscillator(then_s))
            if abs(fit.at(fit.t_last_ns) - truth) > fit.bound_ns:
                self.edges_outside.append((t_s, host.name, peer, fit))
