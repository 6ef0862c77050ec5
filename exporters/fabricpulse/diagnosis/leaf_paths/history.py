"""Since when a leaf has fewer next hops than its siblings. Pure."""

from collections.abc import Iterable

import msgspec

from fabricpulse.diagnosis.leaf_paths.found import MOST_HOPS, MOST_LEAVES, FewerPaths, LeafPaths, State

# Of a leaf that no path has shown for so long nothing is remembered: one that is away for a night is the same leaf.
_FORGET_S = 86_400.0
# Leaves that are remembered: the names come from reports, which may hold any.
_MOST = 16_384


class Seen(msgspec.Struct, frozen=True):
    """A leaf at a moment, by names. network : of a NIC below it, "" for unknown. As in LeafState otherwise."""

    leaf: str
    network: str
    state: State
    hops: frozenset[str]
    expected: int
    siblings: int
    missing: tuple[str, ...]


class _Leaf:
    def __init__(self, now_s: float) -> None:
        self.watched_s = now_s
        self.seen_s = now_s
        self.whole_s: float | None = None
        self.hops: frozenset[str] = frozenset()  # as it was whole


class LeafHistory:
    """What leaves had before."""

    def __init__(self) -> None:
        self._leaves: dict[str, _Leaf] = {}

    def update(self, leaves: Iterable[Seen], now_s: float) -> LeafPaths:
        """Takes in what is seen now. `unknown` changes nothing of what is remembered, and ends what was reported."""
        counts = dict.fromkeys(State, 0)
        fewer = []
        for seen in leaves:
            counts[seen.state] += 1
            if seen.state is State.UNKNOWN:
                if seen.leaf in self._leaves:
                    self._leaves[seen.leaf].seen_s = now_s
                continue
            leaf = self._leaves.setdefault(seen.leaf, _Leaf(now_s))
            leaf.seen_s = now_s
            if seen.state is State.WHOLE:
                leaf.whole_s, leaf.hops = now_s, seen.hops
                continue
            # Where the siblings do not give a name to what is missing, what it had before may.
            missing = sorted({*seen.missing} or leaf.hops - seen.hops)[:MOST_HOPS]
            fewer.append(
                FewerPaths(
                    *(seen.leaf, seen.network, len(seen.hops), seen.expected, seen.siblings),
                    *(tuple(missing), leaf.whole_s, leaf.watched_s),
                )
            )
        self._leaves = {n: leaf for n, leaf in self._leaves.items() if now_s - leaf.seen_s <= _FORGET_S}
        if len(self._leaves) > _MOST:
            latest = sorted(self._leaves.items(), key=lambda item: item[1].seen_s, reverse=True)
            self._leaves = dict(latest[:_MOST])
        fewer.sort(key=lambda one: (one.live / one.expected, one.leaf))
        return LeafPaths(
            counts[State.WHOLE], counts[State.FEWER], counts[State.UNKNOWN], tuple(fewer[:MOST_LEAVES])
        )
