"""What the tree is made from: NICs, and the smallest two-way delays between some of them. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Fewer round trips than that have hardly met a moment without queues.
LEAST_SAMPLES = 200


def by_name(name: str) -> list[tuple[int, str]]:
    """The order of names that people use: gpu-9 before gpu-10."""
    parts = re.split("([0-9]+)", name)
    return [(int(part), "") if index % 2 else (-1, part) for index, part in enumerate(parts)]


@dataclass(frozen=True, slots=True)
class NicFacts:
    """What is known of a NIC without any measurement.

    rail : its network. leaf : declared, "" for unknown. virtual : its host is a virtual machine; None for unknown.
    """

    host: str
    device: str
    rail: str = ""
    leaf: str = ""
    virtual: bool | None = None

    @property
    def name(self) -> str:
        """As everywhere in the diagnosis."""
        return f"{self.host}/{self.device}"


@dataclass(frozen=True)
class Delays:
    """Pairs of NICs, one row each.

    a, b : numbers of the NICs, a < b. two_way_ns : the smallest sum of both directions, without the time that a host
    kept the packet: the offset of the clocks cancels. samples : round trips that it is the smallest of.
    """

    a: Ints
    b: Ints
    two_way_ns: Floats
    samples: Ints

    def __len__(self) -> int:
        return len(self.a)

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, float, int]], nics: Sequence[NicFacts]) -> "Delays":
        """From rows (a, b, two-way ns, samples) in any order: of a pair that comes several times the smallest delay
        and all samples are kept. Rows of one host, of few samples, or without a finite delay are left out.
        """
        table = np.array([(float(a), float(b), ns, float(n)) for a, b, ns, n in rows]).reshape(-1, 4)
        return cls.from_arrays(
            table[:, 0].astype(np.int64),
            table[:, 1].astype(np.int64),
            table[:, 2],
            table[:, 3].astype(np.int64),
            nics,
        )

    @classmethod
    def from_arrays(
        cls, a: Ints, b: Ints, two_way_ns: Floats, samples: Ints, nics: Sequence[NicFacts]
    ) -> "Delays":
        """The same from columns."""
        hosts: dict[str, int] = {}
        host = np.array([hosts.setdefault(nic.host, len(hosts)) for nic in nics], np.int64)
        fit = np.isfinite(two_way_ns) & (a != b)
        fit[fit] &= host[a[fit]] != host[b[fit]]
        low, high = np.minimum(a, b)[fit], np.maximum(a, b)[fit]
        pairs, which = np.unique(low * max(len(nics), 1) + high, return_inverse=True)
        least = np.full(len(pairs), np.inf)
        np.minimum.at(least, which, two_way_ns[fit])
        count = np.zeros(len(pairs), np.int64)
        np.add.at(count, which, samples[fit])
        enough = count >= LEAST_SAMPLES
        first, second = np.divmod(pairs[enough], max(len(nics), 1))
        return cls(first, second, least[enough], count[enough])
