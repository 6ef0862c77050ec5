"""What the trains of one edge say about the two clocks: offset, rate, and how wrong that can be.

Stages; each degrades gracefully when samples are few: (1) points from trains with all stamps; (2) the coded-pair
filter: the two last packets of a train left so close together that a queue on the way changes their distance,
so a train whose distance survived met no queue; the guard band is as narrow as enough trains allow; (3) the
separating line through what is left; (4) the hard bound by causality: no packet arrives before it was sent.

Pure: no clock is read here, the caller passes trains and gets an `EdgeFit`.
"""

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.edge.separating_line import SeparatingLine, feasible_rates, separate, support_count

# The bound trusts a rate to so many of its standard deviations.
_RATE_SIGMAS = 6.0

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class EstimatorParameters:
    """How the estimator works; the defaults are what was measured to be good (docs/decisions).

    guard_ns : first and widest guard band. nu, nu_unfiltered : share of the points that may lie on the wrong
    side. nu_level : the same for a level. asymmetry_ns : difference of the two path lengths, halved, that no
    measurement can see and that stamps of the kernel may be late. drift_ppb : how far the rate may stray from a
    straight line within a window and the memory before it. wander_ppb : standard deviation of the change of rate
    over 1 s, until it is learned. stamp_noise_ns : what a stamp is worth at best.
    """

    guard_ns: tuple[float, float] = (30.0, 5_000.0)
    minimum_trains: int = 60
    minimum_share: float = 0.1
    nu: float = 0.01
    nu_unfiltered: float = 0.02
    nu_level: float = 0.1
    fewest_pure: int = 20
    fewest_points: int = 4
    asymmetry_ns: float = 100.0
    drift_ppb: float = 250.0
    wander_ppb: float = 5.0
    rate_range_ppb: float = 5_000.0
    stamp_noise_ns: float = 8.0


class Quality(enum.IntEnum):
    """What the fit rests on, best first."""

    CODED = 0  # enough pure pairs in the narrow guard band
    WIDE = 1  # pure pairs, but the guard band had to grow to its limit or trains were few
    UNFILTERED = 2  # hardly any pure pair: all packets after the warm-up
    MINIMUM = 3  # too few points for a slope: fastest packet each way, slope of the last window


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


@dataclass(frozen=True)
class Level:
    """Where the trains since the last fit put the line, at a slope that is known: the mean of both floors.

    offset_ns at our host time t_ns; half_gap_ns : half of the distance between the floors. The trains of a level
    are in no other, so levels err independently, which windows that overlap do not.
    """

    t_ns: int
    offset_ns: int
    half_gap_ns: float


@dataclass(frozen=True)
class Fresh:
    """Third packets since the last fit, pure or not: (n,) seconds from our host time t_ns, and the offset that each
    says, ns from base_ns. Upper ones went to the peer.
    """

    t_ns: int
    base_ns: int
    upper_t: Floats
    upper: Floats
    lower_t: Floats
    lower: Floats


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
    did, as long as the clocks did not change their rates by more than drift_ppb. bound_ns : the larger of the two
    plus what stamps can hide. half_gap_ns : half of the round trip on the fastest paths seen. sigma_ns,
    rate_sigma_ppb : expected size of the error, for weights. pure : trains that passed the filter, both ways.
    raw_offset_ns : what this window alone says, at t_ns. level : of the trains since the last fit; None without.
    extremes : for the next windows' limits of the rate. fresh : what the level was made of, and what it left out.
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
    pure: int
    trains: int
    window_s: float
    quality: Quality
    guard_ns: float
    raw_offset_ns: int
    level: Level | None
    extremes: Extremes
    fresh: Fresh | None = None

    def at(self, t_ns: int) -> int:
        """Offset extrapolated to our host time `t_ns`, ns."""
        # float64 has 256 ns resolution at Unix-epoch magnitudes; keep integers.
        return self.offset_ns + round(self.rate_ppb * 1e-9 * (t_ns - self.t_ns))


@dataclass(frozen=True)
class Prior:
    """What earlier windows know: the likely rate, its standard deviation, and the limits that causality sets it.

    since_ns : our host time up to which trains are in earlier levels. extremes : of fits before, oldest first.
    """

    rate_ppb: float
    sigma_ppb: float
    low_ppb: float
    high_ppb: float
    since_ns: int = 0
    extremes: tuple[Extremes, ...] = ()


@dataclass(frozen=True)
class _Cloud:
    """Points of one direction. t : seconds from the reference. y : measured offset minus the base, ns. pure :
    passed.
    """

    t: Floats
    y: Floats
    gap: Floats  # per point: how much the distance of its pair changed, NaN without a pair
    last: NDArray[np.bool_]  # per point: third packet of its train


