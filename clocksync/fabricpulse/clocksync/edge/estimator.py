"""What the trains of one edge say about the two clocks: offset, rate, and how wrong that can be.

A minimum filter: of the packets that are new the fast ones each way tell most, seen along the rate that is known
(`floors`), or along the line that separates both directions while no rate is known. The hard bound follows from
causality: no packet arrives before it was sent. What was tried beside it, and lost: docs/decisions/0016.

Pure: no clock is read here, the caller passes trains and gets an `EdgeFit`.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.edge.separating_line import SeparatingLine, feasible_rates, separate

# Of what has come since the last fit, the packets that these shares of it are faster than: the filter knows which of
# them scatters least on this edge.
RANKS = (0.0, 1 / 32, 1 / 16, 1 / 8)
# A rate is off by so many of its standard deviations at most.
RATE_SIGMAS = 6.0

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class EstimatorParameters:
    """How the estimator works; the defaults are what was measured to be good (docs/decisions/0016).

    nu : share of the packets of a first window that may lie on the wrong side of its line. asymmetry_ns : difference
    of the two path lengths, halved, that no measurement can see and that stamps of the kernel may be late. drift_ppb :
    how far the rate may stray from a straight line within a window and the memory before it. wander_ppb : standard
    deviation of the change of rate over 1 s. stamp_noise_ns : what the middle of two packets is worth at best.
    """

    nu: float = 0.02
    fewest_points: int = 4
    asymmetry_ns: float = 100.0
    drift_ppb: float = 250.0
    wander_ppb: float = 6.0
    stamp_noise_ns: float = 15.0


class Quality(enum.IntEnum):
    """What the fit rests on, best first."""

    FILTERED = 0  # this window and those before
    WINDOW = 1  # this window alone: the first one
    MINIMUM = 2  # too few packets for a rate: fastest packet each way, rate of the windows before


@dataclass(frozen=True)
class Trains:
    """Trains of one direction. t_ns : (n,) our host clock. tx_ns, rx_ns : (n, 3). valid : (n, 3) both stamps
    are there.
    """

    t_ns: Ints
    tx_ns: NDArray[np.int64]
    rx_ns: NDArray[np.int64]
    valid: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.t_ns)


class Floor(NamedTuple):
    """A fast packet of each direction: the offset that it says, ns from the fit's base_ns, and when, seconds from
    t_last_ns. upper : to the peer; lower : from it.
    """

    upper_ns: float
    upper_s: float
    lower_ns: float
    lower_s: float


@dataclass(frozen=True)
class Extremes:
    """The fastest packet of each direction in a fit's trains: our host time, and the offset that it says."""

    upper_t_ns: int
    upper_ns: int
    lower_t_ns: int
    lower_ns: int


@dataclass(frozen=True)
class EdgeFit:
    """Peer's host clock minus ours: `offset_ns` at our host time `t_ns`, changing by `rate_ppb`.

    above_ns, below_ns : at t_last_ns the truth was at most so far above, or below, the line, whatever the queues
    did, as long as the clocks did not change their rates by more than drift_ppb. bound_ns : the larger of the two, more
    where the rate is seen to change, plus what stamps can hide. half_gap_ns : half of the round trip on the fastest
    paths seen. sigma_ns, rate_sigma_ppb : expected size of the error, for weights. raw_offset_ns : what this window
    alone says, at t_ns. extremes : for the next windows' limits of the rate. floors, from base_ns : for the filter, one
    for each of RANKS, of what has come since the prior; none without a prior, or where a direction had nothing.
    """

    t_ns: int
    t_last_ns: int
    offset_ns: int
    rate_ppb: float
    half_gap_ns: float
    above_ns: float
    below_ns: float
    rate_low_ppb: float
    rate_high_ppb: float
    bound_ns: float
    sigma_ns: float
    rate_sigma_ppb: float
    trains: int
    window_s: float
    quality: Quality
    raw_offset_ns: int
    extremes: Extremes
    base_ns: int = 0
    floors: tuple[Floor, ...] = ()

    def at(self, t_ns: int) -> int:
        """Offset extrapolated to our host time `t_ns`, ns."""
        # float64 has 256 ns resolution at Unix-epoch magnitudes; keep integers.
        return self.offset_ns + round(self.rate_ppb * 1e-9 * (t_ns - self.t_ns))


@dataclass(frozen=True)
class Prior:
    """What earlier windows know: the likely rate now, how fast it changes (drift_ppb_s) and may change (most_ppb_s),
    and the limits that causality sets it. t_ns : end of the last window.
    extremes : of fits before, oldest first.
    """

    rate_ppb: float
    drift_ppb_s: float
    most_ppb_s: float
    low_ppb: float
    high_ppb: float
    t_ns: int = 0
    extremes: tuple[Extremes, ...] = ()


@dataclass(frozen=True)
class _Cloud:
    """Points of one direction. t : seconds from the reference. y : measured offset minus the base, ns."""

    t: Floats
    y: Floats


