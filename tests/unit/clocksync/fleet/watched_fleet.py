"""A VirtualFleet whose probe engines watch: each train of each edge is an event, and what its delays say of clocks is
judged by the engine's own parts (evidence/causality.h, evidence/clock_shift.h) as packets tell of it.

An inbound delay is known with the peer's next train, which brings the stamps of when it was sent; an outbound one with
the peer's next train, too, which brings those of its arrival: by the fleet times that both hosts have then. A doubt
holds the page back at once, as the heartbeat does (clocksync/native/heartbeat).
"""

from dataclasses import dataclass, field

import numpy as np
from tests.unit.clocksync.fleet.virtual_fleet import Link, VirtualFleet
from tests.unit.clocksync.fleet.virtual_host import NS, Host

from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE
from fabricpulse.core.shm.clock_page import ClockStatus, FleetTime
from fabricpulse.core.shm.probe_ring import INBOUND, MAIN_PATH, OUTBOUND
from fabricpulse.mesh._probe_engine import EdgeCausality, EdgeShift, HostCausality, HostShift

INTERVAL_S = 0.02
# Of the engine, between two doubts; of the heartbeat.
_DOUBT_S, _DOUBTED_S = 0.05, 0.3
_TICK_S = 0.002  # the engine drains its sockets


@dataclass
class _Train:
    """tx_ns, rx_ns : stamps of its packets by the clocks of the two hosts."""

    tx_ns: list[int]
    rx_ns: list[int]
    arrives_s: float


@dataclass
class _Edge:
    """At one host. sent : to the peer; what has arrived there, but was not reported yet. got : the last train of the
    peer, whose transmit stamps come with the next one.
    """

    causality: EdgeCausality = field(default_factory=EdgeCausality)
    shift: EdgeShift = field(default_factory=EdgeShift)
    got: _Train | None = None
    sent: list[_Train] = field(default_factory=list)


class _Engine:
    def __init__(self) -> None:
        self.edges: dict[str, _Edge] = {}
        self.causality, self.shift = HostCausality(), HostShift()
        self.doubted_s = -1.0


