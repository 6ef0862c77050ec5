"""Hosts with a lease: names and edges as objects, what changes each round as columns.

A host has a slot, a number that it keeps; edges name their peers by slot. At 50,000 hosts an attribute of an object a
host would cost a round more than the solve.
"""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.coordinator.estimated_error import CLASSES, Counts
from fabricpulse.clocksync.wire.messages import HostInfo, Line
from fabricpulse.clocksync.wire.suspicions import SUSPICIONS

# neighbours_sent : generation of the fleet in which the host was last sent the addresses of its neighbours; moved : in
# which the host itself last reported other addresses. info : generation of its HostInfo, -1 without. name : its
# name_hash. rested : the last solve that spoke for the fleet rested on it, among others. jump_ns : how far its stamps
# have jumped though its clock has not, by the correction (fleet minus host). placed_s, stepped_s : when a solve last
# placed it, and first after a step of its clock. doubt_ns : how far it may be off though edges need not contradict it
# now, whole_s : since when all who could are. jumped_s, outlying_s, utc_s : when each suspicion last had a reason; utc
# : which of the two of anchors it was.
COLUMNS = np.dtype(
    [
        ("expires_s", "f8"),
        ("received_s", "f8"),
        ("placed_s", "f8"),
        ("stepped_s", "f8"),
        ("jumped_s", "f8"),
        ("outlying_s", "f8"),
        ("utc_s", "f8"),
        ("jump_ns", "f8"),
        ("doubt_ns", "f8"),
        ("whole_s", "f8"),
        ("bound_ns", "f8"),
        ("anchor_rate_ppb", "f8"),
        ("anchor_ns", "i8"),
        ("anchor_host_ns", "i8"),
        ("ref_ns", "i8"),
        ("correction_ns", "i8"),
        ("rate_ppt", "i8"),
        ("line_bound_ns", "i8"),
        ("clock_steps", "i8"),
        ("info", "i8"),
        ("generation", "i8"),
        ("neighbours_sent", "i8"),
        ("moved", "i8"),
        ("name", "u8"),
        ("residuals", "u4", (2,)),
        ("outliers", "i4"),
        ("estimated_error_ns", "u4"),
        ("drift_ppb", "u4"),
        ("anchor_ref_host_ns", "i8"),
        ("anchor_ref_ns", "i8"),
        ("anchor_ref_bound_ns", "i8"),
        ("anchor_low_ppb", "f8"),
        ("anchor_high_ppb", "f8"),
        ("reported_edges", "i4"),
        ("joined", "?"),
        ("placed", "?"),
        ("rested", "?"),
        ("suspect", "u1"),
        ("utc", "u1"),
    ]
)


class Columns:
    """One entry of COLUMNS a slot, and the residuals of the last solve, which `residuals` is begin and end in.

    held_out : of each slot, for `estimated_error`.
    """

    def __init__(self) -> None:
        self.at: NDArray[np.void] = np.zeros(0, COLUMNS)
        self.residuals = b""
        self.held_out: Counts = np.zeros((0, CLASSES), np.float32)

    def make_room(self, slots: int) -> None:
        """At least `slots` entries."""
        if len(self.at) < slots:
            grown = np.zeros(max(1024, 2 * slots), COLUMNS)
            grown[: len(self.at)] = self.at
            self.at = grown
            counts = np.zeros((len(grown), CLASSES), np.float32)
            counts[: len(self.held_out)] = self.held_out
            self.held_out = counts

    def clear(self, slot: int) -> None:
        """As of a host that has not reported yet."""
        self.at[slot] = np.zeros((), COLUMNS)
        self.held_out[slot] = 0.0
        self.at["bound_ns"][slot] = self.at["anchor_rate_ppb"][slot] = np.nan
        self.at["anchor_low_ppb"][slot], self.at["anchor_high_ppb"][slot] = -np.inf, np.inf
        for name in ("placed_s", "stepped_s", "jumped_s", "outlying_s", "utc_s"):
            self.at[name][slot] = -np.inf
        self.at["info"][slot] = self.at["neighbours_sent"][slot] = -1


class Member:
    """A host with a lease. epoch : of its sidecar. info : without its edges. edges : of each the number of the own NIC,
    the slot of the peer and the number of its NIC, which `Roster.edges` gives names: an object and its strings for each
    of 800,000 took half of a coordinator's memory.
    """

    __slots__ = ("_columns", "channel", "edges", "epoch", "info", "name", "slot")

    def __init__(self, columns: Columns, name: str, slot: int, epoch: int) -> None:
        self.name, self.slot, self.epoch = name, slot, epoch
        self.info: HostInfo | None = None
        self.edges: NDArray[np.int32] = np.empty((0, 3), np.int32)
        # Number of its channel for datagrams, -1 without.
        self.channel = -1
        self._columns = columns

    @property
    def line(self) -> Line | None:
        """What the last solve says; None while no edge ties it to the timeline."""
        at = self._columns.at[self.slot]
        if not at["placed"]:
            return None
        return Line(
            int(at["ref_ns"]), int(at["correction_ns"]), int(at["rate_ppt"]), int(at["line_bound_ns"])
        )

    @property
    def residuals(self) -> bytes:
        """Records of RESIDUAL, of the edges that its last report was about."""
        begin, end = self._columns.at["residuals"][self.slot]
        return self._columns.residuals[begin:end]

    @property
    def usable(self) -> bool:
        """The names of the edges that it reports are known."""
        at = self._columns.at[self.slot]
        return bool(at["info"] >= 0 and at["info"] == at["generation"])

    @property
    def suspect(self) -> str:
        """Why it is suspected of being faulty, "" if it is not."""
        return SUSPICIONS[self._columns.at["suspect"][self.slot]]

    @property
    def outliers(self) -> int:
        """Of its edges."""
        return int(self._columns.at["outliers"][self.slot])

    @property
    def estimated_error_ns(self) -> int:
        """What its fleet time is likely off by, 0 = not known."""
        return int(self._columns.at["estimated_error_ns"][self.slot])

    @property
    def drift_ppb(self) -> int:
        """How far the rate of its line may be off, beside what clocks may drift."""
        return int(self._columns.at["drift_ppb"][self.slot])

    @property
    def reported_edges(self) -> int:
        """In its last report."""
        return int(self._columns.at["reported_edges"][self.slot])

    @property
    def received_s(self) -> float:
        """When its last report that was solved with came in."""
        return float(self._columns.at["received_s"][self.slot])

    @property
    def moved(self) -> int:
        """Generation of the fleet in which it last said that its NICs, or where it is reached, have changed."""
        return int(self._columns.at["moved"][self.slot])

    @property
    def neighbours_sent(self) -> int:
        """Generation of the fleet in which it was last sent the addresses of its neighbours."""
        return int(self._columns.at["neighbours_sent"][self.slot])

    @neighbours_sent.setter
    def neighbours_sent(self, generation: int) -> None:
        self._columns.at["neighbours_sent"][self.slot] = generation
