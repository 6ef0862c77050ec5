"""A fleet in virtual time whose edges are watched for causality: its clocks, its queues and the truth about both.

Every host sends trains to every other one on each rail. A train waits in the queue of the sender's NIC and in that of
the receiver's port: the random one of a load, and a standing one that fills, stays and drains. Both ends judge it as
`ReceivePath` does: the receiver at once, the sender an interval later. A host whose clock is contradicted is given up
for 7 s and then set right, as its sidecar does.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fabricpulse.core.shm.probe_ring import INBOUND, OUTBOUND
from fabricpulse.mesh._probe_engine import EdgeCausality, HiddenJump, HostCausality

S = 10**9
Times = NDArray[np.float64]  # s
Delays = NDArray[np.float64]  # ns

# Between two answers of the engine on what is hidden, with the time until the page says so.
HIDDEN_S = 0.1
DISRUPTED_S = 7.0


def no_wait(times: Times) -> Delays:
    """A queue that is always empty."""
    return np.zeros(len(times))


@dataclass
class Queue:
    """Of one NIC and direction. load : share of the time that it is not empty, without what stands in it; service_ns :
    of one packet. standing : what all packets wait for, by time.
    """

    load: float = 0.0
    service_ns: float = 1_200.0
    standing: Callable[[Times], Delays] = no_wait

    def wait(self, rng: np.random.Generator, times: Times) -> Delays:
        """What packets of these times wait for, ns."""
        busy = rng.random(len(times)) < self.load
        mean_ns = self.service_ns / max(1 - self.load, 0.1)
        return busy * rng.exponential(mean_ns, len(times)) + self.standing(times)


def standing_queue(
    rng: np.random.Generator, begin_s: float, end_s: float, level_ns: float, swing: float
) -> Callable[[Times], Delays]:
    """A queue that is not empty from begin_s to end_s: it fills and drains within 0.2 s, and swings below its level."""

    def standing(times: Times) -> Delays:
        inside = np.clip(np.minimum(times - begin_s, end_s - times) / 0.2, 0.0, 1.0)
        return level_ns * inside * (1 - swing * rng.random(len(times)))

    return standing


@dataclass
class WatchedHost:
    """One host. error_ns : fleet time as it has it minus the truth. disrupted_s : until then its page is given up."""

    bound_ns: int
    causality: HostCausality = field(default_factory=HostCausality)
    hidden: HiddenJump = field(default_factory=HiddenJump)
    edges: dict[tuple[int, int], EdgeCausality] = field(default_factory=dict)
    error_ns: float = 0.0
    hidden_ns: int = 0
    disrupted_s: float = -1.0
    contradicted_s: list[float] = field(default_factory=list)

    @property
    def shown_ns(self) -> int:
        """The bound that its page says."""
        return self.bound_ns + self.hidden_ns


class CongestedFleet:
    """wrong : (s, host, error, bound) of each moment at which a page was wrong by more than its bound."""

    def __init__(self, rng: np.random.Generator, hosts: int, rails: int, interval_s: float) -> None:
        self.rng, self.rails, self.interval_s = rng, rails, interval_s
        self.hosts = [WatchedHost(int(rng.integers(1_000, 2_400))) for _ in range(hosts)]
        self.inbound = {(h, r): Queue() for h in range(hosts) for r in range(rails)}
        self.outbound = {(h, r): Queue() for h in range(hosts) for r in range(rails)}
        self.wrong: list[tuple[float, int, float, int]] = []
        for i, host in enumerate(self.hosts):
            host.edges = {(j, r): EdgeCausality() for j in range(hosts) for r in range(rails) if j != i}

    def run(self, until_s: float, jumps: dict[float, dict[int, float]], grace_s: float) -> None:
        """Plays until then. jumps : by time, by how much clocks of hosts jump. grace_s : how long a page may be wrong
        after a jump.
        """
        events = self._trains(until_s)
        events += [(s, 2, -1, -1, -1, 0.0) for s in np.arange(0.0, until_s, HIDDEN_S)]
        events += [(s, 3, -1, -1, -1, 0.0) for s in jumps]
        events.sort()
        jumped_s = -1e9
        late: list[tuple[float, int, int, int, float]] = []
        for now_s, kind, i, j, rail, delay_ns in events:
            while late and late[0][0] <= now_s:
                at_s, a, b, r, owd_ns = late.pop(0)
                self._judge(a, b, r, OUTBOUND, owd_ns, at_s - self.interval_s, at_s)
            if kind == 3:
                jumped_s = now_s
                for host, by_ns in jumps[now_s].items():
                    self.hosts[host].error_ns += by_ns
            elif kind == 2:
                self._look(now_s, judge=now_s - jumped_s > grace_s)
            else:
                owd_ns = delay_ns + self.hosts[j].error_ns - self.hosts[i].error_ns
                self._judge(j, i, rail, INBOUND, owd_ns, now_s, now_s)
                late.append((now_s + self.interval_s, i, j, rail, owd_ns))

    def _trains(self, until_s: float) -> list[tuple[float, int, int, int, int, float]]:
        """(received at s, 0, from, to, rail, delay)."""
        rng, events = self.rng, []
        hosts = range(len(self.hosts))
        for i, j, rail in [(i, j, r) for i in hosts for j in hosts for r in range(self.rails) if i != j]:
            sent = np.arange(rng.random() * self.interval_s, until_s, self.interval_s)
            sent = sent + rng.random(len(sent)) * self.interval_s / 10
            delay = rng.uniform(1_500, 30_000) + rng.exponential(60, len(sent))
            delay += self.outbound[i, rail].wait(rng, sent) + self.inbound[j, rail].wait(rng, sent)
            # Now and then a host is late to stamp.
            delay += (rng.random(len(sent)) < 0.01) * rng.exponential(30_000, len(sent))
            received = np.maximum.accumulate(sent + delay * 1e-9)
            events += [(s, 0, i, j, rail, d) for s, d in zip(received.tolist(), delay.tolist(), strict=True)]
        return events

    def _judge(
        self, own: int, peer: int, rail: int, direction: int, owd_ns: float, at_s: float, now_s: float
    ) -> None:
        host, other = self.hosts[own], self.hosts[peer]
        if now_s < host.disrupted_s or now_s < other.disrupted_s:
            return
        edge = host.edges[peer, rail]
        own_ns = round(at_s * S) if direction == INBOUND else round(at_s * S) - max(round(owd_ns), 0)
        edge.add(direction, True, round(owd_ns), host.shown_ns + other.shown_ns, own_ns)
        host.causality.received(peer, edge, round(now_s * S))
        if host.causality.own_clock(round(now_s * S)):
            host.contradicted_s.append(now_s)
            host.disrupted_s = now_s + DISRUPTED_S
            host.causality.clear()
            host.edges = {key: EdgeCausality() for key in host.edges}
            host.hidden_ns = 0
            host.error_ns = 0.0

    def _look(self, now_s: float, *, judge: bool) -> None:
        for number, host in enumerate(self.hosts):
            host.hidden.begin()
            for (peer, _), edge in host.edges.items():
                host.hidden.edge(peer, edge, round(now_s * S))
            host.hidden_ns = host.hidden.ns()
            if judge and now_s >= host.disrupted_s and abs(host.error_ns) > host.shown_ns:
                self.wrong.append((now_s, number, host.error_ns, host.shown_ns))
