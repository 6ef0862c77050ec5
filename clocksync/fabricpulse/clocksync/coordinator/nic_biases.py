"""By how much the stamps of each NIC are off from those of its host's other NICs. Pure.

All NICs of a host show one clock, but each stamps as late as its driver, its queues and its interrupts make it. An edge
measures the difference of the biases at its ends; the persistent part of its residual, given the host clocks by all
edges, is learned NIC by NIC, and subtracted from the measurements before the next solve. So few edges of each NIC are
enough, and a NIC that dies moves no clock. Biases of a host add up to zero: a bias that its NICs have in common cannot
be distinguished from its clock, and neither can that of a host with one NIC. The bound does not depend on this: it
rests on what was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.solve.graph_solve import Edges, Solution

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Hashes = NDArray[np.uint64]

# How much of what the residuals of one solve say is taken.
_GAIN = 0.1
# Whatever is more is no late stamp but another clock, which outliers and contradictions tell of.
_MOST_NS = 2_000.0


@dataclass(frozen=True)
class NicNumbers:
    """NICs by number. own, peer : of all edges of all slots (Roster.peers), the NICs at both ends. slot : per NIC, of
    its host. key : per NIC, in order; the same while host and device have their names.
    """

    own: Ints
    peer: Ints
    slot: Ints
    key: Hashes

    @classmethod
    def of(cls, own_key: Hashes, peer_key: Hashes, own_slot: Ints, peer_slot: Ints) -> "NicNumbers":
        """From the keys and slots at both ends of all edges."""
        key, first, number = np.unique(
            np.concatenate([own_key, peer_key]), return_index=True, return_inverse=True
        )
        own, peer = number[: len(own_key)], number[len(own_key) :]
        return cls(own, peer, np.concatenate([own_slot, peer_slot])[first], key)


@dataclass
class NicBiases:
    """bias_ns : of each NIC of `numbers`, how far it stamps ahead of the mean of its host's NICs."""

    numbers: NicNumbers | None = None
    bias_ns: Floats = field(default_factory=lambda: np.zeros(0))

    def follow(self, numbers: NicNumbers | None) -> None:
        """The fleet has these NICs now; None where no host has two."""
        if numbers is self.numbers:
            return
        bias = np.zeros(len(numbers.key) if numbers is not None else 0)
        if numbers is not None and self.numbers is not None and len(self.numbers.key):
            at = np.minimum(np.searchsorted(self.numbers.key, numbers.key), len(self.numbers.key) - 1)
            bias = np.where(self.numbers.key[at] == numbers.key, self.bias_ns[at], 0.0)
        self.numbers, self.bias_ns = numbers, bias

    def of_edges(self, numbers: NicNumbers | None, which: Ints) -> Floats | float:
        """What they add to what edges measure. numbers : of now. which : places of the edges among all slots'."""
        self.follow(numbers)
        if numbers is None:
            return 0.0
        added: Floats = self.bias_ns[numbers.peer[which]] - self.bias_ns[numbers.own[which]]
        return added

    def of_devices(self, numbers: NicNumbers | None, begin: int, devices: Sequence[str]) -> dict[str, float]:
        """Of one host, by device. numbers : of now. devices : of its edges, of which the first is at `begin`."""
        if numbers is None or numbers is not self.numbers or len(set(devices)) < 2:
            return {}
        nic = {device: int(numbers.own[begin + k]) for k, device in enumerate(devices)}
        return {device: float(self.bias_ns[number]) for device, number in nic.items()}

    def worst_slots(self, numbers: NicNumbers | None, count: int) -> list[int]:
        """Of the hosts of the `count` NICs with the largest biases. numbers : of now."""
        if numbers is None or numbers is not self.numbers:
            return []
        worst = np.argsort(-np.abs(self.bias_ns))[:count]
        return sorted(set(numbers.slot[worst].tolist()))

    def learn(self, which: Ints, edges: Edges, solution: Solution) -> None:
        """From a solve with edges whose places are `which`."""
        numbers = self.numbers
        if numbers is None:
            return
        counts = np.abs(solution.residual_ns) <= edges.bound_ns
        if not counts.any():
            return
        own, peer = numbers.own[which][counts], numbers.peer[which][counts]
        left = solution.residual_ns[counts] - (self.bias_ns[peer] - self.bias_ns[own])
        # What queues before a NIC hide is no bias of its: in an incast edges of one NIC are off by milliseconds.
        sigma = edges.sigma_ns[counts]
        weight = np.square(np.minimum(np.median(sigma) / sigma, 1.0))
        n = len(numbers.key)
        total = np.bincount(peer, weight * left, n) - np.bincount(own, weight * left, n)
        # One edge more, that says nothing: of a NIC with a single edge the other end may be as wrong.
        count = np.bincount(peer, weight, n) + np.bincount(own, weight, n) + 1
        bias = self.bias_ns + _GAIN * total / count
        slots = int(numbers.slot.max(initial=-1)) + 1
        mean = np.bincount(numbers.slot, bias, slots) / np.maximum(
            np.bincount(numbers.slot, minlength=slots), 1
        )
        self.bias_ns = np.clip(bias - mean[numbers.slot], -_MOST_NS, _MOST_NS)