def fit_edge(
    outbound: Trains, inbound: Trains, parameters: EstimatorParameters, prior: Prior | None = None
) -> EdgeFit | None:
    """Fits one window. outbound : us -> peer, inbound : peer -> us.

    Returns None while one direction has no packet, or there are too few of them and no prior.
    """
    if not outbound.valid.any() or not inbound.valid.any():
        return None
    first = int(min(outbound.t_ns.min(), inbound.t_ns.min()))
    last = int(max(outbound.t_ns.max(), inbound.t_ns.max()))
    t_ref = first + (last - first) // 2
    base = _base(outbound, inbound)
    upper = _cloud(outbound, t_ref, base, 1)
    lower = _cloud(inbound, t_ref, base, -1)
    window_s = (last - first) * 1e-9
    trains = len(outbound) + len(inbound)
    if min(len(upper.y), len(lower.y)) < parameters.fewest_points or window_s < 0.05:
        if prior is None or not len(upper.y) or not len(lower.y):
            return None
        line = _minimum_line(upper, lower, prior.rate_ppb)
        sigma = max(line.half_gap_ns / 2, parameters.stamp_noise_ns)
        used = (upper, lower, 0, Quality.MINIMUM, parameters.guard_ns[1])
        return _finish(
            used, upper, lower, line, (sigma, np.inf), t_ref, last, base, trains, parameters, prior
        )

    crude = prior.rate_ppb if prior is not None else None
    if crude is None:
        crude = separate(upper.t, upper.y, lower.t, lower.y, parameters.nu_unfiltered).rate_ppb
    used = _choose_points(upper, lower, crude, parameters)
    nu = parameters.nu_unfiltered if used[3] == Quality.UNFILTERED else parameters.nu
    rate_range, clamp = parameters.rate_range_ppb, False
    if prior is not None:
        # A loaded window can show slopes that no crystal takes; what is known of the rate limits the search.
        known = _RATE_SIGMAS * prior.sigma_ppb
        causal = max(prior.high_ppb - prior.rate_ppb, prior.rate_ppb - prior.low_ppb)
        rate_range, clamp = max(known, min(causal, 20 * known)) + parameters.drift_ppb, True
    line = separate(
        used[0].t, used[0].y, used[1].t, used[1].y, nu, rate_ppb=crude, rate_range_ppb=rate_range, clamp=clamp
    )
    sigma = _scatter(used[0], used[1], line, parameters)
    rate_sigma = np.sqrt(12) * sigma / window_s
    return _finish(
        used, upper, lower, line, (sigma, rate_sigma), t_ref, last, base, trains, parameters, prior
    )


_Used = tuple["_Cloud", "_Cloud", int, Quality, float]


def _finish(
    used: _Used,
    upper: _Cloud,
    lower: _Cloud,
    line: SeparatingLine,
    sigmas: tuple[float, float],
    t_ref: int,
    last: int,
    base: int,
    trains: int,
    parameters: EstimatorParameters,
    prior: Prior | None,
) -> EdgeFit:
    low, high = _rate_limits(upper, lower, line, t_ref, base, prior)
    above, below = _causal_limits(upper, lower, line, (last - t_ref) * 1e-9, low, high, parameters)
    offset = round(line.offset_ns)
    return EdgeFit(
        t_ns=t_ref,
        t_last_ns=last,
        offset_ns=base + offset,
        rate_ppb=line.rate_ppb,
        half_gap_ns=line.half_gap_ns,
        above_ns=above,
        below_ns=below,
        rate_low_ppb=low,
        rate_high_ppb=high,
        bound_ns=max(above, below, 0.0) + parameters.asymmetry_ns,
        sigma_ns=sigmas[0],
        rate_sigma_ppb=sigmas[1],
        pure=used[2],
        trains=trains,
        window_s=2e-9 * (last - t_ref),
        quality=used[3],
        guard_ns=used[4],
        raw_offset_ns=base + offset,
        level=_level(used, t_ref, base, parameters, prior),
        extremes=_extremes(upper, lower, line, t_ref, base),
        fresh=_fresh(upper, lower, t_ref, base, prior),
    )


