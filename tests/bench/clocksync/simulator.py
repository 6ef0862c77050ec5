"""A simulated fabric for clocksync: drifting clocks, queues of a Clos network, trains of three packets.

The queue of a link is simulated event by event: bursts arrive as a Poisson process, their sizes follow a bounded Pareto
distribution, the link drains at its rate (Lindley's recursion). A probe waits for what is in front of it at each hop.
The bytes of the probes themselves are left out: 64-byte packets at 50 trains a second are 0.0001 % of such a link.

Truth is known exactly: `Clock.at` maps true time to what a host's clock shows. Everything is seeded.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync._edge_fit import Trains

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_GRID_S = 0.01


@lru_cache
def _grid(steps: int, grid_s: float) -> Floats:
    """One for all clocks of a fleet."""
    grid: Floats = np.arange(steps, dtype=np.float64) * grid_s
    return grid


class Clock:
    """What a host's crystal shows: offset, rate, and a rate that wanders as a random walk.

    wander_ppb : standard deviation of the change of rate over 1 s. grid_s : how often the rate changes; memory is 16
    bytes each.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        seconds: float,
        *,
        offset_ns: int,
        rate_ppb: float,
        wander_ppb: float = 2.0,
        grid_s: float = _GRID_S,
    ) -> None:
        steps = int(seconds / grid_s) + 2
        walk = np.cumsum(rng.normal(0, wander_ppb * np.sqrt(grid_s), steps))
        self.offset_ns = offset_ns
        self._rate = rate_ppb + walk
        self._grid_s, self._grid = grid_s, _grid(steps, grid_s)
        self._gained = self._integral()
        self.steps: list[tuple[float, int]] = []

    def _integral(self) -> Floats:
        return np.concatenate([[0.0], np.cumsum(self._rate[:-1]) * self._grid_s])

    def change_rate(self, at_s: float, by_ppb: float) -> None:
        """The rate changes at once at true time `at_s`."""
        self._rate = self._rate + by_ppb * (self._grid >= at_s)
        self._gained = self._integral()

    def error_ns(self, t_s: Floats) -> Floats:
        """Clock minus true time, without the constant offset, ns."""
        error: Floats = np.interp(t_s, self._grid, self._gained)
        return error

    def stepped_ns(self, t_s: float) -> int:
        """How far CLOCK_REALTIME has been stepped; the stamp clock is not."""
        return sum(by for at, by in self.steps if t_s >= at)

    def rate_ppb(self, t_s: float) -> float:
        """Clock rate minus true rate."""
        return float(np.interp(t_s, self._grid, self._rate))

    def at(self, t_s: Floats) -> Ints:
        """What the clock shows at true time t, int64 ns."""
        return self.offset_ns + np.rint(t_s * 1e9 + self.error_ns(t_s)).astype(np.int64)


class Queue:
    """The unfinished work of one link direction over time; what is left at the end is there at the begin, so that the
    trace can be repeated without an end.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        seconds: float,
        load: float,
        *,
        gbit_s: float = 100.0,
        alpha: float = 1.3,
    ) -> None:
        """load : share of the link's rate that cross traffic takes, 0 to 0.95."""
        self.seconds = seconds
        self.byte_ns = 8.0 / gbit_s
        low, high = 1_500.0, 256_000.0
        if load <= 0:
            self._t, self._work = np.zeros(1), np.zeros(1)
            return
        ratio = (low / high) ** alpha
        mean = alpha * low / (alpha - 1) * (1 - (low / high) ** (alpha - 1)) / (1 - ratio)
        count = rng.poisson(seconds * load / (mean * self.byte_ns * 1e-9))
        arrival = np.sort(rng.uniform(0, seconds * 1e9, count))
        size = low * (1 - rng.random(count) * (1 - ratio)) ** (-1 / alpha)
        # Work after each arrival: W_n = max(W_{n-1} - gap, 0) + s_n, in closed form by a running maximum.
        service = size * self.byte_ns
        done = np.cumsum(service)
        idle = np.maximum.accumulate(arrival - (done - service))
        left = max(float(done[-1] + idle[-1]) - seconds * 1e9, 0.0) if count else 0.0
        work = done + np.maximum(idle, left) - arrival
        self._t = np.concatenate([[0.0], arrival])
        self._work = np.concatenate([[left], work])

    def trace(self) -> tuple[Floats, Floats]:
        """When bursts arrive, and the unfinished work just after each, ns; the first entry is the begin, at 0."""
        return self._t, self._work

    def wait_ns(self, t_ns: Floats) -> Floats:
        """How long a packet that arrives at `t_ns` waits; the trace is repeated when time runs past its end."""
        t = np.mod(t_ns, self.seconds * 1e9)
        index = np.searchsorted(self._t, t, side="right") - 1
        wait: Floats = np.maximum(self._work[index] - (t - self._t[index]), 0.0)
        return wait


