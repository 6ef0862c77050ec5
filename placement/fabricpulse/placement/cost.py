"""What an order costs: bytes times the switch links that they cross (hop-bytes). Pure.

The measure is that of Agarwal, Sharma and Kalé, "Topology-aware task mapping for reducing communication contention on
large parallel machines", IPDPS 2006. docs/decisions/0029 says why, and what it does not see.
"""

from dataclasses import dataclass

import numpy as np

from fabricpulse.core.errors import UserError
from fabricpulse.placement.fabric import Fabric, Floats, Ints, sums
from fabricpulse.placement.traffic import Traffic

# How far apart two GPUs are: on one host, below one leaf, in one pod, farther.
TIERS = ("host", "leaf", "pod", "beyond")


@dataclass(frozen=True)
class Weights:
    """Cost of a byte by the tier it crosses. The default is the number of links between NICs and switches: none on a
    host (NVLink), two by one leaf, four by a spine, six by a core switch."""

    host: float = 0.0
    leaf: float = 2.0
    pod: float = 4.0
    beyond: float = 6.0

    def array(self) -> Floats:
        """In the order of TIERS. Raises UserError: a farther tier is cheaper, or a number is absurd."""
        found = np.array([self.host, self.leaf, self.pod, self.beyond], dtype=np.float64)
        if not np.all(np.isfinite(found)) or found[0] < 0 or found[3] > 1e6 or np.any(np.diff(found) < 0):
            listed = ", ".join(f"{tier} {weight:g}" for tier, weight in zip(TIERS, found, strict=True))
            raise UserError(
                f"placement: weights {listed}: none may be negative, above 1e6 or less than that of a nearer tier"
            )
        return found


def tiers(fabric: Fabric, a: Ints, b: Ints) -> Ints:
    """The index in TIERS of each pair of slots. a and b are broadcast against one another."""
    apart = 3 - (fabric.pod[a] == fabric.pod[b]).astype(np.int32) - (fabric.leaf[a] == fabric.leaf[b])
    return np.where(fabric.host[a] == fabric.host[b], 0, apart).astype(np.int32)


def tier_bytes(fabric: Fabric, traffic: Traffic, slot_of: Ints) -> Floats:
    """Bytes a step over each of TIERS. slot_of : of each rank."""
    across = tiers(fabric, slot_of[traffic.source], slot_of[traffic.target])
    return sums(across, traffic.size, len(TIERS))


def rail_bytes(fabric: Fabric, traffic: Traffic, slot_of: Ints) -> tuple[Floats, float]:
    """Bytes a step that leave hosts, by the index of the GPU on its host, and how many of them arrive at a GPU with
    another index: those cross rails."""
    source, target = slot_of[traffic.source], slot_of[traffic.target]
    out = fabric.host[source] != fabric.host[target]
    index = np.arange(fabric.slots) - fabric.first[fabric.host]
    sizes = traffic.size[out]
    crossing = float(sizes[index[source[out]] != index[target[out]]].sum())
    return sums(index[source[out]], sizes, int(index.max()) + 1), crossing
