"""Rows of hops: the switches of one path after the other, as numbers of switches. Pure.

A fleet has millions of paths and some thousand switches: two bytes a hop, until there are too many switches for that.
"""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.flows.components import NO_HOP

Hops = NDArray[np.int16] | NDArray[np.int32]
"""Two-dimensional: a row a path, switches in order; SILENT_HOP, and NO_HOP behind the last."""

_SMALL, _LARGE = np.int16, np.int32


def empty_rows(count: int, width: int, switches: int, order: str = "C") -> Hops:
    """Rows that are to hold numbers below `switches`, not filled in."""
    small = switches <= np.iinfo(_SMALL).max
    return np.empty((count, width), _SMALL if small else _LARGE, order=order)  # type: ignore[call-overload,no-any-return]


def with_room(rows: Hops, number: int) -> Hops:
    """The same rows, or a copy where the number would not fit."""
    return rows if number <= np.iinfo(rows.dtype).max else rows.astype(_LARGE)


def grown(rows: Hops, count: int, width: int, number: int) -> Hops:
    """A copy of so many rows and columns at least, in which the number fits; NO_HOP in what is new."""
    rows = with_room(rows, number)
    found = np.full((max(count, len(rows)), max(width, rows.shape[1])), NO_HOP, rows.dtype)
    found[: len(rows), : rows.shape[1]] = rows
    return found