class WatchedFleet(VirtualFleet):
    """waits : share of the trains that meet a queue, of 50 us on average."""

    def __init__(self, hosts: int, coordinators: int, seed: int, *, waits: float = 0.05) -> None:
        self._engines: dict[str, _Engine] = {}
        super().__init__(hosts, coordinators, seed, waits=waits)
        self._waits = waits
        for name in self.hosts:
            engine = self._engines[name] = _Engine()
            for peer in self.hosts:
                if peer != name:
                    engine.edges[peer] = _Edge()
                    first_s = self.t_s + self.random.uniform(0, INTERVAL_S)
                    self.at(first_s, lambda t, a=name, b=peer: self._send(t, a, b))  # type: ignore[misc]

    def synchronized_hosts(self) -> list[tuple[str, FleetTime]]:
        """As readers see it now."""
        return [
            (name, shown)
            for name, shown in self._times(self.t_s).items()
            if shown.status == ClockStatus.SYNCHRONIZED
        ]

    def false_pairs(self) -> int:
        """Of hosts that say synchronized and are further apart than their bounds allow."""
        times = self.synchronized_hosts()
        return sum(
            abs(a.fleet_ns - b.fleet_ns) > a.bound_ns + b.bound_ns
            for i, (_, a) in enumerate(times)
            for _, b in times[:i]
        )

    def doubted(self, name: str) -> bool:
        """Whether the heartbeat of that host is held back."""
        return self.t_s - self._engines[name].doubted_s < _DOUBTED_S

    def _times(self, t_s: float) -> dict[str, FleetTime]:
        return {
            name: shown._replace(status=ClockStatus.HOLDOVER)
            if shown.status == ClockStatus.SYNCHRONIZED and self.doubted(name)
            else shown
            for name, shown in super()._times(t_s).items()
        }

    # Probes

    def _probe(self, pair: tuple[str, str], link: Link, until_s: float) -> None:
        """Trains are events here."""

    def _send(self, t_s: float, sender: str, receiver: str) -> None:
        self.at(t_s + INTERVAL_S * self._rng.uniform(0.95, 1.05), lambda t: self._send(t, sender, receiver))
        a, b, rng = self.hosts[sender], self.hosts[receiver], self._rng
        link = self.links[min(sender, receiver), max(sender, receiver)]
        cut = any(cut_s <= t_s < back_s for cut_s, back_s in link.cuts)
        if cut or t_s < max(a.frozen_until_s, b.frozen_until_s):
            return
        queue_ns = rng.exponential(50_000) if rng.random() < self._waits else 0.0
        delay_ns = np.asarray(self._delay_ns + queue_ns + np.abs(rng.normal(0, 15, 3)), np.float64)
        delay_ns[0] += rng.uniform(0, 8_000)
        at_s = t_s + np.arange(3, dtype=np.float64) * 20e-6
        arrives_s = float(at_s[2] + delay_ns[2] * 1e-9)
        train = _Train(a.stamps(at_s).tolist(), b.stamps(at_s + delay_ns * 1e-9).tolist(), arrives_s)
        for name, direction in ((sender, OUTBOUND), (receiver, INBOUND)):
            block = np.zeros(1, SAMPLE_DTYPE)
            block["flags"], block["tx_valid"], block["rx_valid"] = MAIN_PATH, 7, 7
            block["tx_ns"], block["rx_ns"], block["direction"] = train.tx_ns, train.rx_ns, direction
            link.waiting[name].append(block)
        self.at(arrives_s + self.random.uniform(0, _TICK_S), lambda t: self._receive(t, a, b, train))

    def _receive(self, t_s: float, sender: Host, receiver: Host, train: _Train) -> None:
        """A packet comes with the stamps of the train before, and of those that its sender has got."""
        here = self._engines[receiver.name].edges[sender.name]
        there = self._engines[sender.name].edges[receiver.name]
        before, here.got = here.got, train
        there.sent.append(train)
        report, here.sent = ([one for one in here.sent if one.arrives_s < t_s - 1e-4][-1:], [])
        if self._page(sender, t_s) is None or self._page(receiver, t_s) is None:
            return
        assert sender.shown is not None
        assert receiver.shown is not None
        for one, outbound in ((before, False), *((sent, True) for sent in report)):
            if one is None:
                continue
            ours, theirs = (one.tx_ns, one.rx_ns) if outbound else (one.rx_ns, one.tx_ns)
            shown = [receiver.shown.at(ns - receiver.epoch_ns) for ns in ours[1:]]
            # A packet says what to add to its transmit stamps, and how fast that changes to those of reception.
            known = [sender.shown.at(ns - sender.epoch_ns) for ns in theirs[1:]]
            other, bound_ns = [time.fleet_ns for time in known], known[0].bound_ns
            delays = [
                (o - s.fleet_ns if outbound else s.fleet_ns - o) for s, o in zip(shown, other, strict=True)
            ]
            best = int(np.argmin(delays))
            bound = shown[best].bound_ns + bound_ns
            self._check(t_s, receiver, sender.name, delays[best], bound, ours[1 + best], outbound=outbound)

    def _page(self, host: Host, t_s: float) -> FleetTime | None:
        if host.clock is None or host.shown is None:
            return None
        shown = host.shown.at(host.raw_ns(t_s))
        return shown if shown.status in (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER) else None

    def _check(
        self, t_s: float, host: Host, peer: str, owd_ns: int, bound_ns: int, at_ns: int, *, outbound: bool
    ) -> None:
        engine = self._engines[host.name]
        edge, number, now_ns = engine.edges[peer], int(peer[1:]), round(t_s * NS)
        edge.causality.add(int(outbound), True, owd_ns, bound_ns, at_ns)
        engine.causality.received(number, edge.causality, now_ns)
        edge.shift.add(outbound, owd_ns, bound_ns, at_ns, now_ns)
        engine.shift.received(number, edge.shift.shifted, edge.shift.limit_ns, now_ns)
        if engine.causality.own_clock(now_ns):
            engine.causality.clear()
            for other in engine.edges.values():
                other.causality = EdgeCausality()
            host.contradict(t_s)
        if t_s - engine.doubted_s >= _DOUBT_S and engine.shift.own_clock(now_ns):
            engine.doubted_s = t_s
