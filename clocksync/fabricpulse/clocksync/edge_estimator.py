"""What the trains of one edge say about the two clocks: offset, rate, and how wrong that can be.

Steps, each of which knows how to do with less: (1) points from trains with all stamps; (2) the coded-pair
filter: the two last packets of a train left so close together that a queue on the way changes their distance,
so a train whose distance survived met no queue; the guard band is as narrow as enough trains allow; (3) the
separating line through what is left; (4) the hard bound by causality: no packet arrives before it was sent.

Pure: no clock is read here, the caller passes trains and gets an `EdgeFit`.
"""

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.separating_line import SeparatingLine, separate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class EstimatorParameters:
    """How the estimator works; the defaults are what was measured to be good (docs/decisions).

    guard_ns : first and widest guard band. nu, nu_unfiltered : share of the points that may lie on the wrong
    side. asymmetry_ns : difference of the two path lengths, halved, that no measurement can see and that
    stamps of the kernel may be late. drift_ppb : how far the rate may stray from a straight line within a
    window.
    """

    guard_ns: tuple[float, float] = (30.0, 5_000.0)
    minimum_trains: int = 60
    minimum_share: float = 0.1
    nu: float = 0.01
    nu_unfiltered: float = 0.02
    fewest_pure: int = 20
    fewest_points: int = 4
    asymmetry_ns: float = 100.0
    drift_ppb: float = 250.0
    rate_range_ppb: float = 5_000.0
    stamp_noise_ns: float = 5.0


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
class EdgeFit:
    """Peer's host clock minus ours: `offset_ns` at our host time `t_ns`, changing by `rate_ppb`.

    bound_ns : the truth was within offset +- bound at `t_last_ns`, whatever the queues did, as long as the
    two clocks did not change their rates by more than drift_ppb. half_gap_ns : half of the round trip on the
    fastest paths seen. sigma_ns, rate_sigma_ppb : expected size of the error, for weights. pure : trains that
    passed the filter, both ways.
    """

    t_ns: int
    t_last_ns: int
    offset_ns: int
    rate_ppb: float
    half_gap_ns: float
    bound_ns: float
    sigma_ns: float
    rate_sigma_ppb: float
    pure: int
    trains: int
    window_s: float
    quality: Quality
    guard_ns: float

    def at(self, t_ns: int) -> float:
        """Offset extrapolated to our host time `t_ns`, ns."""
        return self.offset_ns + self.rate_ppb * 1e-9 * (t_ns - self.t_ns)


@dataclass(frozen=True)
class _Cloud:
    """Points of one direction. t : seconds from the reference. y : measured offset minus the base, ns. pure :
    passed.
    """

    t: Floats
    y: Floats
    gap: Floats  # per point: how much the distance of its pair changed, NaN without a pair


