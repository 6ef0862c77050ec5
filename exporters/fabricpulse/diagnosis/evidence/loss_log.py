"""What flows have lost in the last minutes, as their hosts reported it, in columns. Pure.

A flow goes by an epoch and its number at its host, edge times ports plus port: the table of all flows is made anew
whenever the fleet changes. A host that gets other peers numbers its flows anew, too, in another epoch; what was
reported before goes with the flow, not with the number.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.flows.components import Nodes
from fabricpulse.diagnosis.flows.flow_table import Floats, Flows, FlowTable
from fabricpulse.diagnosis.flows.layout import Layout
from fabricpulse.diagnosis.search.unseen import NOTHING_UNSEEN, Unseen

# A flow that has lost packets in so many reports has recovered after some seconds, and some gaps, without a loss.
_OFTEN, _RECOVERED_S = 3, 4.0
# Losses that are kept, the newest: more than a dead leaf of 50,000 hosts makes. Half of a fabric that is dead is seen
# in seconds. A round takes some 100 bytes for each.
MOST_LOSSES = 1_000_000
_FEWEST_ROWS = 1024
# Where losses are many, of what is older than any but the longest window of evidence one row is kept for each flow and
# so many seconds.
_MANY_ROWS, _OLD_S, _MERGED_S = 200_000, 40.0, 10.0
# Packets of one report of which a switch that loses 60 % loses all by chance one time in a hundred; three go together.
MANY = 30
_FLOW_BITS, _SLOT_BITS = 20, 8

LOSS_DTYPE = np.dtype(
    [
        *(("at_s", "f8"), ("epoch", "i4"), ("flow", "i4"), ("sent", "u4"), ("lost", "u4")),
        *(("reports", "u1"), ("recovered", "?"), ("excused", "?")),
    ]
)
"""Packets of one flow in one report, or in several, of which at_s is the last. epoch : of the numbering. recovered : it
counts for nothing any more. excused : nor has it ever, as a host was away.
"""
Losses = NDArray[np.void]


class LossLog:
    """keep_s : how far back. most : losses that are kept; the oldest leave."""

    def __init__(self, keep_s: float, most: int = MOST_LOSSES) -> None:
        self._keep_s, self._most = keep_s, most
        self._rows = np.zeros(_FEWEST_ROWS, LOSS_DTYPE)
        self._begin = self._end = 0
        self._merged = -math.inf  # up to this slot of ten seconds
        # By epoch: the one after it, and what the flows are called there, -1 for those that are no more.
        self._moved: dict[int, tuple[int, Flows]] = {}

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def history(self) -> Losses:
        """All, those of recovered flows too, in order of time."""
        return self._rows[self._begin : self._end]

    @property
    def losses(self) -> Losses:
        """Those that count."""
        rows = self.history
        return rows[~rows["recovered"]] if rows["recovered"].any() else rows

    def add(
        self, at_s: float, epoch: int, flow: Flows | Nodes, sent: NDArray[np.uint32], lost: NDArray[np.uint32]
    ) -> None:
        """Of one report, the newest. flow : numbers at the host."""
        count = len(flow)
        if not count:
            return
        self._make_room(count)
        rows = self._rows[self._end : self._end + count]
        rows["at_s"], rows["epoch"], rows["flow"] = at_s, epoch, flow
        rows["sent"], rows["lost"], rows["reports"] = sent, lost, 1
        rows["recovered"] = rows["excused"] = False
        self._end += count

    def _make_room(self, count: int) -> None:
        if len(self) + count > self._most:
            self._begin = self._end - max(self._most - count, 0)
        if self._end + count <= len(self._rows):
            return
        kept = self.history
        # Half of the rows free at least, or they would be moved again and again.
        if 2 * (len(kept) + count) > len(self._rows):
            self._rows = np.zeros(2 * (len(kept) + count), LOSS_DTYPE)
        self._replace(kept)

    def _replace(self, kept: Losses) -> None:
        self._rows[: len(kept)] = kept
        self._begin, self._end = 0, len(kept)

    def renumber(self, epoch: int, after: int, flows: Flows) -> None:
        """A host counts its flows anew: `epoch` has become `after`. flows : new number by old one, -1 for none."""
        self._moved[epoch] = after, flows

    def forget(self, now_s: float) -> None:
        """What is too old, and what flows have lost that are no more."""
        self._begin += int(np.searchsorted(self.history["at_s"], now_s - self._keep_s))
        if 4 * len(self) + _FEWEST_ROWS < len(self._rows):
            kept = self.history
            self._rows = np.zeros(2 * len(kept) + _FEWEST_ROWS, LOSS_DTYPE)
            self._replace(kept)
        if self._moved and len(self):
            self._renumber()
        self._moved = {}
        slot = (now_s - _OLD_S) // _MERGED_S
        if len(self) > _MANY_ROWS and slot > self._merged:
            self._merged = slot
            self._merge(slot * _MERGED_S)

    def _merge(self, before_s: float) -> None:
        """One row for each flow and ten seconds."""
        rows = self.history
        old = rows[: np.searchsorted(rows["at_s"], before_s)]
        if not len(old):
            return
        key = old["epoch"].astype(np.int64) << _FLOW_BITS | old["flow"]
        slot = (old["at_s"] // _MERGED_S).astype(np.int64)
        key = ((key << 1 | old["recovered"]) << 1 | old["excused"]) << _SLOT_BITS | (slot - slot[0])
        # In order of time: the last of each, and the sums.
        _, last, number = np.unique(key[::-1], return_index=True, return_inverse=True)
        merged = old[::-1][last]
        for field in ("sent", "lost", "reports"):
            most = np.iinfo(LOSS_DTYPE[field]).max
            merged[field] = np.minimum(np.bincount(number, old[field][::-1]), most)
        merged = merged[np.argsort(merged["at_s"], kind="stable")]
        self._begin += len(old) - len(merged)
        self._rows[self._begin : self._begin + len(merged)] = merged

    def _renumber(self) -> None:
        rows = self.history
        order = np.argsort(rows["epoch"], kind="stable")
        epochs, first = np.unique(rows["epoch"][order], return_index=True)
        removed = np.zeros(len(rows), bool)
        for epoch, these in zip(epochs.tolist(), np.split(order, first[1:]), strict=True):
            flow, now = rows["flow"][these], epoch
            while now in self._moved:  # perhaps again and again since the last time
                now, flows = self._moved[now]
                flow = np.where(flow >= 0, flows[np.maximum(flow, 0)], -1)
            rows["flow"][these], rows["epoch"][these] = flow, now
            removed[these] = flow < 0
        if removed.any():
            self._replace(rows[~removed])

    def drop_recovered(self, now_s: float) -> None:
        """Losses of flows that used to lose often and have not for long: what they say is over."""
        rows = self.history
        key = rows["epoch"].astype(np.int64) << _FLOW_BITS | rows["flow"]
        # What lost packets just now has not recovered: while a switch is dead that is nearly all.
        recent = np.unique(key[np.searchsorted(rows["at_s"], now_s - _RECOVERED_S) :])
        old = ~rows["recovered"]
        if len(recent):
            old &= recent[np.minimum(np.searchsorted(recent, key), len(recent) - 1)] != key
        these = np.flatnonzero(old)
        _, flow = np.unique(key[these], return_inverse=True)
        count = np.bincount(flow, rows["reports"][these])
        at_s = rows["at_s"][these]
        first, last = np.zeros(len(count)), np.zeros(len(count))
        # In order of time: of several the last one stands.
        first[flow[::-1]], last[flow] = at_s[::-1], at_s
        usual_s = (last - first) / np.maximum(count - 1, 1)
        over = (count >= _OFTEN) & (now_s - last > _RECOVERED_S + 5 * usual_s)
        rows["recovered"][these[over[flow]]] = True

    def tables(self, layout: Layout) -> "tuple[LossTable, LossTable]":
        """Losses that count, and all, by the numbers of the layout. What a host tells while its numbers change waits
        for the next one.
        """
        losses = self.history
        rows = layout.rows(losses["epoch"], losses["flow"])
        if (rows < 0).any():
            losses, rows = losses[rows >= 0], rows[rows >= 0]
        weight = layout.weight(rows).astype(np.float32)
        every = LossTable(
            losses["at_s"].copy(),
            rows.astype(np.int32),
            weight * losses["sent"],
            weight * losses["lost"],
            losses["sent"] >= MANY,
            losses["reports"].copy(),
            losses["excused"].copy(),
        )
        recovered = losses["recovered"]
        return every.only(~recovered) if recovered.any() else every, every


@dataclass(frozen=True)
class LossTable:
    """Losses as columns, in order of time. flow : as the fleet's table of flows counts them. sent, lost : packets, by
    their weights. many : there were so many packets that a share of them that is lost by chance is not all. reports :
    that each is the sum of. excused : it counts for nothing, as a host was away.
    """

    at_s: Floats
    flow: Nodes
    sent: NDArray[np.float32]
    lost: NDArray[np.float32]
    many: NDArray[np.bool_]
    reports: NDArray[np.uint8]
    excused: NDArray[np.bool_]

    def only(self, which: NDArray[np.bool_]) -> "LossTable":
        """Some of them."""
        return LossTable(*(getattr(self, column.name)[which] for column in fields(self)))

    def _since(self, at_s: float) -> int:
        return int(np.searchsorted(self.at_s, at_s))

    def observed(
        self, table: FlowTable, now_s: float, window_s: float, unseen: Unseen = NOTHING_UNSEEN
    ) -> tuple[Flows, Floats, Floats]:
        """Of a window, the flows that lost packets, ascending, how many, and of how many."""
        start = self._since(now_s - window_s)
        flows, number = np.unique(self.flow[start:], return_inverse=True)
        lost = np.bincount(number, self.lost[start:], len(flows)).astype(float)
        sent = np.bincount(number, self.sent[start:], len(flows))
        # Reports without a loss do not say what was sent; the rate does.
        rows = flows.astype(np.int64)
        usual = table.rate_of(rows) * window_s - unseen.of(rows)
        return rows, lost, np.maximum(sent, usual).astype(float)

    def flows_since(self, at_s: float) -> set[int]:
        """That have lost packets."""
        return set(self.flow[self._since(at_s) :].tolist())

    def moments(
        self, table: FlowTable, at_s: float, component: int, others: set[int]
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Since then, when flows that cross the component, and are none of the others, have lost packets, ascending;
        and of each whether it is excused.
        """
        start = self._since(at_s)
        flows = self.flow[start:]
        crosses = np.isin(flows, list(others), invert=True)
        crosses &= table.crossing(flows.astype(np.int64), [component])
        reports = self.reports[start:][crosses]
        return np.repeat(self.at_s[start:][crosses], reports), np.repeat(
            self.excused[start:][crosses], reports
        )

    def excused_since(self, at_s: float) -> Unseen:
        """Packets of reports that count for nothing, as a host was away: nor were they received."""
        start = self._since(at_s)
        these = start + np.flatnonzero(self.excused[start:])
        flows, number = np.unique(self.flow[these], return_inverse=True)
        return Unseen(flows.astype(np.int64), np.bincount(number, self.sent[these], len(flows)).astype(float))

    def dead(self, at_s: float) -> frozenset[int]:
        """Flows of which nothing arrived in the last report that reported a loss, since then."""
        start = self._since(at_s)
        flows, last = np.unique(self.flow[start:][::-1], return_index=True)
        newest = len(self.flow) - 1 - last
        return frozenset(flows[self.lost[newest] >= 0.99 * self.sent[newest]].tolist())

    def all_or_nothing(self, at_s: float, flows: Iterable[int]) -> bool:
        """Whether most of what these flows have lost since then was lost by reports of which nothing arrived: what ends
        then has a last report of which a part arrived. Only flows that send much count.
        """
        start = self._since(at_s)
        these = self.many[start:] & np.isin(self.flow[start:], np.fromiter(flows, np.int64))
        lost, sent = self.lost[start:][these], self.sent[start:][these]
        return 2 * float(lost[lost >= 0.99 * sent].sum()) > float(lost.sum())

    def flapping(self, at_s: float, flows: Iterable[int]) -> bool:
        """Whether nothing arrived on most of these flows in one report since then: what flaps is dead one second, and
        well the next. Only flows that send much count.
        """
        start = self._since(at_s)
        busy = self.many[start:] & np.isin(self.flow[start:], np.fromiter(flows, np.int64))
        flow = self.flow[start:][busy]
        dead = self.lost[start:][busy] >= 0.99 * self.sent[start:][busy]
        return 2 * len(np.unique(flow[dead])) > len(np.unique(flow))