def fit_edge(
    outbound: Trains, inbound: Trains, parameters: EstimatorParameters, prior: Prior | None = None
) -> EdgeFit | None:
    """Fits one window. outbound : us -> peer, inbound : peer -> us.

    Returns None while one direction has no packet after the warm-up of its trains, or there are too few of them and
    no prior.
    """
    if not outbound.valid.any() or not inbound.valid.any():
        return None
    first = int(min(outbound.t_ns.min(), inbound.t_ns.min()))
    last = int(max(outbound.t_ns.max(), inbound.t_ns.max()))
    t_ref = first + (last - first) // 2
    base = _base(outbound, inbound)
    upper = _cloud(outbound, t_ref, base, 1)
    lower = _cloud(inbound, t_ref, base, -1)
    window_s, end_s = (last - first) * 1e-9, (last - t_ref) * 1e-9
    few = min(len(upper.y), len(lower.y)) < parameters.fewest_points or window_s < 0.05
    if not len(upper.y) or not len(lower.y) or (few and prior is None):
        return None
    floors: tuple[Floor, ...] = ()
    changed_ppb = 0.0
    if prior is not None:
        whole, floors = _floors(upper, lower, prior, end_s, (last - prior.t_ns) * 1e-9)
        line = _line((whole, *floors[:1]), prior, end_s)
        sigma, rate_sigma = max(line.half_gap_ns / 2, parameters.stamp_noise_ns), np.inf
        quality = Quality.MINIMUM if few else Quality.FILTERED
    if not few and (prior is None or line.half_gap_ns < 0):
        # Nothing is known of the rate, or what is known fits no packets: a clock has changed its rate.
        line = separate(upper.t, upper.y, lower.t, lower.y, parameters.nu)
        sigma = _scatter(upper, lower, line, parameters)
        floors, quality, rate_sigma = (), Quality.WINDOW, np.sqrt(12) * sigma / window_s
        # In a window the rate may have changed by twice what its mean has.
        changed_ppb, prior = (2 * abs(line.rate_ppb - prior.rate_ppb) if prior else 0.0), None
    # Where the rate is seen to drift, a straight line is not what bounds it, and less so with the seconds before.
    stray_ppb = parameters.drift_ppb
    if prior is not None and prior.most_ppb_s * window_s > parameters.drift_ppb / 10:
        stray_ppb += prior.most_ppb_s * window_s
        prior = None
    low, high = _rate_limits(upper, lower, line, t_ref, base, prior)
    above, below = _causal_limits(upper, lower, line, end_s, low, high, stray_ppb)
    most = max(above, below, 0.0)
    if changed_ppb:
        most = max(most, *_causal_limits(upper, lower, line, end_s, low, high, stray_ppb + changed_ppb))
    offset = base + round(line.offset_ns)
    return EdgeFit(
        t_ns=t_ref,
        t_last_ns=last,
        offset_ns=offset,
        rate_ppb=line.rate_ppb,
        half_gap_ns=line.half_gap_ns,
        above_ns=above,
        below_ns=below,
        rate_low_ppb=low,
        rate_high_ppb=high,
        bound_ns=most + parameters.asymmetry_ns,
        sigma_ns=sigma,
        rate_sigma_ppb=rate_sigma,
        trains=len(outbound) + len(inbound),
        window_s=2 * end_s,
        quality=quality,
        raw_offset_ns=offset,
        extremes=_extremes(upper, lower, line, t_ref, base),
        base_ns=base,
        floors=floors,
    )


def _floors(
    upper: _Cloud, lower: _Cloud, prior: Prior, end_s: float, fresh_s: float
) -> tuple[Floor, tuple[Floor, ...]]:
    """The fastest packets of the window, and those of RANKS of its last `fresh_s`; none without a packet each way."""
    whole: list[float] = []
    ranked = []
    for cloud, sign in ((upper, 1.0), (lower, -1.0)):
        t = cloud.t - end_s
        # Before the end the rate was another one, if it drifts.
        delay = sign * (cloud.y - (prior.rate_ppb + prior.drift_ppb_s / 2 * t) * t)
        k = int(delay.argmin())
        whole += [float(cloud.y[k]), float(t[k])]
        fresh = np.flatnonzero(t > -fresh_s)
        ranks = [int(share * len(fresh)) for share in RANKS]
        order = fresh[np.argpartition(delay[fresh], ranks)[ranks]] if len(fresh) else fresh
        ranked.append(list(zip(cloud.y[order].tolist(), t[order].tolist(), strict=True)))
    return Floor(*whole), tuple(Floor(*up, *down) for up, down in zip(*ranked, strict=False))


