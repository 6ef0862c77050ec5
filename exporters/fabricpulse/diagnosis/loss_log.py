"""What flows have lost in the last minutes, as their hosts told it. Pure.

Hosts go by name and flows by their number at the host, edge times ports plus port: the table of all flows is made anew
whenever the fleet changes. A host that gets other peers numbers its flows anew, too; what was told before goes with the
flow, not with the number.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.flow_table import Floats, Flows, FlowTable

# A flow that has lost packets in so many reports has been mended after some seconds, and some gaps, without a loss.
_OFTEN, _MENDED_S = 3, 4.0


class Loss(NamedTuple):
    """Packets of one flow in one report. epoch : of the numbering."""

    at_s: float
    host: str
    flow: int
    epoch: int
    sent: int
    lost: int


class LossLog:
    """keep_s : how far back. losses : those that count, in order of time. history : all, those of mended flows too."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self.losses: deque[Loss] = deque()
        self.history: deque[Loss] = deque()
        # By host: an epoch, the one after it, and what the flows are called there.
        self._moved: dict[str, tuple[int, int, Mapping[int, int]]] = {}

    def add(self, losses: list[Loss]) -> None:
        """Of one report, the newest."""
        self.losses.extend(losses)
        self.history.extend(losses)

    def renumber(self, host: str, epoch: int, after: int, flows: Mapping[int, int]) -> None:
        """A host counts its flows anew from `after` on. flows : new number by old one; those that are gone have none.
        Of a host that does it again before `forget` only what it has told last is kept.
        """
        self._moved[host] = epoch, after, flows

    def forget(self, now_s: float) -> None:
        """What is too old, and what flows have lost that are no more."""
        for kept in (self.losses, self.history):
            while kept and now_s - kept[0].at_s > self._keep_s:
                kept.popleft()
        if self._moved:
            self.losses = deque(filter(None, map(self._renumbered, self.losses)))
            self.history = deque(filter(None, map(self._renumbered, self.history)))
            self._moved.clear()

    def _renumbered(self, loss: Loss) -> Loss | None:
        if loss.host not in self._moved:
            return loss
        before, after, flows = self._moved[loss.host]
        if loss.epoch == after:
            return loss
        if loss.epoch != before or loss.flow not in flows:
            return None
        return loss._replace(flow=flows[loss.flow], epoch=after)

    def drop_mended(self, now_s: float) -> None:
        """Losses of flows that used to lose often and have not for long: what they say is over."""
        seen: dict[tuple[str, int], tuple[int, float, float]] = {}
        for loss in self.losses:
            key = loss.host, loss.flow
            count, first, _ = seen.get(key, (0, loss.at_s, loss.at_s))
            seen[key] = count + 1, first, loss.at_s
        mended = {
            flow
            for flow, (count, first, last) in seen.items()
            if count >= _OFTEN and now_s - last > _MENDED_S + 5 * (last - first) / (count - 1)
        }
        if mended:
            self.losses = deque(loss for loss in self.losses if (loss.host, loss.flow) not in mended)


@dataclass(frozen=True)
class LossTable:
    """Losses as columns, in order of time. flow : as the fleet's table of flows counts them. sent, lost : packets."""

    at_s: Floats
    flow: Flows
    sent: Floats
    lost: Floats

    def _since(self, at_s: float) -> int:
        return int(np.searchsorted(self.at_s, at_s))

    def observed(
        self, rate: NDArray[np.float32], now_s: float, window_s: float
    ) -> tuple[Flows, Floats, Floats]:
        """Of a window, the flows that lost packets, ascending, how many, and of how many. rate : of all flows."""
        start = self._since(now_s - window_s)
        flows, number = np.unique(self.flow[start:], return_inverse=True)
        lost = np.bincount(number, self.lost[start:], len(flows)).astype(float)
        told = np.bincount(number, self.sent[start:], len(flows))
        # Reports without a loss do not say what was sent; the rate does.
        return flows, lost, np.maximum(told, rate[flows] * window_s).astype(float)

    def flows_since(self, at_s: float) -> set[int]:
        """That have lost packets."""
        return set(self.flow[self._since(at_s) :].tolist())

    def moments(self, table: FlowTable, at_s: float, component: int, others: set[int]) -> Floats:
        """Since then, when flows that cross the component, and are none of the others, have lost packets; ascending."""
        start = self._since(at_s)
        flows = self.flow[start:]
        crosses = np.isin(flows, list(others), invert=True)
        crosses &= np.logical_or.reduce([column == component for column in table.shared(flows)])
        return self.at_s[start:][crosses]

    def dead(self, at_s: float) -> frozenset[int]:
        """Flows of which nothing arrived in the last report that told of a loss, since then."""
        start = self._since(at_s)
        flows, last = np.unique(self.flow[start:][::-1], return_index=True)
        newest = len(self.flow) - 1 - last
        return frozenset(flows[self.lost[newest] >= 0.99 * self.sent[newest]].tolist())
