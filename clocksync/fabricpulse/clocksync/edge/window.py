"""The trains of one edge that are recent enough to fit, and what breaks the line through them.

A window is a few seconds of trains of both directions. It is cut short when the past no longer says anything
about the present: the host clock of one end was stepped, or the engine of one end started anew with another
clock.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync._edge_fit import STEP_TRAINS, Trains
from fabricpulse.clocksync.edge.estimator import EdgeFit, EstimatorParameters, Quality
from fabricpulse.clocksync.edge.filter import EdgeFilter
from fabricpulse.clocksync.edge.fit import fit_edge
from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE, Samples
from fabricpulse.core.shm.probe_ring import INBOUND, OUTBOUND

_NS = 1_000_000_000
_DIRECTIONS = (OUTBOUND, INBOUND)
# A floor of the round trip that moved by this share, and at least this much, is another route.
ROUTE_SHARE, ROUTE_NS = 0.15, 500.0
ROUTE_TRAINS = 20
# A round that comes later after the one before than this share of the window.
MISSED = 0.3
# After an edge was silent for longer no earlier packet counts: clocks may have changed their rates then by more than
# drift_ppb, and a line that begins with the old rate is wrong by some ppm until the second round.
_SILENT_NS = 2 * _NS
# What an edge that the other end fits has measured is taken up once in so many rounds, and when it is needed here.
_IDLE_ROUNDS = 4
# A window that is cut shorter after a frequency step is none.
SHORTEST_NS = 100_000_000


@dataclass
class EdgeWindow:
    """Collects the trains of one edge. steps, route_changes, frequency_steps : counted since the start."""

    parameters: EstimatorParameters
    window_ns: int = 4 * _NS
    fit: EdgeFit | None = None
    steps: int = 0
    route_changes: int = 0
    frequency_steps: int = 0
    filter: EdgeFilter = field(init=False)
    # What has come since the last round, as bytes, and what was there then, in the order of time.
    _new: list[NDArray[np.uint8]] = field(default_factory=list)
    _kept: dict[int, Trains] = field(default_factory=lambda: dict.fromkeys(_DIRECTIONS, Trains()))
    _not_before_ns: int = 0
    # Those of `fit`, outbound and inbound.
    _fitted: tuple[Trains, Trains] = field(default_factory=lambda: (Trains(), Trains()))
    _broken: list[int] = field(default_factory=list)  # trains that are left out, by our host time

    def __post_init__(self) -> None:
        self.filter = EdgeFilter(self.parameters)

    def add(self, samples: Samples) -> None:
        """Takes samples of this edge, of both directions in any order."""
        # numpy packs records that it has concatenated.
        self._new.append(np.ascontiguousarray(samples.astype(SAMPLE_DTYPE, copy=False)).view(np.uint8))

    def clear(self) -> None:
        """Forgets all trains and the slope: this host's clock has changed."""
        self._new.clear()
        self._kept = dict.fromkeys(_DIRECTIONS, Trains())
        self._broken.clear()
        self.fit = None
        self.filter.clear(changed=True)

    def idle(self, now_ns: int) -> None:
        """Keeps the trains of the window that ends at our host time `now_ns`, and older ones of some rounds, without a
        fit: the other end fits.
        """
        if len(self._new) >= _IDLE_ROUNDS:
            self._keep(now_ns)
        if self.fit is not None:
            self.fit = None
            self.filter.clear(changed=False)

    def advance(self, now_ns: int) -> EdgeFit | None:
        """Fits the trains of the window that ends at our host time `now_ns`; None when there is nothing to say."""
        begin = self._keep(now_ns)
        outbound, inbound = (self._trains(direction, begin, now_ns) for direction in _DIRECTIONS)
        if self.fit is not None:
            early = [trains.early(sign, self.fit) for trains, sign in ((outbound, 1), (inbound, -1))]
            cut = _step_time(early)
            if cut is not None:
                self.steps += 1
                self._cut(cut)
                outbound, inbound = outbound.after(cut), inbound.after(cut)
            elif early[0][0] or early[1][0]:
                self._broken += [*early[0][0], *early[1][0]]
                outbound, inbound = outbound.without(early[0][0]), inbound.without(early[1][0])
        if len(outbound) and len(inbound) and self.filter.windows:
            begun_ns = max(outbound.begin_ns, inbound.begin_ns)
            if begun_ns - self.filter.t_ns > _SILENT_NS:
                self.filter.clear(changed=False)
        fit = fit_edge(outbound, inbound, self.parameters, self.filter.prior(now_ns))
        if fit is not None:
            cut = self._route_time(outbound, inbound, fit)
            if cut is not None:
                self.route_changes += 1
                self._cut(cut)
                outbound, inbound = outbound.after(cut), inbound.after(cut)
                fit = fit_edge(outbound, inbound, self.parameters)
        if fit is not None and _bent(outbound, inbound, fit, self.parameters):
            self.frequency_steps += 1
            fit = self._after_frequency_step(outbound, inbound, fit)
        if fit is None:
            self.fit = None
        elif self.fit is None or fit.t_last_ns > self.fit.t_last_ns:
            self.fit = self.filter.update(fit)
            since = self._not_before_ns
            self._fitted = outbound.after(since), inbound.after(since)
        return self.fit

    def _after_frequency_step(self, outbound: Trains, inbound: Trains, fit: EdgeFit) -> EdgeFit | None:
        """Cuts the window after the frequency step, and fits what is left; None while that is too little."""
        first = min(outbound.begin_ns, inbound.begin_ns)
        length = fit.t_last_ns - first
        while length > SHORTEST_NS:
            length //= 2
            begin = fit.t_last_ns - length
            straight = fit_edge(outbound.after(begin), inbound.after(begin), self.parameters)
            if straight is None:
                break
            if straight.above_ns + straight.below_ns >= 0:
                # Half of what looks straight: a step near its beginning does not show.
                begin += length // 2
                self._cut(begin)
                return fit_edge(outbound.after(begin), inbound.after(begin), self.parameters)
        self._cut(fit.t_last_ns)
        return None

    def _cut(self, at_ns: int) -> None:
        self._not_before_ns = at_ns
        self._broken.clear()
        self.fit = None
        self.filter.clear(changed=True)

    def _keep(self, now_ns: int) -> int:
        """Takes up what is new, and drops what is older than the window that ends at `now_ns`; when that begins."""
        begin = max(now_ns - self.window_ns, self._not_before_ns)
        for direction, kept in self._kept.items():
            self._kept[direction] = (kept.joined(self._new, direction) if self._new else kept).after(begin)
        self._new.clear()
        return begin

    def _trains(self, direction: int, begin_ns: int, end_ns: int) -> Trains:
        """Trains of the window in the order of time."""
        kept = self._kept[direction]
        trains = kept.part(0, kept.find(end_ns + _NS + 1))
        if self._broken:
            self._broken = [at for at in self._broken if at >= begin_ns]
            trains = trains.without(self._broken)
        return trains

    def _route_time(self, outbound: Trains, inbound: Trains, fit: EdgeFit) -> int | None:
        """The middle of the window when by then the fastest way has become longer; None if it has not.

        Known by the later half of the window: no packet is as fast as two fifths of the earlier half were. That
        shows for little more than a round; after a missed round the window of the last fit is compared instead. Where
        the other direction seems faster, it is the rate that changes. A way that became shorter needs no cut: its
        packets are the fastest from then on.
        """
        if fit.quality != Quality.FILTERED or fit.window_s < 1.0:
            return None
        missed = self.fit is not None and fit.t_last_ns - self.fit.t_last_ns > MISSED * self.window_ns
        base = self.fit if missed and self.fit is not None else fit
        floors = []
        for trains, sign, last in zip((outbound, inbound), (1, -1), self._fitted, strict=True):
            half = trains.find(fit.t_ns)
            if len(trains) - half < ROUTE_TRAINS or (half < ROUTE_TRAINS and not missed):
                return None
            before = last if missed else trains.part(0, half)
            floors.append((before.floor(sign, base), trains.part(half, len(trains)).floor(sign, base)))
        moved = max(ROUTE_NS, ROUTE_SHARE * 2 * max(fit.half_gap_ns, 0.0))
        rise, other = sorted(((new[0] - old[0]) for old, new in floors), reverse=True)
        if other < -rise / 4:
            return None
        return fit.t_ns if any(new[0] - old[1] + min(other, 0.0) > moved for old, new in floors) else None


def _bent(outbound: Trains, inbound: Trains, fit: EdgeFit, parameters: EstimatorParameters) -> bool:
    """True if no line can lie between the packets of both directions: one of the clocks has changed its rate.

    The last packets then contradict what the first ones allow, also without the few trains that do so most: those may
    be broken stamps.
    """
    if fit.above_ns + fit.below_ns >= 0:
        return False
    rest = [
        trains.without_fastest(STEP_TRAINS - 1, sign, fit) for trains, sign in ((outbound, 1), (inbound, -1))
    ]
    straight = fit_edge(rest[0], rest[1], parameters)
    return straight is not None and straight.above_ns + straight.below_ns < 0


def _step_time(early: list[tuple[list[int], int]]) -> int | None:
    """When trains began to be early, which are as many as a step makes; None if they are not."""
    for times, fresh in early:
        if fresh and len(times) >= min(STEP_TRAINS, fresh):
            return times[0]
    return None
