"""What a host remembers of neighbours that contradicted each other, or itself, while there is no coordinator.

A contradiction is seen only while those who contradict are there and have not been averaged away: a host whose last
edge is wrong soon agrees with it. So how far it may be off is remembered, until all witnesses have been there and have
agreed for some seconds, by what edges can hide: bounds soon are so wide that nothing contradicts. A witness that is
silent is missed for ten minutes. One neighbour alone confirms nothing. As coordinator.doubted_hosts does for a fleet.
Pure: time is passed in.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

_WHOLE_S = 3.0
_MISSED_S = 600.0
# Of fewer neighbours none can contradict.
_FEWEST = 2


@dataclass(frozen=True)
class NeighbourDoubt:
    """doubt_ns : how far the host may be off. witnesses : neighbour -> when it was last there, s. whole_s : since when
    all of them have been there and have agreed; None while that is not so.
    """

    doubt_ns: float
    witnesses: Mapping[str, float]
    whole_s: float | None = None


def remember(
    doubt: NeighbourDoubt | None, doubt_ns: float, there: Collection[str], now_s: float, *, agreed: bool
) -> NeighbourDoubt | None:
    """What is remembered after a round; None for nothing. doubt_ns : what this round says, 0 where nothing contradicts.
    there : neighbours that have said something in it. agreed : all of them with the host.
    """
    if doubt is None and doubt_ns <= 0:
        return None
    before = doubt if doubt is not None else NeighbourDoubt(0.0, {})
    names = (*before.witnesses, *there) if doubt_ns > 0 else before.witnesses
    witnesses = {name: now_s if name in there else before.witnesses[name] for name in names}
    witnesses = {name: seen_s for name, seen_s in witnesses.items() if now_s - seen_s <= _MISSED_S}
    whole_s = None
    if agreed and len(there) >= _FEWEST and all(name in there for name in witnesses):
        whole_s = before.whole_s if before.whole_s is not None else now_s
        if now_s - whole_s >= _WHOLE_S:
            return None
    return NeighbourDoubt(max(before.doubt_ns, doubt_ns), witnesses, whole_s)
