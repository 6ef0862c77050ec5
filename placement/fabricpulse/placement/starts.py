"""Initial orders for the search: boxes of the job's grid put into the tree one after the other, and greedy growth along
pairs with much traffic. Pure."""

from collections.abc import Callable, Iterator
from itertools import permutations, product

import numpy as np

from fabricpulse.placement.arrangement import Links
from fabricpulse.placement.fabric import Fabric, Floats, Ints, sums
from fabricpulse.placement.shape import Shape

# Blocks for which growth takes about a second.
MOST_GROWN = 8192


def boxed_orders(fabric: Fabric, shape: Shape, block: int) -> Iterator[Ints]:
    """Orders (rank by slot) that walk the grid of blocks axis by axis, and box by box.

    A box spans some blocks of each axis and has as many as a host, the commonest leaf or the commonest pod holds; boxes
    and what is in them are walked with the axes in any order. Slots are filled in tree order.
    """
    grid = _blocks(shape, block)
    axes = [axis for axis in range(4) if grid.shape[axis] > 1]
    orders = list(permutations(axes))
    for order in orders:
        yield _ranks(_walk(grid, order, dict.fromkeys(axes, 1)), block)
    for size in _capacities(fabric, block):
        divisors = [[d for d in range(1, n + 1) if n % d == 0] for n in (grid.shape[axis] for axis in axes)]
        for factors in product(*divisors):
            box = dict(zip(axes, factors, strict=True))
            if int(np.prod(factors)) == size and sum(factor > 1 for factor in factors) > 1:
                for order in orders:
                    yield _ranks(_walk(grid, order, box), block)


def _blocks(shape: Shape, block: int) -> Ints:
    """The grid of blocks: that of the shape if a block is within a tensor group; else slowest axis by the two others,
    or a line."""
    if shape.tensor % block == 0:
        return shape.grid()[..., ::block] // block
    slowest = shape.pipeline if shape.order == "tp-dp-pp" else shape.data
    blocks = np.arange(shape.ranks // block, dtype=np.int32)
    return blocks.reshape(slowest if shape.ranks // slowest % block == 0 else 1, 1, 1, -1)


def _capacities(fabric: Fabric, block: int) -> list[int]:
    """Blocks of the commonest host, leaf and pod, without 1."""
    found: dict[int, None] = {}
    for column in (fabric.host, fabric.leaf, fabric.pod):
        sizes, times = np.unique(np.unique(column, return_counts=True)[1], return_counts=True)
        found[int(sizes[np.argmax(times)]) // block] = None
    return [size for size in found if size > 1]


def _walk(grid: Ints, order: tuple[int, ...], box: dict[int, int]) -> Ints:
    """All blocks, box after box; the last axis of `order` changes fastest, between boxes and in them."""
    sizes: list[int] = []
    for axis in range(4):
        size = box.get(axis, 1)
        sizes += [grid.shape[axis] // size, size]
    fixed = [axis for axis in range(4) if axis not in order]
    outer, inner = ([2 * axis + part for axis in (*fixed, *order)] for part in (0, 1))
    return grid.reshape(sizes).transpose([*outer, *inner]).ravel()


def _ranks(blocks: Ints, block: int) -> Ints:
    ranks = blocks[:, None] * block + np.arange(block, dtype=np.int32)
    return ranks.astype(np.int32).ravel()


def grown_order(
    fabric: Fabric, links: Links, weights: Floats, block: int, stopped: Callable[[], bool]
) -> Ints | None:
    """Fills slots in tree order, each with the block that exchanges most with those already near; ties: the lowest.

    None: it was stopped. Time grows with the square of the number of blocks.
    """
    count = fabric.slots // block
    tail, head = links.source // block, links.target // block
    keys, where = np.unique(tail.astype(np.int64) * count + head, return_inverse=True)
    size = sums(where, links.size, len(keys))
    head = (keys % count).astype(np.int32)
    begin = np.searchsorted(keys // count, np.arange(count + 1))
    near = [np.zeros(count) for _ in range(3)]
    columns = (fabric.host, fabric.leaf, fabric.pod)
    saved = weights[1:] - weights[:-1]
    here = [-1, -1, -1]
    free = np.ones(count, dtype=bool)
    order = np.empty(count, dtype=np.int32)
    for position in range(count):
        if position % 256 == 0 and stopped():
            return None
        for tier, column in enumerate(columns):
            if (place := int(column[position * block])) != here[tier]:
                here[tier] = place
                near[tier][:] = 0
        score = saved[0] * near[0] + saved[1] * near[1] + saved[2] * near[2]
        score[~free] = -1
        chosen = int(np.argmax(score))
        order[position] = chosen
        free[chosen] = False
        pairs = slice(begin[chosen], begin[chosen + 1])
        for each in near:
            each[head[pairs]] += size[pairs]
    return _ranks(order, block)
