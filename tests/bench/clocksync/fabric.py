"""A Clos fabric of any size, for many edges at once: links with queues, routes over them, crystals, and probes.

Three tiers: hosts to leaves, leaves to the spines of their pod, spines to cores. Each direction of each link has a
load, a rate and a queue of its own, which all edges over it share: what delays one edge of a host delays its others
too. A flow takes one spine and one core, by its hash, and the way back takes others, so that the two ways differ in
load and in length.

A queue is that of simulator.py, event by event, computed once for each load and some seeds, and played on a link
from a moment of its own and over and over: its bursts are Poisson and of the same sizes in bytes on every link, so that
a link of another rate plays it faster or slower. Where it ends it begins anew with the work that is left.

Looking up a wait: a table says for each moment of the trace which burst was the last before it, and the few that may
have come since are walked through. That is exact, and 17 times faster than a binary search in 7 million bursts, which
misses the cache at every step (28 and 486 ns).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray
from tests.bench.clocksync.simulator import Queue

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Hosts = NDArray[np.int64]  # numbers of hosts

NO_LINK = -1
# Of what crosses a link, drawn for each; at its rate. Mean 37 %.
LOADS = (0.0, 0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9)
HOST_GBIT_S = (25.0, 100.0, 200.0, 400.0)
FABRIC_GBIT_S = 400.0
_HOSTS_A_LEAF, _LEAVES_A_POD, _SPINES_A_POD, _CORES_A_SPINE = 32, 32, 16, 16
# Metres of cable: to a leaf, a spine, a core. 5 ns/m; so the two ways of an edge differ by at most 200 ns, which is
# what the estimator allows for (asymmetry_ns: half of it).
_CABLE_M = ((2.0, 2.0), (10.0, 20.0), (20.0, 30.0))
_NS_A_METRE, _SWITCH_NS, _STACK_NS = 5.0, 350.0, 700.0
_TRACE_GBIT_S, _TRACE_NS = 100.0, 0.25e9
_TRACES_A_LOAD = 4
# Of the lookup table: about one burst each at the highest load.
_SLOTS = 2**19
_TRAIN, _SPACING_NS = 3, 20_000.0


class Traces:
    """Unfinished work over time, of `_TRACES_A_LOAD` queues for each load of LOADS, behind each other."""

    def __init__(self, seed: int) -> None:
        times, works = [], []
        rng = np.random.default_rng([seed, 0])
        self.loads = sorted(set(LOADS))
        self.count = len(self.loads) * _TRACES_A_LOAD
        for number in range(self.count):
            load = self.loads[number // _TRACES_A_LOAD]
            queue = Queue(rng, _TRACE_NS * 1e-9, load, gbit_s=_TRACE_GBIT_S)
            time, work = queue.trace()
            times.append(time + number * _TRACE_NS)
            works.append(work)
        # A last entry that is never reached ends the walk.
        self._time = np.concatenate([*times, [np.inf]])
        self._work = np.concatenate([*works, [0.0]])
        self._per_ns = _SLOTS / _TRACE_NS
        begins = np.arange(self.count * _SLOTS) / self._per_ns
        self._last = (np.searchsorted(self._time, begins, side="right") - 1).astype(np.int32)

    def work_ns(self, trace: NDArray[np.int64], t_ns: Floats) -> Floats:
        """Of `trace` at its own time `t_ns`, which repeats: ns at the rate of the traces. Both of one shape."""
        # So far from the end that no rounding gives the end itself, which is the begin of the next trace.
        t = np.minimum(np.mod(t_ns, _TRACE_NS), _TRACE_NS - 1e-5) + trace * _TRACE_NS
        flat = t.ravel()
        index = self._last.take((flat * self._per_ns).astype(np.int32))
        # The product may round up to the slot behind.
        index -= self._time.take(index) > flat
        behind = np.flatnonzero(self._time.take(index + 1) <= flat)
        while len(behind):
            index[behind] += 1
            behind = behind[self._time.take(index[behind] + 1) <= flat[behind]]
        work: Floats = np.maximum(self._work.take(index) - (flat - self._time.take(index)), 0.0)
        return work.reshape(t.shape)


@lru_cache(maxsize=1)
def traces_of(seed: int) -> Traces:
    """They take 2 s to make and nothing changes them, so fabrics of one seed share them."""
    return Traces(seed)


class Crystals:
    """The clocks of all hosts: offset, rate, and a rate that wanders as a random walk; as Clock, for many at once.

    Good for true times from 0 to `seconds`. offset_ns : what each shows at true time 0. Memory is 8 bytes a host and
    `grid_s`.
    """

    def __init__(
        self, seed: int, n: int, seconds: float, *, wander_ppb: float = 2.0, grid_s: float = 0.1
    ) -> None:
        """wander_ppb : standard deviation of the change of rate over 1 s."""
        rng = np.random.default_rng([seed, 1])
        self._columns = int(seconds / grid_s) + 3
        self._grid_ns = grid_s * 1e9
        self.offset_ns = 1_700_000_000 * 10**9 + rng.integers(-5 * 10**9, 5 * 10**9, n)
        rate = rng.normal(0, wander_ppb * np.sqrt(grid_s), (n, self._columns))
        np.cumsum(rate, axis=1, out=rate)
        rate += rng.uniform(-50_000, 50_000, n)[:, None]
        gained = np.zeros_like(rate)
        np.cumsum(rate[:, :-1] * grid_s, axis=1, out=gained[:, 1:])
        self._gained = gained.ravel()

    def at(self, hosts: Hosts, t_ns: Floats) -> Ints:
        """What the clocks of `hosts` show at true times `t_ns`; shapes as numpy broadcasts them."""
        place = t_ns / self._grid_ns
        column = place.astype(np.int64)
        index = hosts * self._columns + column
        left = self._gained.take(index)
        gained = left + (place - column) * (self._gained.take(index + 1) - left)
        return self.offset_ns[hosts] + np.rint(t_ns + gained).astype(np.int64)

    def when(self, hosts: Hosts, shown_ns: Ints) -> Floats:
        """The true time at which the clocks of `hosts` show `shown_ns`, ns."""
        t = (shown_ns - self.offset_ns[hosts]).astype(np.float64)
        for _ in range(3):
            t -= (self.at(hosts, t) - shown_ns).astype(np.float64)
        return t


@dataclass(frozen=True)
class Routes:
    """One way of many edges. links : (edges, hops), NO_LINK where a way is shorter. base_ns : without any queue."""

    links: NDArray[np.int64]
    base_ns: Floats

    def __getitem__(self, edges: slice) -> Self:
        return type(self)(self.links[edges], self.base_ns[edges])


class Clos:
    """The links of a fabric of `n` hosts, drawn by `seed`."""

    def __init__(self, seed: int, n: int) -> None:
        rng = np.random.default_rng([seed, 2])
        self.n = n
        self.traces = traces_of(seed)
        leaves = -(-n // _HOSTS_A_LEAF)
        spines = -(-leaves // _LEAVES_A_POD) * _SPINES_A_POD
        # Of each tier first all links up, then all links down.
        counts = (n, leaves * _SPINES_A_POD, spines * _CORES_A_SPINE)
        self._first = np.concatenate([[0], np.cumsum(2 * np.array(counts))])
        host_rate = rng.choice(HOST_GBIT_S, n)
        fabric = np.full(int(self._first[-1]) - 2 * n, FABRIC_GBIT_S)
        self.gbit_s = np.concatenate([host_rate, host_rate, fabric])
        self._metres = np.concatenate(
            [rng.uniform(*_CABLE_M[tier], 2 * count) for tier, count in enumerate(counts)]
        )
        self._counts = counts
        links = int(self._first[-1])
        weights = np.array([LOADS.count(load) for load in self.traces.loads], np.float64)
        loads = rng.choice(len(self.traces.loads), links, p=weights / weights.sum())
        self._trace = loads * _TRACES_A_LOAD + rng.integers(0, _TRACES_A_LOAD, links)
        self.load = np.array(self.traces.loads)[loads]
        self._phase = rng.uniform(0, _TRACE_NS, links)
        # How much slower than the trace the link drains.
        self._stretch = _TRACE_GBIT_S / self.gbit_s

    def routes(self, rng: np.random.Generator, sender: Hosts, receiver: Hosts) -> Routes:
        """One way of each edge, its spine and core drawn as a hash of the flow would."""
        leaf, other = sender // _HOSTS_A_LEAF, receiver // _HOSTS_A_LEAF
        pod, far = leaf // _LEAVES_A_POD, other // _LEAVES_A_POD
        spine = rng.integers(0, _SPINES_A_POD, len(sender))
        core = rng.integers(0, _CORES_A_SPINE, len(sender))

        def link(tier: int, number: NDArray[np.int64], down: bool, used: NDArray[np.bool_]) -> Ints:
            return np.where(used, self._first[tier] + self._counts[tier] * down + number, NO_LINK)

        always = np.ones(len(sender), np.bool_)
        leaves, pods = leaf != other, pod != far
        links = np.stack(
            [
                link(0, sender, False, always),
                link(1, leaf * _SPINES_A_POD + spine, False, leaves),
                link(2, (pod * _SPINES_A_POD + spine) * _CORES_A_SPINE + core, False, pods),
                link(2, (far * _SPINES_A_POD + spine) * _CORES_A_SPINE + core, True, pods),
                link(1, other * _SPINES_A_POD + spine, True, leaves),
                link(0, receiver, True, always),
            ],
            axis=1,
        )
        used = links != NO_LINK
        cables = np.where(used, self._metres[links], 0.0).sum(axis=1) * _NS_A_METRE
        return Routes(links, _STACK_NS + cables + _SWITCH_NS * (used.sum(axis=1) - 1))

    def arrival_ns(self, routes: Routes, t_ns: Floats) -> Floats:
        """When packets that are sent at true time `t_ns`, (edges, ...), arrive: after all queues of their route."""
        t = t_ns.copy()
        axes = (slice(None),) + (None,) * (t.ndim - 1)
        for hop in routes.links.T:
            # A link without load has no queue.
            waits = np.flatnonzero((hop != NO_LINK) & (self.load[hop] > 0))
            link = hop[waits]
            stretch = self._stretch[link][axes]
            there = t[waits] / stretch + self._phase[link][axes]
            trace = np.broadcast_to(self._trace[link][axes], there.shape)
            t[waits] += self.traces.work_ns(trace, there) * stretch
        return t + routes.base_ns[axes]


def probe(
    rng: np.random.Generator, clos: Clos, routes: Routes, begin_s: float, end_s: float, rate: float,
    *, noise_ns: float = 10.0, cold_ns: float = 4_000.0,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Trains in [begin, end) on each route, `rate` a second: true ns of all stamps, (edges, trains, 3), (tx, rx).

    noise_ns : how late stamps of the kernel are. cold_ns : what the first packet of a train pays for cold caches.
    """
    count = max(1, round((end_s - begin_s) * rate))
    start = begin_s + (np.arange(count) + rng.uniform(0, 0.6, (len(routes.base_ns), count))) / rate
    tx = start[:, :, None] * 1e9 + np.arange(_TRAIN) * _SPACING_NS
    rx = clos.arrival_ns(routes, tx)
    rx += np.abs(rng.normal(0, noise_ns, rx.shape))
    rx[:, :, 0] += rng.exponential(cold_ns, rx.shape[:2])
    return tx, rx