def _choose_points(upper: _Cloud, lower: _Cloud, rate_ppb: float, parameters: EstimatorParameters) -> _Used:
    """The points that carry the line: pure pairs if there are enough, else all."""
    keep_u, guard_u = _purify(upper, rate_ppb, 1, parameters)
    keep_l, guard_l = _purify(lower, rate_ppb, -1, parameters)
    guard = max(guard_u, guard_l)
    pure = int(keep_u.sum() + keep_l.sum()) // 2
    smaller = min(keep_u.sum(), keep_l.sum())
    fewest = min(parameters.fewest_pure, len(upper.y) // 2, len(lower.y) // 2)
    if smaller < max(fewest, parameters.fewest_points):
        return upper, lower, pure, Quality.UNFILTERED, guard
    wide = guard >= parameters.guard_ns[1] or smaller < parameters.minimum_trains
    return (
        _select(upper, keep_u),
        _select(lower, keep_l),
        pure,
        Quality.WIDE if wide else Quality.CODED,
        guard,
    )


def _base(outbound: Trains, inbound: Trains) -> int:
    """An offset near the truth, so that the rest of the arithmetic is exact in float64."""
    out = (outbound.rx_ns - outbound.tx_ns)[outbound.valid]
    into = (inbound.rx_ns - inbound.tx_ns)[inbound.valid]
    return (int(out.min()) - int(into.min())) // 2


def _cloud(trains: Trains, t_ref: int, base: int, sign: int) -> _Cloud:
    """Both packets of the coded pair as points; the warm-up packet pays for cold caches and is left out."""
    delay = trains.rx_ns[:, 1:] - trains.tx_ns[:, 1:]
    y = (sign * delay - base).astype(np.float64)
    # The stamp of the same packet that our own clock took.
    own = (trains.tx_ns if sign > 0 else trains.rx_ns)[:, 1:]
    t = (own - t_ref).astype(np.float64) * 1e-9
    valid = trains.valid[:, 1:]
    gap = np.where(valid.all(axis=1), (delay[:, 1] - delay[:, 0]).astype(np.float64), np.nan)
    last = np.broadcast_to(np.array([False, True]), valid.shape)
    return _Cloud(t[valid], y[valid], np.repeat(gap[:, None], 2, axis=1)[valid], last[valid])


def _select(cloud: _Cloud, keep: NDArray[np.bool_]) -> _Cloud:
    return _Cloud(cloud.t[keep], cloud.y[keep], cloud.gap[keep], cloud.last[keep])


def _purify(
    cloud: _Cloud, slope: float, sign: int, parameters: EstimatorParameters
) -> tuple[NDArray[np.bool_], float]:
    """Which points belong to pairs whose distance survived the path, and the guard band that was needed.

    The band is centred on the usual change of distance of fast pairs: the second packet of a pair finds
    warmer caches than the first and gains some 100 ns, which is no queue.
    """
    known = ~np.isnan(cloud.gap)
    if not known.any():
        return known, parameters.guard_ns[1]
    delay = sign * (cloud.y - slope * cloud.t)
    points = int(known.sum())
    # By partition and sort: numpy's quantile and median cost more than the rest of the filter.
    quarter = (points - 1) // 4
    fast = known & (delay <= np.partition(delay[known], quarter)[quarter])
    gaps = np.sort(cloud.gap[fast])
    centre = float(gaps[(len(gaps) - 1) // 2] + gaps[len(gaps) // 2]) / 2
    distance = np.where(known, np.abs(cloud.gap - centre), np.inf)
    # Points, not trains: each pure train gives two.
    wanted = max(min(2 * parameters.minimum_trains, 0.5 * points), parameters.minimum_share * points)
    nth = min(points, max(1, int(np.ceil(wanted)))) - 1
    guard = float(np.partition(distance, nth)[nth])
    guard = min(max(guard, parameters.guard_ns[0]), parameters.guard_ns[1])
    return distance <= guard, guard


def _level(
    used: _Used, t_ref: int, base: int, parameters: EstimatorParameters, prior: Prior | None
) -> Level | None:
    """The floors of both directions among the trains since the last fit; None without a fresh one each way.

    Only third packets: the second still pays for caches that have gone cold since the last train.
    """
    if prior is None:
        return None
    since = (prior.since_ns - t_ref) * 1e-9
    floors, moments = [], []
    for cloud, sign in ((used[0], 1.0), (used[1], -1.0)):
        fresh = (cloud.t > since) & cloud.last
        if not fresh.any():
            return None
        t = cloud.t[fresh]
        distance = sign * (cloud.y[fresh] - prior.rate_ppb * t)
        count = support_count(len(distance), parameters.nu_level)
        floors.append(float(np.partition(distance, count - 1)[:count].mean()))
        moments.append(float(t.mean()))
    moment = (moments[0] + moments[1]) / 2
    offset = (floors[0] - floors[1]) / 2 + prior.rate_ppb * moment
    return Level(t_ref + round(moment * 1e9), base + round(offset), (floors[0] + floors[1]) / 2)


def _fresh(upper: _Cloud, lower: _Cloud, t_ref: int, base: int, prior: Prior | None) -> Fresh | None:
    if prior is None:
        return None
    since = (prior.since_ns - t_ref) * 1e-9
    up, low = (upper.t > since) & upper.last, (lower.t > since) & lower.last
    return Fresh(t_ref, base, upper.t[up], upper.y[up], lower.t[low], lower.y[low])


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
    parameters: EstimatorParameters,
) -> tuple[float, float]:
    """How far the truth can be above and below the line at the end of the window.

    theta lies below each point of the upper cloud, and since then has risen by the highest possible rate at most; so
    for the other side. All points count here, pure or not: a bound needs no purity.
    """
    up = max(high_ppb - line.rate_ppb, 0.0) + parameters.drift_ppb
    down = max(line.rate_ppb - low_ppb, 0.0) + parameters.drift_ppb
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


def _minimum_line(upper: _Cloud, lower: _Cloud, rate_ppb: float) -> SeparatingLine:
    """Too few packets for a slope: the fastest packet each way around a slope that is known."""
    high = float((upper.y - rate_ppb * upper.t).min())
    low = float((lower.y - rate_ppb * lower.t).max())
    return SeparatingLine((high + low) / 2, rate_ppb, (high - low) / 2, 0)