def _line(floors: tuple[Floor, ...], prior: Prior, end_s: float) -> SeparatingLine:
    """The middle of the first of `floors` that the prior's rate and drift separate; else of the last."""
    for upper, upper_s, lower, lower_s in floors:
        high = upper - (prior.rate_ppb + prior.drift_ppb_s / 2 * upper_s) * upper_s
        low = lower - (prior.rate_ppb + prior.drift_ppb_s / 2 * lower_s) * lower_s
        if high >= low:
            break
    return SeparatingLine((high + low) / 2 - prior.rate_ppb * end_s, prior.rate_ppb, (high - low) / 2, 0)


def _base(outbound: Trains, inbound: Trains) -> int:
    """An offset near the truth, so that the rest of the arithmetic is exact in float64."""
    out = (outbound.rx_ns - outbound.tx_ns)[outbound.valid]
    into = (inbound.rx_ns - inbound.tx_ns)[inbound.valid]
    return (int(out.min()) - int(into.min())) // 2


def _cloud(trains: Trains, t_ref: int, base: int, sign: int) -> _Cloud:
    """The packets behind the warm-up packet as points; that one pays for cold caches and is left out."""
    delay = trains.rx_ns[:, 1:] - trains.tx_ns[:, 1:]
    y = (sign * delay - base).astype(np.float64)
    # The stamp of the same packet that our own clock took.
    own = (trains.tx_ns if sign > 0 else trains.rx_ns)[:, 1:]
    t = (own - t_ref).astype(np.float64) * 1e-9
    valid = trains.valid[:, 1:]
    return _Cloud(t[valid], y[valid])


def _extremes(upper: _Cloud, lower: _Cloud, line: SeparatingLine, t_ref: int, base: int) -> Extremes:
    i = int((upper.y - line.rate_ppb * upper.t).argmin())
    j = int((lower.y - line.rate_ppb * lower.t).argmax())
    return Extremes(
        t_ref + round(float(upper.t[i]) * 1e9),
        base + round(float(upper.y[i])),
        t_ref + round(float(lower.t[j]) * 1e9),
        base + round(float(lower.y[j])),
    )


def _rate_limits(
    upper: _Cloud, lower: _Cloud, line: SeparatingLine, t_ref: int, base: int, prior: Prior | None
) -> tuple[float, float]:
    """Lowest and highest rate that causality allows, by this window and by the fastest packets of those before.

    The longer the time between two packets, the less the queues can pretend about the rate: half a gap of 2 us
    allows 1 ppm over 4 s and 0.25 ppm over 16 s.
    """
    if prior is not None and prior.extremes:
        old = np.array([(e.upper_t_ns, e.upper_ns, e.lower_t_ns, e.lower_ns) for e in prior.extremes])
        t = (old[:, 0::2] - t_ref).astype(np.float64) * 1e-9
        y = (old[:, 1::2] - base).astype(np.float64)
        upper_t, upper_y = np.concatenate([t[:, 0], upper.t]), np.concatenate([y[:, 0], upper.y])
        lower_t, lower_y = np.concatenate([t[:, 1], lower.t]), np.concatenate([y[:, 1], lower.y])
        slope = prior.rate_ppb
        # Packets that no line can separate tell of a clock whose rate was changed: then only what is new counts.
        if (upper_y - slope * upper_t).min() >= (lower_y - slope * lower_t).max():
            return feasible_rates(upper_t, upper_y, lower_t, lower_y, slope)
    return feasible_rates(upper.t, upper.y, lower.t, lower.y, line.rate_ppb)


def _causal_limits(
    upper: _Cloud,
    lower: _Cloud,
    line: SeparatingLine,
    end_s: float,
    low_ppb: float,
    high_ppb: float,
    stray_ppb: float,
) -> tuple[float, float]:
    """How far the truth can be above and below the line at the end of the window.

    theta lies below each point of the upper cloud, and since then has risen by the highest possible rate at most; so
    for the other side. All points count.
    """
    up = max(high_ppb - line.rate_ppb, 0.0) + stray_ppb
    down = max(line.rate_ppb - low_ppb, 0.0) + stray_ppb
    above = upper.y - line.offset_ns - line.rate_ppb * upper.t + up * (end_s - upper.t)
    below = line.offset_ns + line.rate_ppb * lower.t - lower.y + down * (end_s - lower.t)
    return float(above.min()), float(below.min())


def _scatter(upper: _Cloud, lower: _Cloud, line: SeparatingLine, parameters: EstimatorParameters) -> float:
    """Expected error of the offset, ns: how thinly the edges of both clouds are populated.

    Where n points lie within a distance d of the extreme one, the true edge is about d / n beyond it.
    """
    variance = 0.0
    for cloud, sign in ((upper, 1.0), (lower, -1.0)):
        distance = sign * (cloud.y - line.offset_ns - line.rate_ppb * cloud.t)
        count = min(len(distance), max(3, len(distance) // 20))
        nearest = np.partition(distance, count - 1)[:count]
        variance += (float(nearest.max() - nearest.min()) / max(count - 1, 1)) ** 2
    return float(np.hypot(parameters.stamp_noise_ns, np.sqrt(variance)))
