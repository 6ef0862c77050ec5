"""Local search: blocks change places while that makes the order cheaper. Pure, and the same for the same seed.

The amount of work is bounded in pairs of ranks that were compared, not in seconds, so that a slow machine finds what a
fast one does; `stopped` is the caller's clock and ends it earlier.
"""

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from fabricpulse.placement.arrangement import Arrangement
from fabricpulse.placement.fabric import Ints

# Candidate positions evaluated for one block, and the number of leaves that they are on.
_POSITIONS = 64
_LEAVES = 3
_TRIED = 3
_PERTURBATIONS = 40
# With so few blocks every second perturbation is a random order.
_FEW = 16


class Search:
    """Improves arrangements of one fabric."""

    def __init__(
        self, arrangement: Arrangement, random: np.random.Generator, stopped: Callable[[], bool]
    ) -> None:
        self._now, self._random, self._stopped = arrangement, random, stopped
        fabric = arrangement.fabric
        # Hosts below the same leaf are neighbours in tree order. Of each such run the first position, and at the end
        # the number of positions; where a block fills a leaf, runs are pods.
        self._run_begin = fabric.leaf_begin // arrangement.block
        if np.max(np.diff(self._run_begin)) < 2:
            self._run_begin = fabric.pod_begin // arrangement.block
        self._run_of = np.repeat(np.arange(len(self._run_begin) - 1), np.diff(self._run_begin))

    def descend(self, most_effort: int, first: Iterable[int] | None = None) -> bool:
        """Swaps blocks until no known swap lowers the cost. first : blocks to begin with; None for all, in random
        order. False: the limit of work or time was reached first."""
        now = self._now
        if first is None:
            first = self._random.permutation(len(now.block_at)).tolist()
        queue = deque(first)
        queued = set(queue)
        limit = now.effort + most_effort
        while queue:
            if now.effort > limit or self._stopped():
                return False
            block = queue.popleft()
            queued.discard(block)
            if (other := self._improve(block)) is None:
                continue
            for again in (block, other, *now.neighbours(block).tolist()[:64]):
                if again not in queued:
                    queue.append(again)
                    queued.add(again)
        return True

    def perturb(self, most_effort: int, most_perturbations: int = _PERTURBATIONS) -> bool:
        """Swaps a few blocks at random and descends again; keeps what is not worse. Ends after `most_perturbations`
        without a gain. False: as descend."""
        now = self._now
        limit = now.effort + most_effort
        count = len(now.block_at)
        idle = 0
        while idle < most_perturbations:
            if now.effort > limit or self._stopped():
                return False
            kept, cost = now.rank_at(), now.cost
            touched = self._shuffle() if count <= _FEW and idle % 2 else self._random_swaps(count)
            idle += 1
            if not touched:
                continue
            done = self.descend(limit - now.effort, touched)
            if now.cost < cost * (1 - 1e-9):
                idle = 0
            elif now.cost > cost * (1 + 1e-12):
                now.set(kept)
            if not done:
                return False
        return True

    def _shuffle(self) -> list[int]:
        now = self._now
        blocks = self._random.permutation(len(now.block_at))
        now.set((blocks[:, None] * now.block + np.arange(now.block)).ravel().astype(np.int32))
        return [int(block) for block in blocks]

    def _random_swaps(self, count: int) -> list[int]:
        touched: list[int] = []
        for _ in range(int(self._random.integers(2, 5))):
            one, other = (int(block) for block in self._random.integers(0, count, 2))
            if self._now.host_of(one) != self._now.host_of(other):
                self._now.swap(one, other, only_if_better=False)
                touched += [one, other]
        return list(dict.fromkeys(touched))

    def _improve(self, block: int) -> int | None:
        """Makes the best swap of a block, if one lowers the cost. Returns the other block."""
        positions = self._candidates(block)
        if not len(positions):
            return None
        gains = self._now.gains(block, positions)
        # Of few blocks all are tried: a gain is not exact where blocks of a host shift to other rails.
        few = len(self._now.block_at) <= _POSITIONS
        for index in np.argsort(-gains, kind="stable")[: None if few else _TRIED]:
            if gains[index] <= 0 and not (few and self._now.shifts):
                return None
            other = int(self._now.block_at[positions[index]])
            if self._now.swap(block, other):
                return other
        return None

    def _candidates(self, block: int) -> Ints:
        """Positions on other hosts below the leaves with which a block exchanges most, and some of them if many."""
        now = self._now
        if len(now.block_at) <= _POSITIONS:
            positions = np.arange(len(now.block_at))
        else:
            pairs = slice(int(now.links.begin[block]), int(now.links.begin[block + 1]))
            if pairs.start == pairs.stop:
                return np.empty(0, dtype=np.int32)
            runs, where = np.unique(
                self._run_of[now.slot_of[now.links.target[pairs]] // now.block], return_inverse=True
            )
            sent = np.bincount(where, weights=now.links.size[pairs])
            near = runs[np.argsort(-sent, kind="stable")[:_LEAVES]]
            positions = np.concatenate(
                [np.arange(self._run_begin[run], self._run_begin[run + 1]) for run in near]
            )
        others: Ints = positions[now.fabric.host[positions * now.block] != now.host_of(block)].astype(
            np.int32
        )
        if len(others) > _POSITIONS:
            others = self._random.choice(others, _POSITIONS, replace=False)
        return others
