"""How fast UTC runs by each anchor, from its reports. Pure."""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.coordinator.members import Columns
from fabricpulse.clocksync.wire.report_table import Records

# An anchor's rate is told by reports this far apart; no oscillator is further from UTC than the other.
_RATE_SPAN_NS, _MOST_RATE_PPB = 2e8, 500_000.0


def anchor_rates(known: Columns, rows: Records) -> NDArray[np.float64]:
    """UTC's rate minus that of each anchor's stamp clock, ppb, from its last reports; NaN where it is not known.

    known : what earlier rows said of it; changed.
    """
    columns, slots = known.at, rows["slot"]
    elapsed = (rows["host_ns"] - columns["anchor_host_ns"][slots]).astype(np.float64)
    rates: NDArray[np.float64] = columns["anchor_rate_ppb"][slots]
    told = rows["anchored"] & (np.abs(elapsed) >= _RATE_SPAN_NS)
    moved = (rows["anchor_ns"] - columns["anchor_ns"][slots]).astype(np.float64)
    measured = moved / np.where(told, elapsed, 1.0) * 1e9
    # Else it has just become an anchor, or its clock was stepped.
    follows = told & (elapsed < 10e9) & (elapsed > 0) & (np.abs(measured) <= _MOST_RATE_PPB)
    rates = np.where(follows, np.where(np.isnan(rates), measured, rates + (measured - rates) / 3), rates)
    columns["anchor_rate_ppb"][slots] = rates
    for name in ("anchor_ns", "host_ns"):
        column = name if name == "anchor_ns" else "anchor_host_ns"
        columns[column][slots[told]] = rows[name][told]
    return np.where(rows["anchored"], rates, np.nan)
