"""Packets of which nobody would have said that they were lost. Pure."""

from dataclasses import dataclass

import numpy as np

from fabricpulse.diagnosis.flows.flow_table import Floats, Flows


@dataclass(frozen=True)
class Unseen:
    """Of a window. flows : ascending. packets : of each, that count neither as lost nor as received."""

    flows: Flows
    packets: Floats

    def of(self, flows: Flows) -> Floats:
        """Packets of each of these flows."""
        if not len(self.flows):
            return np.zeros(len(flows))
        at = np.minimum(np.searchsorted(self.flows, flows), len(self.flows) - 1)
        return np.where(self.flows[at] == flows, self.packets[at], 0.0)

    def beside_which(self, flows: Flows, packets: Floats) -> "Unseen":
        """With all packets of these flows, too, ascending."""
        if not len(flows):
            return self
        rest = self.beside(flows)
        every = np.concatenate([rest.flows, flows])
        order = np.argsort(every)
        return Unseen(every[order], np.concatenate([rest.packets, packets])[order])

    def at_least(self, other: "Unseen") -> "Unseen":
        """Of each flow of either the larger number of packets."""
        if not len(other.flows):
            return self
        flows = np.union1d(self.flows, other.flows)
        return Unseen(flows, np.maximum(self.of(flows), other.of(flows)))

    def beside(self, flows: Flows) -> "Unseen":
        """Without these flows."""
        rest = ~np.isin(self.flows, flows)
        return Unseen(self.flows[rest], self.packets[rest])


NOTHING_UNSEEN = Unseen(np.zeros(0, np.int64), np.zeros(0))