@dataclass
class Path:
    """One direction of an edge: the queues that its packets meet and the time that light and switches take."""

    queues: list[tuple[Queue, float]]  # with the phase of the trace, ns
    base_ns: float = 1_500.0
    noise_ns: float = 8.0
    cold_ns: float = 4_000.0
    late_stamp: float = 0.0  # share of TX stamps that are late by up to late_ns
    late_ns: float = 100.0

    def trains(
        self, rng: np.random.Generator, start_s: Floats, spacing_ns: float = 20_000.0
    ) -> tuple[Floats, Floats, Floats]:
        """(tx, rx, tx stamp delay) in true ns, (n, 3) each."""
        tx = start_s[:, None] * 1e9 + np.arange(3) * spacing_ns
        t = tx + self.base_ns / 2
        for queue, phase in self.queues:
            t = t + queue.wait_ns(t + phase)
            # FIFO: a packet leaves after the one before it, 64 bytes later.
            t = np.maximum.accumulate(t + np.arange(3) * 0.0, axis=1)
        rx = t + self.base_ns / 2
        # Kernel stamps: a receive stamp is a little late; the first packet of a train pays for cold caches.
        rx = rx + np.abs(rng.normal(0, self.noise_ns, rx.shape))
        rx[:, 0] += rng.exponential(self.cold_ns, len(rx)) if self.cold_ns else 0.0
        late = np.where(rng.random(tx.shape) < self.late_stamp, rng.uniform(0, self.late_ns, tx.shape), 0.0)
        return tx, rx, late


@dataclass
class Edge:
    """Both directions between two clocks."""

    a: Clock
    b: Clock
    forward: Path
    backward: Path
    rate: float = 50.0
    loss: float = 0.0
    lies: dict[str, Floats] = field(default_factory=dict)

    def window(self, rng: np.random.Generator, begin_s: float, end_s: float) -> tuple[Trains, Trains]:
        """Trains that were sent in [begin, end): outbound (a to b) and inbound, as host a sees them."""
        result = []
        for path, sender, receiver, own_tx in (
            (self.forward, self.a, self.b, True),
            (self.backward, self.b, self.a, False),
        ):
            count = max(1, round((end_s - begin_s) * self.rate))
            starts = begin_s + (np.arange(count) + rng.uniform(0, 0.6, count)) / self.rate
            tx, rx, late = path.trains(rng, starts)
            tx_ns, rx_ns = sender.at((tx + late) * 1e-9), receiver.at(rx * 1e-9)
            valid = rng.random(tx.shape) >= self.loss
            keep = valid.any(axis=1)
            own = (tx_ns if own_tx else rx_ns)[:, 0]
            result.append(Trains(own[keep], tx_ns[keep], rx_ns[keep], valid[keep]))
        return result[0], result[1]

    def truth_ns(self, t_host_a: int, t_guess_s: float) -> float:
        """Clock b minus clock a when clock a showed `t_host_a`; t_guess_s : true time to within a second."""
        t = t_guess_s
        for _ in range(4):
            t -= float(self.a.at(np.array([t]))[0] - t_host_a) * 1e-9
        return float(self.b.at(np.array([t]))[0] - self.a.at(np.array([t]))[0])


def loaded_path(
    rng: np.random.Generator, load: float, library: dict[float, list[Queue]], *, hops: int = 2, seconds: float = 1.0,
    gbit_s: float = 100.0, base_ns: float = 1_500.0, noise_ns: float = 8.0, late_stamp: float = 0.0,
) -> Path:  # fmt: skip
    """A path through `hops` queues of one load; traces come from `library`, which is filled as needed."""
    traces = library.setdefault(load, [])
    if not traces:
        traces.extend(Queue(rng, seconds, load, gbit_s=gbit_s) for _ in range(8 if load else 1))
    queues = [
        (traces[int(rng.integers(len(traces)))], float(rng.uniform(0, seconds * 1e9))) for _ in range(hops)
    ]
    return Path(queues, base_ns=base_ns, noise_ns=noise_ns, late_stamp=late_stamp)
