"""How fast UTC runs by each anchor, from its reports, and how far the fleet's rate may be from that. Pure.

The clock of an anchor is steered, and may be slewed by 100 ppm and more for a while: chronyd corrects an error, or has
died amid that. What each report says of UTC is true within its bound, so two of them limit the rate of UTC; the slews
between them do not. The longer the anchor reports, the tighter the limits.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.coordinator.members import Columns
from fabricpulse.clocksync.solve.graph_solve import Solution
from fabricpulse.clocksync.solve.hosts import Hosts
from fabricpulse.clocksync.wire.report_table import Records

Floats = NDArray[np.float64]

# An anchor's rate follows from reports this far apart; no steered clock is further from its oscillator than the other.
_RATE_SPAN_NS, _MOST_RATE_PPB = 2e8, 500_000.0
# How fast UTC and a stamp clock part at most: the worst oscillator.
FREE_PPB = 100_000.0
# By so much a second the limits of a rate get wider again: an oscillator ages.
_FORGET_PPB_S = 1.0
# The report that others are compared with is replaced when it is older, or a new one is so many times as sure.
_OLDEST_REF_NS, _SURER = 1_800e9, 2


class AnchorRates(NamedTuple):
    """UTC's rate minus that of each anchor's stamp clock, ppb, from its last reports, NaN where it is not known; and
    the lowest and the highest that it can be, by what the anchor says of its errors.
    """

    rate_ppb: Floats
    low_ppb: Floats
    high_ppb: Floats

    @property
    def off_ppb(self) -> Floats:
        """How far rate_ppb may be off."""
        return np.maximum(self.high_ppb - self.rate_ppb, self.rate_ppb - self.low_ppb)


def anchor_rates(known: Columns, rows: Records) -> AnchorRates:
    """Of each row. known : what earlier rows said of it; changed."""
    columns, slots = known.at, rows["slot"]
    elapsed = (rows["host_ns"] - columns["anchor_host_ns"][slots]).astype(np.float64)
    rates: Floats = columns["anchor_rate_ppb"][slots]
    reports = rows["anchored"] & (np.abs(elapsed) >= _RATE_SPAN_NS)
    moved = (rows["anchor_ns"] - columns["anchor_ns"][slots]).astype(np.float64)
    measured = moved / np.where(reports, elapsed, 1.0) * 1e9
    # Else it has just become an anchor, or its clock was stepped.
    follows = reports & (elapsed < 10e9) & (elapsed > 0) & (np.abs(measured) <= _MOST_RATE_PPB)
    low, high = _limits(columns, rows, reports, follows, elapsed)
    rates = np.where(follows, np.where(np.isnan(rates), measured, rates + (measured - rates) / 3), rates)
    rates = np.clip(rates, low, high)
    columns["anchor_rate_ppb"][slots] = rates
    for name in ("anchor_ns", "host_ns"):
        column = name if name == "anchor_ns" else "anchor_host_ns"
        columns[column][slots[reports]] = rows[name][reports]
    return AnchorRates(np.where(rows["anchored"], rates, np.nan), low, high)


def _limits(
    columns: Records,
    rows: Records,
    reports: NDArray[np.bool_],
    follows: NDArray[np.bool_],
    elapsed: Floats,
) -> tuple[Floats, Floats]:
    """Of UTC's rate minus that of each anchor's stamp clock, ppb; entered in `columns`."""
    slots, bound = rows["slot"], rows["anchor_bound_ns"]
    age = np.where(follows, elapsed, 0.0) * 1e-9
    low = np.maximum(columns["anchor_low_ppb"][slots] - _FORGET_PPB_S * age, -FREE_PPB)
    high = np.minimum(columns["anchor_high_ppb"][slots] + _FORGET_PPB_S * age, FREE_PPB)
    since = (rows["host_ns"] - columns["anchor_ref_host_ns"][slots]).astype(np.float64)
    off = (bound + columns["anchor_ref_bound_ns"][slots]).astype(np.float64)
    span = np.where(follows & (since > 0), since, np.inf)
    mean = (rows["anchor_ns"] - columns["anchor_ref_ns"][slots]).astype(np.float64) / span * 1e9
    half = np.where(np.isfinite(span), off / span * 1e9, np.inf)
    low, high = np.maximum(low, mean - half), np.minimum(high, mean + half)
    # Where no rate fits, a report of the anchor was false, or is now. One that came too soon, or was not repeated,
    # changes nothing of what was known.
    begins = (reports & ~follows) | ~rows["anchored"] | (low > high)
    low, high = np.where(begins, -FREE_PPB, low), np.where(begins, FREE_PPB, high)
    columns["anchor_low_ppb"][slots], columns["anchor_high_ppb"][slots] = low, high
    surer = _SURER * bound < columns["anchor_ref_bound_ns"][slots]
    replaced = slots[reports & (begins | surer | (since > _OLDEST_REF_NS))]
    which = np.isin(slots, replaced)
    for column, name in (
        ("anchor_ref_host_ns", "host_ns"),
        ("anchor_ref_ns", "anchor_ns"),
        ("anchor_ref_bound_ns", "anchor_bound_ns"),
    ):
        columns[column][replaced] = rows[name][which]
    return low, high


@dataclass
class UtcRate:
    """unsure_ppb : how far the fleet's rate may be from UTC's; inf before the first anchor reports."""

    unsure_ppb: float = np.inf
    _solved_s: float = 0.0

    def take(
        self,
        last_ppb: Floats,
        hosts: Hosts,
        solution: Solution,
        utc: AnchorRates,
        now_s: float,
        *,
        anchored: bool,
    ) -> float:
        """After a solve. last_ppb : the rates that the last one found, which unsure_ppb is of. anchored : the timeline
        rests on anchors, or has done so. Returns unsure_ppb, 0 where there is no UTC to be off from.
        """
        if not anchored:
            self.unsure_ppb = np.inf
            return 0.0
        # What was known holds on, as far as the fleet's rate stays what it was by its own oscillators.
        kept = hosts.known & solution.placed
        changed = np.abs(np.median((solution.rate_ppb - last_ppb)[kept])) if kept.any() else np.inf
        self.unsure_ppb += float(changed) + _FORGET_PPB_S * max(now_s - self._solved_s, 0.0)
        self._solved_s = now_s
        reporting = np.isfinite(hosts.anchor_ns) & solution.placed & ~solution.falsetickers
        if reporting.any():
            off = np.maximum(solution.rate_ppb - utc.low_ppb, utc.high_ppb - solution.rate_ppb)[reporting]
            # An anchor with wide limits does not widen another's; a falseticker does not count.
            self.unsure_ppb = min(self.unsure_ppb, float(np.sort(off)[len(off) // 2]))
        return min(self.unsure_ppb, 2 * FREE_PPB)
