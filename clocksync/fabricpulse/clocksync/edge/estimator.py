"""What the trains of one edge say about the two clocks: offset, rate, and how wrong that can be.

The names and units of it, for those who do not compute it, too: settings, reports, neighbours. It is computed by
`edge.fit`.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple

# Of what has come since the last fit, the packets that these shares of it are faster than: the filter chooses among
# them scatters least on this edge.
RANKS = (0.0, 1 / 32, 1 / 16, 1 / 8)
# A rate is off by so many of its standard deviations at most.
RATE_SIGMAS = 6.0


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


class Floor(NamedTuple):
    """A fast packet of each direction: the offset that it says, ns from the fit's base_ns, and when, seconds from
    t_last_ns. upper : to the peer; lower : from it.
    """

    upper_ns: float
    upper_s: float
    lower_ns: float
    lower_s: float


class Extremes(NamedTuple):
    """The fastest packet of each direction in a fit's trains: our host time, and the offset that it says."""

    upper_t_ns: int
    upper_ns: int
    lower_t_ns: int
    lower_ns: int


class EdgeFit(NamedTuple):
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
    """What earlier windows know: the likely rate now, how fast it changes (drift_ppb_s) and may change (most_ppb_s).
    t_ns : end of the last window. extremes : of fits before, oldest first.
    """

    rate_ppb: float
    drift_ppb_s: float
    most_ppb_s: float
    t_ns: int = 0
    extremes: tuple[Extremes, ...] = ()
