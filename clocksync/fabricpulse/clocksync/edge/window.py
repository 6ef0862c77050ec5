"""The trains of one edge that are recent enough to fit, and what breaks the line through them.

A window is a few seconds of trains of both directions. It is cut short when the past no longer says anything
about the present: the host clock of one end was stepped, or the engine of one end started anew with another
clock.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.edge.estimator import EdgeFit, EstimatorParameters, Quality, Trains, fit_edge
from fabricpulse.clocksync.edge.filter import EdgeFilter
from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE, Samples
from fabricpulse.core.shm.probe_ring import INBOUND, MAIN_PATH, OUTBOUND, RX_HARDWARE, TX_HARDWARE

_NS = 1_000_000_000
_RAW = np.dtype((np.void, SAMPLE_DTYPE.itemsize))
_BITS = np.array([1, 2, 4], np.uint8)
_NO_TRAINS = Trains(
    np.empty(0, np.int64), np.empty((0, 3), np.int64), np.empty((0, 3), np.int64), np.empty((0, 3), np.bool_)
)
# A packet that arrives this much before it can have been sent tells of a stepped clock, or of a machine that was
# paused; one that does so by more than the bound of the fit allows, too, but for what stamps may be late.
STEP_NS, LATE_STAMP_NS = 20_000.0, 1_000.0
# Trains that must tell so: one may be a broken stamp. Fewer are left out: the last two of a short window, from a clock
# that was stepped by 1 ms, would turn its line by hundreds of us.
STEP_TRAINS = 3
# A floor of the round trip that moved by this share, and at least this much, is another route.
ROUTE_SHARE, ROUTE_NS = 0.15, 500.0
ROUTE_TRAINS = 20
# A round that comes later after the one before than this share of the window.
MISSED = 0.3
# After an edge was silent for longer no earlier packet counts: clocks may have changed their rates then by more than
# drift_ppb, and a line that begins with the old rate is wrong by some ppm until the second round.
_SILENT_NS = 2 * _NS
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
    # What has come since the last fit, and what was there then, in the order of time.
    _chunks: dict[int, list[Samples]] = field(default_factory=lambda: {INBOUND: [], OUTBOUND: []})
    _kept: dict[int, Trains] = field(default_factory=lambda: {INBOUND: _NO_TRAINS, OUTBOUND: _NO_TRAINS})
    _not_before_ns: int = 0
    # Those of `fit`, outbound and inbound.
    _fitted: tuple[Trains, Trains] = field(default_factory=lambda: (_NO_TRAINS, _NO_TRAINS))
    _broken: list[int] = field(default_factory=list)  # trains that are left out, by our host time

    def __post_init__(self) -> None:
        self.filter = EdgeFilter(self.parameters)

    def add(self, samples: Samples) -> None:
        """Takes samples of this edge (both directions, any order). Path-sweep trains are other paths: left
        out.
        """
        samples = samples.astype(SAMPLE_DTYPE, copy=False)  # numpy packs records that it has concatenated
        flags = samples["flags"]
        # Stamps of a NIC's own clock are another clock; they would need one more unknown per NIC.
        main = samples[(flags & (MAIN_PATH | TX_HARDWARE | RX_HARDWARE)) == MAIN_PATH]
        for direction in (INBOUND, OUTBOUND):
            part = main[main["direction"] == direction]
            if len(part):
                self._chunks[direction].append(part)

    def clear(self) -> None:
        """Forgets all trains and the slope: this host's clock has changed."""
        for direction, chunks in self._chunks.items():
            chunks.clear()
            self._kept[direction] = _NO_TRAINS
        self._broken.clear()
        self.fit = None
        self.filter.clear()

    def idle(self, now_ns: int) -> None:
        """Keeps the trains of the window that ends at our host time `now_ns`, without a fit: the other end fits."""
        begin = max(now_ns - self.window_ns, self._not_before_ns)
        for direction, chunks in self._chunks.items():  # oldest first
            own = "tx_ns" if direction == OUTBOUND else "rx_ns"
            while chunks and chunks[0][own].max() < begin:
                chunks.pop(0)
            self._kept[direction] = _after(self._kept[direction], begin)
        if self.fit is not None:
            self.fit = None
            self.filter.clear()

    def advance(self, now_ns: int) -> EdgeFit | None:
        """Fits the trains of the window that ends at our host time `now_ns`; None when there is nothing to say."""
        begin = max(now_ns - self.window_ns, self._not_before_ns)
        outbound = self._trains(OUTBOUND, begin, now_ns)
        inbound = self._trains(INBOUND, begin, now_ns)
        if self.fit is not None:
            early = _early(outbound, 1, self.fit), _early(inbound, -1, self.fit)
            cut = self._step_time(outbound, inbound, early, self.fit)
            if cut is not None:
                self.steps += 1
                self._cut(cut)
                outbound, inbound = _after(outbound, cut), _after(inbound, cut)
            elif early[0].any() or early[1].any():
                self._broken += [*outbound.t_ns[early[0]].tolist(), *inbound.t_ns[early[1]].tolist()]
                outbound, inbound = _only(outbound, ~early[0]), _only(inbound, ~early[1])
        if len(outbound) and len(inbound) and self.filter.windows:
            begun_ns = max(int(outbound.t_ns[0]), int(inbound.t_ns[0]))
            if begun_ns - self.filter.t_ns > _SILENT_NS:
                self.filter.clear()
        fit = fit_edge(outbound, inbound, self.parameters, self.filter.prior(now_ns))
        if fit is not None:
            cut = self._route_time(outbound, inbound, fit)
            if cut is not None:
                self.route_changes += 1
                self._cut(cut)
                outbound, inbound = _after(outbound, cut), _after(inbound, cut)
                fit = fit_edge(outbound, inbound, self.parameters)
        if fit is not None and _bent(outbound, inbound, fit, self.parameters):
            self.frequency_steps += 1
            fit = self._after_frequency_step(outbound, inbound, fit)
        if fit is None:
            self.fit = None
        elif self.fit is None or fit.t_last_ns > self.fit.t_last_ns:
            self.fit = self.filter.update(fit)
            since = self._not_before_ns
            self._fitted = _after(outbound, since), _after(inbound, since)
        return self.fit

    def _after_frequency_step(self, outbound: Trains, inbound: Trains, fit: EdgeFit) -> EdgeFit | None:
        """Cuts the window after the frequency step, and fits what is left; None while that is too little."""
        first = int(min(outbound.t_ns[0], inbound.t_ns[0]))
        length = fit.t_last_ns - first
        while length > SHORTEST_NS:
            length //= 2
            begin = fit.t_last_ns - length
            straight = fit_edge(_after(outbound, begin), _after(inbound, begin), self.parameters)
            if straight is None:
                break
            if straight.above_ns + straight.below_ns >= 0:
                # Half of what looks straight: a step near its beginning does not show.
                begin += length // 2
                self._cut(begin)
                return fit_edge(_after(outbound, begin), _after(inbound, begin), self.parameters)
        self._cut(fit.t_last_ns)
        return None

    def _cut(self, at_ns: int) -> None:
        self._not_before_ns = at_ns
        self._broken.clear()
        self.fit = None
        self.filter.clear()

    def _trains(self, direction: int, begin_ns: int, end_ns: int) -> Trains:
        """Trains of the window in the order of time; what is older is dropped for good."""
        kept, chunks = self._kept[direction], self._chunks[direction]
        if chunks:
            # As plain bytes: concatenate would compare the fields of the records, in Python, each time.
            raw = [chunk.view(_RAW) for chunk in chunks]
            new = _decoded(np.concatenate(raw).view(SAMPLE_DTYPE) if len(raw) > 1 else chunks[0], direction)
            chunks.clear()
            kept = _joined(kept, new)
        self._kept[direction] = kept = _after(kept, begin_ns)
        trains = _only(kept, slice(0, int(np.searchsorted(kept.t_ns, end_ns + _NS, side="right"))))
        if self._broken:
            self._broken = [at for at in self._broken if at >= begin_ns]
            trains = _only(trains, ~np.isin(trains.t_ns, self._broken))
        return trains

    def _step_time(
        self, outbound: Trains, inbound: Trains, early: tuple[NDArray[np.bool_], ...], fit: EdgeFit
    ) -> int | None:
        """When trains began to be `early`, which are as many as a step makes; None if they are not."""
        for trains, which in zip((outbound, inbound), early, strict=True):
            fresh = int((trains.t_ns > fit.t_last_ns).sum())
            if fresh and which.sum() >= min(STEP_TRAINS, fresh):
                return int(trains.t_ns[int(which.argmax())])
        return None

    def _route_time(self, outbound: Trains, inbound: Trains, fit: EdgeFit) -> int | None:
        """The middle of the window when by then the fastest way has become longer; None if it has not.

        Told by the later half of the window: no packet is as fast as two fifths of the earlier half were. That
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
            delay = _above_line(trains, sign, base, first=1)
            half = int(np.searchsorted(trains.t_ns, fit.t_ns))
            if len(delay) - half < ROUTE_TRAINS or (half < ROUTE_TRAINS and not missed):
                return None
            before = _above_line(last, sign, base, first=1) if missed else delay[:half]
            floors.append((_floor(before), _floor(delay[half:])))
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
    rest = []
    for trains, sign in ((outbound, 1), (inbound, -1)):
        order = np.argsort(_above_line(trains, sign, fit, first=1), kind="stable")
        keep = np.ones(len(trains), np.bool_)
        keep[order[: STEP_TRAINS - 1]] = False
        rest.append(_only(trains, keep))
    straight = fit_edge(rest[0], rest[1], parameters)
    return straight is not None and straight.above_ns + straight.below_ns < 0


def _above_line(trains: Trains, sign: int, fit: EdgeFit, first: int) -> NDArray[np.float64]:
    """Delay of the fastest packet of each train by the fit, ns; negative means that it arrived before it was
    sent.
    """
    # Subtract in int64: two clocks may be years apart, which float64 resolves to 256 ns only.
    rest = (trains.rx_ns - trains.tx_ns)[:, first:] - sign * fit.offset_ns
    fastest = np.where(trains.valid[:, first:], rest, np.inf).min(axis=1)
    result: NDArray[np.float64] = fastest - sign * fit.rate_ppb * 1e-9 * (trains.t_ns - fit.t_ns)
    return result


def _early(trains: Trains, sign: int, fit: EdgeFit) -> NDArray[np.bool_]:
    """Which trains since `fit` have arrived, by it, before they can have been sent."""
    fresh = trains.t_ns > fit.t_last_ns
    if not fresh.any():
        return fresh
    rest = _above_line(trains, sign, fit, first=0)
    limit_ns = min(STEP_NS, 2 * fit.bound_ns + LATE_STAMP_NS)
    # By so much the fit itself may be wrong: where each packet has waited in a queue, the first one that has not comes
    # early by milliseconds, and no clock has stepped.
    unsure_ppb = max(fit.rate_high_ppb - fit.rate_ppb, fit.rate_ppb - fit.rate_low_ppb, 0.0)
    unsure_ns = fit.bound_ns + LATE_STAMP_NS + unsure_ppb * 1e-9 * (trains.t_ns - fit.t_last_ns)
    early: NDArray[np.bool_] = fresh & (rest < -np.maximum(limit_ns, unsure_ns))
    if limit_ns < STEP_NS and early.any():
        first = int(early.argmax())
        before, after = rest[max(first - 2 * STEP_TRAINS, 0) : first], rest[first : first + STEP_TRAINS]
        # A clock that runs faster comes there train by train: that is no step, until it is as far as one.
        if not len(before) or before.min() - after.min() < 0.9 * limit_ns:
            early &= rest < -STEP_NS
    return early


def _floor(delay: NDArray[np.float64]) -> tuple[float, float]:
    """Of delays by a fit, ns: that of the fastest train, and of the one that two fifths are faster than.

    Less than the median: a way that changed just before the middle of the window then shows in the next one.
    """
    usual = (2 * len(delay) - 2) // 5
    return float(delay.min()), float(np.partition(delay, usual)[usual])


def _decoded(block: Samples, direction: int) -> Trains:
    """In the order of time; trains of which no packet has both stamps are left out."""
    own, own_valid = ("tx_ns", "tx_valid") if direction == OUTBOUND else ("rx_ns", "rx_valid")
    valid = ((block["tx_valid"] & block["rx_valid"])[:, None] & _BITS) != 0
    # The first stamp that is there; the trains are so short that it does not matter which.
    first = ((block[own_valid][:, None] & _BITS) != 0).argmax(axis=1)
    t_ns = block[own][np.arange(len(block)), first]
    order = np.argsort(t_ns, kind="stable")
    order = order[valid.any(axis=1)[order]]
    return Trains(t_ns[order], block["tx_ns"][order], block["rx_ns"][order], valid[order])


def _joined(old: Trains, new: Trains) -> Trains:
    """Both in the order of time."""
    parts = zip(
        (old.t_ns, old.tx_ns, old.rx_ns, old.valid), (new.t_ns, new.tx_ns, new.rx_ns, new.valid), strict=True
    )
    joined = Trains(*(np.concatenate(pair) for pair in parts))
    if len(old) and len(new) and new.t_ns[0] < old.t_ns[-1]:
        joined = _only(joined, np.argsort(joined.t_ns, kind="stable"))
    return joined


def _after(trains: Trains, cut_ns: int) -> Trains:
    return _only(trains, slice(int(np.searchsorted(trains.t_ns, cut_ns)), None))


def _only(trains: Trains, keep: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Trains:
    return Trains(trains.t_ns[keep], trains.tx_ns[keep], trains.rx_ns[keep], trains.valid[keep])