def fit_edge(
    outbound: Trains, inbound: Trains, parameters: EstimatorParameters, previous: EdgeFit | None = None
) -> EdgeFit | None:
    """Fits one window. outbound : us -> peer, inbound : peer -> us. Returns None while one direction has no
    packet.
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
    few = min(len(upper.y), len(lower.y)) < parameters.fewest_points or window_s < 0.05
    if few and previous is None:
        return None
    if few and previous is not None:
        return _minimum_fit(upper, lower, t_ref, last, base, window_s, parameters, previous)

    slope = previous.rate_ppb if previous is not None else None
    if slope is None:
        crude = separate(upper.t, upper.y, lower.t, lower.y, parameters.nu_unfiltered)
        slope = crude.rate_ppb
    keep_u, guard_u = _purify(upper, slope, 1, parameters)
    keep_l, guard_l = _purify(lower, slope, -1, parameters)
    guard = max(guard_u, guard_l)
    pure = int(keep_u.sum() + keep_l.sum()) // 2
    fewest = min(parameters.fewest_pure, len(upper.y) // 2, len(lower.y) // 2)
    if min(keep_u.sum(), keep_l.sum()) >= max(fewest, parameters.fewest_points):
        nu = parameters.nu
        wide = guard >= parameters.guard_ns[1] or min(keep_u.sum(), keep_l.sum()) < parameters.minimum_trains
        quality = Quality.WIDE if wide else Quality.CODED
        used_u, used_l = _select(upper, keep_u), _select(lower, keep_l)
    else:
        nu, quality = parameters.nu_unfiltered, Quality.UNFILTERED
        used_u, used_l = upper, lower
    line = separate(
        used_u.t, used_u.y, used_l.t, used_l.y, nu, rate_ppb=slope, rate_range_ppb=parameters.rate_range_ppb
    )
    bound = _causal_bound(upper, lower, line, (last - t_ref) * 1e-9, parameters)
    sigma, rate_sigma = _scatter(used_u, used_l, line, window_s, parameters, previous)
    offset = round(line.offset_ns)
    return EdgeFit(
        t_ref, last, base + offset, line.rate_ppb, line.half_gap_ns, bound, sigma, rate_sigma, pure,
        len(outbound) + len(inbound), window_s, quality, guard,
    )  # fmt: skip


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
    return _Cloud(t[valid], y[valid], np.repeat(gap[:, None], 2, axis=1)[valid])


def _select(cloud: _Cloud, keep: NDArray[np.bool_]) -> _Cloud:
    return _Cloud(cloud.t[keep], cloud.y[keep], cloud.gap[keep])


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
    fast = known & (delay <= np.quantile(delay[known], 0.25))
    centre = float(np.median(cloud.gap[fast]))
    distance = np.where(known, np.abs(cloud.gap - centre), np.inf)
    points = int(known.sum())
    # Points, not trains: each pure train gives two.
    wanted = max(min(2 * parameters.minimum_trains, 0.5 * points), parameters.minimum_share * points)
    nth = min(points, max(1, int(np.ceil(wanted)))) - 1
    guard = float(np.partition(distance, nth)[nth])
    guard = min(max(guard, parameters.guard_ns[0]), parameters.guard_ns[1])
    return distance <= guard, guard


def _causal_bound(
    upper: _Cloud, lower: _Cloud, line: SeparatingLine, end_s: float, parameters: EstimatorParameters
) -> float:
    """How far the truth can be from the line at the end of the window.

    theta lies below each point of the upper cloud; a point that is a s old says so with drift_ppb * a less
    certainty. All points count here, pure or not: a bound needs no purity.
    """
    above = upper.y - line.offset_ns - line.rate_ppb * upper.t + parameters.drift_ppb * (end_s - upper.t)
    below = line.offset_ns + line.rate_ppb * lower.t - lower.y + parameters.drift_ppb * (end_s - lower.t)
    return max(float(above.min()), float(below.min()), line.half_gap_ns, 0.0) + parameters.asymmetry_ns


def _scatter(
    upper: _Cloud,
    lower: _Cloud,
    line: SeparatingLine,
    window_s: float,
    parameters: EstimatorParameters,
    previous: EdgeFit | None,
) -> tuple[float, float]:
    """Expected error of offset (ns) and rate (ppb): width of the edges of both clouds, and a gap wider than
    it was.
    """
    spread = 0.0
    for cloud, sign in ((upper, 1.0), (lower, -1.0)):
        distance = np.sort(sign * (cloud.y - line.offset_ns - line.rate_ppb * cloud.t))
        tenth = max(1, len(distance) // 10)
        spread += float(distance[tenth - 1] - distance[0]) ** 2 / tenth
    sigma = float(np.hypot(parameters.stamp_noise_ns, np.sqrt(spread) / 2))
    if previous is not None:
        # The path has not grown: what the gap has gained on the last window is queueing that the filter let
        # through.
        sigma += 0.3 * max(0.0, line.half_gap_ns - previous.half_gap_ns)
    return sigma, 3.5 * sigma / max(window_s, 0.05)


def _minimum_fit(
    upper: _Cloud,
    lower: _Cloud,
    t_ref: int,
    last: int,
    base: int,
    window_s: float,
    parameters: EstimatorParameters,
    previous: EdgeFit,
) -> EdgeFit | None:
    """Too few packets for a slope: the fastest packet each way around the slope of the last window."""
    if not len(upper.y) or not len(lower.y):
        return None
    high = float((upper.y - previous.rate_ppb * upper.t).min())
    low = float((lower.y - previous.rate_ppb * lower.t).max())
    half_gap = (high - low) / 2
    line = SeparatingLine((high + low) / 2, previous.rate_ppb, half_gap, 0)
    bound = _causal_bound(upper, lower, line, (last - t_ref) * 1e-9, parameters)
    sigma = max(half_gap / 2, parameters.stamp_noise_ns)
    return EdgeFit(
        t_ref, last, base + round(line.offset_ns), line.rate_ppb, half_gap, bound, sigma,
        max(previous.rate_sigma_ppb, 3.5 * sigma / max(window_s, 1.0)), 0, len(upper.y) + len(lower.y),
        window_s, Quality.MINIMUM, parameters.guard_ns[1],
    )  # fmt: skip
