"""Which of the ends of a branch are groups. Pure.

Only pairs are measured, so that the tree has no root. One branch that parts the fabric in two is seen from both sides
alike: a longer term of all NICs on one side and a shorter one of all on the other changes no pair between the two. The
search takes one side for a group of leaves and the leaves of the other side for its like, as if they hung on the top.
"""

from collections.abc import Sequence

import numpy as np

from fabricpulse.diagnosis.tree.levels import Kind
from fabricpulse.diagnosis.tree.measured import Ints


def other_end(
    parents: Sequence[int], offsets: Sequence[float], kinds: Sequence[Kind], group_of: Ints
) -> tuple[list[int], list[float], Ints]:
    """The same tree where one pod and several leaves are below the whole: those leaves are in a pod, too, the pairs of
    which are of the class of the whole. Otherwise as it was.
    """
    top = [number for number, parent in enumerate(parents) if parent == 0]
    leaves = [number for number in top if kinds[number] is Kind.LEAF]
    if len(top) - len(leaves) != 1 or len(leaves) < 2 or [kinds[n] for n in top].count(Kind.POD) != 1:
        return list(parents), list(offsets), group_of
    # A parent comes before what is below: the new one is the first after the whole.
    up = [-1, 0, *(1 if n in leaves else _moved(parent) for n, parent in enumerate(parents) if n)]
    moved = np.array([_moved(number) for number in range(len(parents))])
    return up, [offsets[0], offsets[0], *offsets[1:]], moved[group_of]


def _moved(number: int) -> int:
    return number + 1 if number > 0 else number
