"""The last report of each host, as arrays: what a round of the whole fleet computes with.

A report by HTTP is a `RoundReport`, one by datagram already a row; both end up here. Rows stand in the order in which
they came, and the edge records of all of them behind each other in the same order.
"""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.wire.messages import EDGE, EDGE_DTYPE, RoundReport
from fabricpulse.core._siphash import siphash24

# slot : number of the host in the fleet. known : it has a line. unverified : as in RoundReport. anchored : it has a
# time source of its own. quorum_s : moment of its Quorum, -1 for none. quorum_root : name_hash of its root.
ROW_DTYPE = np.dtype(
    [
        ("received_s", "f8"),
        ("host_ns", "i8"),
        ("ref_ns", "i8"),
        ("correction_ns", "i8"),
        ("rate_ppt", "i8"),
        ("bound_ns", "i8"),
        ("anchor_ns", "i8"),
        ("anchor_bound_ns", "i8"),
        ("clock_steps", "i8"),
        ("generation", "i8"),
        ("quorum_s", "i8"),
        ("quorum_hosts", "i8"),
        ("quorum_root", "u8"),
        ("slot", "i4"),
        ("edges", "i4"),
        ("rank", "i4"),
        ("known", "?"),
        ("anchored", "?"),
        ("quorum_anchored", "?"),
        ("no_quorum", "?"),
        ("unverified", "?"),
    ]
)
Records = NDArray[np.void]
_NO_KEY = bytes(16)


def name_hash(name: str) -> int:
    """A host's name in 64 bits: what rows and datagrams say instead."""
    return siphash24(_NO_KEY, name.encode())


class ReportTable:
    """rows : of ROW_DTYPE, at most one a slot. records : of EDGE_DTYPE."""

    def __init__(self) -> None:
        self.rows: Records = np.empty(0, ROW_DTYPE)
        self.records: Records = np.empty(0, EDGE_DTYPE)
        self._spoken: list[tuple[float | int | bool, ...]] = []
        self._blocks: list[bytes] = []

    def add(self, slot: int, report: RoundReport, received_s: float) -> None:
        """A report of the host of `slot`, later than those that are there."""
        line, anchor, quorum = report.line, report.anchor, report.quorum
        self._spoken.append(
            (
                received_s,
                report.host_ns,
                *((line.ref_host_ns, line.correction_ns, line.rate_ppt, line.bound_ns) if line else (0,) * 4),
                *(anchor or (0, 0)),
                report.clock_steps,
                report.generation,
                *((quorum.moment_s, quorum.hosts, name_hash(quorum.root)) if quorum else (-1, 0, 0)),
                slot,
                len(report.edges) // EDGE.size,
                report.rank,
                line is not None,
                anchor is not None,
                quorum is not None and quorum.anchored,
                report.no_quorum,
                report.unverified,
            )
        )
        self._blocks.append(report.edges)

    def settle(self, slots: int, arrived: tuple[Records, Records] | None = None) -> None:
        """Makes rows of what was added; the last of each slot counts. slots : all are below. arrived : further rows
        and their records, that came before the added ones.
        """
        parts = [(self.rows, self.records)]
        if arrived is not None:
            parts.append(arrived)
        if self._spoken:
            spoken = np.frombuffer(b"".join(self._blocks), EDGE_DTYPE)
            parts.append((np.array(self._spoken, ROW_DTYPE), spoken))
            self._spoken, self._blocks = [], []
        if len(parts) == 1:
            return
        # Usually all rows are replaced by those that have arrived: to copy both costs most of a round's memory.
        ends = np.cumsum([len(rows) for rows, _ in parts])
        numbers = [np.arange(end - len(rows), end) for end, (rows, _) in zip(ends, parts, strict=True)]
        last = np.full(slots, -1, np.intp)
        for number, (rows, _) in zip(numbers, parts, strict=True):
            np.maximum.at(last, rows["slot"], number)
        kept = [
            _of_rows(*part, last[part[0]["slot"]] == number)
            for number, part in zip(numbers, parts, strict=True)
        ]
        kept = [part for part in kept if len(part[0])]
        if len(kept) == 1:
            ((self.rows, self.records),) = kept
        elif kept:
            self.rows, self.records = (np.concatenate(of) for of in zip(*kept, strict=True))

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Drops the rows that are not in `which`, and their records."""
        self.rows, self.records = _of_rows(self.rows, self.records, which)

    def renumber(self, slot_of: NDArray[np.int32]) -> None:
        """Hosts have new slots: slot_of[old], -1 for those that have none any more."""
        self.rows["slot"] = slot_of[self.rows["slot"]]
        self.keep(self.rows["slot"] >= 0)


def _of_rows(rows: Records, records: Records, which: NDArray[np.bool_]) -> tuple[Records, Records]:
    """Those rows that are in `which`, and their records."""
    if which.all():
        return rows, records
    return rows[which], records[np.repeat(which, rows["edges"])]
