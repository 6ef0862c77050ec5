"""The assignment of blocks of ranks to slots: the gain of a swap, and swaps. Pure.

A block is a run of consecutive ranks that stay together on one host, or on several whole hosts. Blocks on a host are in
the order of their ranks, because launchers number the processes of a host so (SLURM_LOCALID,
OMPI_COMM_WORLD_LOCAL_RANK).
"""

from dataclasses import dataclass

import numpy as np

from fabricpulse.placement.cost import tiers
from fabricpulse.placement.fabric import Fabric, Floats, Ints, sums
from fabricpulse.placement.traffic import Traffic


@dataclass(frozen=True)
class Links:
    """Traffic as pairs in both directions, those within a block left out: rank `source` exchanges `size` bytes with
    `target`. begin : of each block its first pair, and at the end the number of pairs."""

    source: Ints
    target: Ints
    size: Floats
    begin: Ints


def links_of(traffic: Traffic, block: int) -> Links:
    """block : ranks in one block; it divides the number of ranks."""
    out = traffic.source // block != traffic.target // block
    source, target, size = traffic.source[out], traffic.target[out], traffic.size[out]
    both = np.concatenate([source, target]).astype(np.int64) * traffic.ranks + np.concatenate(
        [target, source]
    )
    keys, where = np.unique(both, return_inverse=True)
    added = sums(where, np.concatenate([size, size]), len(keys))
    first = (keys // traffic.ranks).astype(np.int32)
    blocks = np.arange(traffic.ranks // block + 1) * block
    begin = np.searchsorted(first, blocks).astype(np.int32)
    return Links(first, (keys % traffic.ranks).astype(np.int32), added, begin)


def in_host_order(fabric: Fabric, rank_at: Ints) -> Ints:
    """`rank_at` (rank by slot) with the ranks of each host in ascending order."""
    return rank_at[np.lexsort((rank_at, fabric.host))]


class Arrangement:
    """An assignment that is being improved. Costs are bytes times weights, each pair of ranks counted once."""

    def __init__(self, fabric: Fabric, links: Links, weights: Floats, block: int, rank_at: Ints) -> None:
        """block : divides the GPUs of each host, or is those of some hosts. rank_at : a rank for each slot; each host
        has whole blocks."""
        self.fabric, self.links, self.weights, self.block = fabric, links, weights, block
        self.slot_of = np.empty(len(rank_at), dtype=np.int32)
        self._moving = np.zeros(len(rank_at), dtype=bool)
        self._inside = np.arange(block, dtype=np.int32)
        self._alone = block >= int(np.max(np.diff(fabric.first)))
        # Whether a block that stays on its host can come nearer to others, or farther, when its neighbour leaves.
        self.shifts = not self._alone and any(len(set(place.leaves)) > 1 for place in fabric.places)
        self.effort = 0
        self.set(rank_at)

    def set(self, rank_at: Ints) -> None:
        """Replaces the assignment."""
        rank_at = in_host_order(self.fabric, rank_at)
        self.slot_of[rank_at] = np.arange(len(rank_at), dtype=np.int32)
        self.block_at = rank_at[:: self.block] // self.block
        self.position_of = np.empty_like(self.block_at)
        self.position_of[self.block_at] = np.arange(len(self.block_at), dtype=np.int32)
        self.cost = 0.5 * float(self._costs(self.links.source, self.links.target) @ self.links.size)

    def rank_at(self) -> Ints:
        """Rank by slot."""
        found = np.empty_like(self.slot_of)
        found[self.slot_of] = np.arange(len(found), dtype=np.int32)
        return found

    def host_of(self, block: int) -> int:
        """Index of the host that a block is on, or begins on."""
        return int(self.fabric.host[self.position_of[block] * self.block])

    def neighbours(self, block: int) -> Ints:
        """Blocks that a block exchanges bytes with."""
        return np.unique(self.links.target[self._slice(block)] // self.block)

    def gains(self, block: int, positions: Ints) -> Floats:
        """By how much the cost falls if a block is swapped with the one at each of `positions` (in blocks, on other
        hosts). Exact if no other block of the two hosts changes its slot, else an approximation.
        """
        links, size = self.links, self.block
        own = self._slice(block)
        source, target, sent = links.source[own], links.target[own], links.size[own]
        now = self._costs(source, target)
        offset = source - block * size
        there = positions[:, None] * size + offset[None, :]
        moved = self.weights[tiers(self.fabric, there, self.slot_of[target][None, :])]
        gain = float(now @ sent) - moved @ sent
        others = self.block_at[positions]
        # The distance of the two stays the same; above it was taken to become 0.
        mutual = (target // size)[None, :] == others[:, None]
        gain -= ((now - moved) * mutual) @ sent
        begin, end = links.begin[others], links.begin[others + 1]
        counts = end - begin
        starts = np.cumsum(counts) - counts
        pairs = np.arange(int(counts.sum())) + np.repeat(begin - starts, counts)
        source, target = links.source[pairs], links.target[pairs]
        there = self.position_of[block] * size + source % size
        fall = self._costs(source, target) - self.weights[tiers(self.fabric, there, self.slot_of[target])]
        owner = np.repeat(np.arange(len(others)), counts)
        self.effort += 3000 + moved.size + 2 * len(pairs)
        fall[target // size == block] = 0
        return gain + sums(owner, fall * links.size[pairs], len(others))

    def swap(self, one: int, other: int, *, only_if_better: bool = True) -> bool:
        """Swaps two blocks on different hosts and sorts the two hosts; exact. False: it was not better, and nothing
        was changed."""
        blocks, places = self._moves(one, other)
        ranks = (blocks[:, None] * self.block + self._inside).ravel()
        slots = (places[:, None] * self.block + self._inside).ravel()
        pairs = np.concatenate([np.arange(*self._bounds(block)) for block in blocks])
        source, target, sent = self.links.source[pairs], self.links.target[pairs], self.links.size[pairs]
        self._moving[ranks] = True
        # A pair of two that move is listed twice.
        share = np.where(self._moving[target], 0.5, 1.0) * sent
        self._moving[ranks] = False
        before_cost = self._costs(source, target)
        old = self.slot_of[ranks]
        self.slot_of[ranks] = slots
        rise = float((self._costs(source, target) - before_cost) @ share)
        self.effort += 3000 + 4 * len(pairs)
        if only_if_better and rise >= -1e-9 * max(self.cost, 1e-300):
            self.slot_of[ranks] = old
            return False
        self.cost += rise
        self.block_at[places] = blocks
        self.position_of[blocks] = places
        return True

    def _moves(self, one: int, other: int) -> tuple[Ints, Ints]:
        """The blocks that a swap moves, and their new positions."""
        if self._alone:
            return np.array([one, other]), self.position_of[[other, one]]
        moved, positions = [], []
        for out, into in ((one, other), (other, one)):
            host = self.host_of(out)
            first, last = (int(self.fabric.first[h]) // self.block for h in (host, host + 1))
            before = self.block_at[first:last]
            after = np.sort(np.where(before == out, into, before))
            changed = np.flatnonzero(before != after)
            moved.append(after[changed])
            positions.append(first + changed)
        return np.concatenate(moved), np.concatenate(positions).astype(np.int32)

    def _costs(self, source: Ints, target: Ints) -> Floats:
        return self.weights[tiers(self.fabric, self.slot_of[source], self.slot_of[target])]

    def _bounds(self, block: int) -> tuple[int, int]:
        return int(self.links.begin[block]), int(self.links.begin[block + 1])

    def _slice(self, block: int) -> slice:
        return slice(*self._bounds(block))
