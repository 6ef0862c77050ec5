"""A rank order for a job on hosts, compared with the order of names. Pure but for the caller's clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd

import numpy as np

from fabricpulse.core.errors import OptionError
from fabricpulse.placement.arrangement import Arrangement, in_host_order, links_of
from fabricpulse.placement.cost import Weights, rail_bytes, tier_bytes
from fabricpulse.placement.fabric import Fabric, Floats, Ints
from fabricpulse.placement.search import Search
from fabricpulse.placement.shape import Shape
from fabricpulse.placement.starts import MOST_GROWN, boxed_orders, grown_order
from fabricpulse.placement.traffic import Traffic, traffic_of

# Pairs of ranks that are compared at most: some 4 s of one core.
EFFORT = 60_000_000
_RANDOM_ORDERS = 5
_BEST_STARTS = 3

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Problem:
    """A job to be placed.

    traffic : of as many ranks as the fabric has slots. shape : of the job, None if only a matrix is known. contiguous :
    each host keeps as many consecutive ranks as it has GPUs, as torchrun numbers them. seed : of the search. effort :
    pairs of ranks that it compares at most.
    """

    fabric: Fabric
    traffic: Traffic
    shape: Shape | None = None
    weights: Weights = field(default_factory=Weights)
    contiguous: bool = False
    seed: int = 1
    effort: int = EFFORT

    def block(self) -> int:
        """How many consecutive ranks stay together: as much of a tensor group as each host holds whole. Raises
        OptionError."""
        gpus = [place.gpus for place in self.fabric.places]
        if self.contiguous:
            if len(set(gpus)) > 1:
                raise OptionError("contiguous ranks need hosts with the same number of GPUs each")
            return gpus[0]
        return gcd(self.shape.tensor if self.shape else 1, *gpus)


@dataclass(frozen=True)
class Score:
    """What an order costs. tiers : bytes a step over each of cost.TIERS. rails : bytes a step that leave hosts, by the
    GPU's index on its host. cross_rail : how many of them arrive at another index."""

    cost: float
    tiers: Floats
    rails: Floats
    cross_rail: float


@dataclass(frozen=True)
class Order:
    """The result.

    slot_of : of each rank. before : ranks in the order of names. random_cost : mean of hosts in random order. improved
    : False where nothing cheaper than the order of names was found, which is the result then. complete : False where
    the time limit ended the search, so that a faster machine may find another order.
    """

    slot_of: Ints
    before: Score
    after: Score
    random_cost: float
    improved: bool
    complete: bool


def place(problem: Problem, stopped: Callable[[], bool], progress: Progress = lambda _: None) -> Order:
    """The cheapest order that is found. stopped : True once the time is over. Never dearer than the order of names.

    Raises OptionError: other numbers of ranks and GPUs.
    """
    fabric, traffic = problem.fabric, problem.traffic
    weights = problem.weights.array()
    if traffic.ranks != fabric.slots:
        hosts = len(fabric.places)
        raise OptionError(
            f"the job has {traffic.ranks} ranks and the {hosts} hosts have {fabric.slots} GPUs: "
            "both must be the same; `placement choose` takes hosts for a job"
        )
    named = np.empty(fabric.slots, dtype=np.int32)
    named[fabric.slots_by_name()] = np.arange(fabric.slots, dtype=np.int32)
    before = score(fabric, traffic, weights, _slots(named))
    found, complete = _search(problem, weights, named, stopped, progress)
    after = score(fabric, traffic, weights, _slots(found))
    canonical = _canonical(fabric, found)
    canonical_score = score(fabric, traffic, weights, _slots(canonical))
    if canonical_score.cost <= after.cost * (1 + 1e-12):
        found, after = canonical, canonical_score
    improved = after.cost < before.cost * (1 - 1e-9)
    return Order(
        slot_of=_slots(found if improved else named),
        before=before,
        after=after if improved else before,
        random_cost=_random_cost(problem, weights),
        improved=improved,
        complete=complete,
    )


def score(fabric: Fabric, traffic: Traffic, weights: Floats, slot_of: Ints) -> Score:
    """What an order costs. slot_of : of each rank."""
    tiers = tier_bytes(fabric, traffic, slot_of)
    return Score(float(tiers @ weights), tiers, *rail_bytes(fabric, traffic, slot_of))


def _slots(rank_at: Ints) -> Ints:
    found = np.empty_like(rank_at)
    found[rank_at] = np.arange(len(rank_at), dtype=np.int32)
    return found


def _canonical(fabric: Fabric, rank_at: Ints) -> Ints:
    """`rank_at` with interchangeable hosts in the order of their ranks, then leaves of a pod, then pods: the order that
    users expect, independent of the seed. Hosts below the same leaves cost the same in any order, leaves and pods do
    unless they share some rails."""
    gpus = [place_.gpus for place_ in fabric.places]
    begins = (fabric.first, fabric.leaf_begin, fabric.pod_begin)
    for level, inner in enumerate(begins):
        outer = begins[level + 1] if level < 2 else np.array([0, fabric.slots])
        alike: dict[tuple[object, ...], list[tuple[int, int]]] = {}
        for first, last in pairwise(inner.tolist()):
            above = int(np.searchsorted(outer, first, side="right"))
            hosts = tuple(gpus[fabric.host[first] : fabric.host[last - 1] + 1])
            in_group = (fabric.leaf_begin >= first) & (fabric.leaf_begin < last)
            leaves = tuple(fabric.leaf_begin[in_group] - first) if level == 2 else ()
            alike.setdefault((above, hosts, leaves), []).append((first, last))
        found = rank_at.copy()
        for runs in alike.values():
            held = sorted((rank_at[first:last] for first, last in runs), key=lambda ranks: int(ranks.min()))
            for (first, last), ranks in zip(runs, held, strict=True):
                found[first:last] = ranks
        rank_at = found
    return rank_at


def _search(
    problem: Problem, weights: Floats, named: Ints, stopped: Callable[[], bool], progress: Progress
) -> tuple[Ints, bool]:
    """The best order (rank by slot), and whether the search ended before the time limit."""
    block = problem.block()
    random = np.random.default_rng(problem.seed)
    progress("starting orders")
    starts = _starts(problem, weights, named, block, stopped)
    best, best_cost = starts[0][1], starts[0][0]
    links = links_of(problem.traffic, block)
    effort = problem.effort // (len(starts) + 1)
    for number, (_, start) in enumerate(starts, 1):
        progress(f"search {number} of {len(starts)}")
        arrangement = Arrangement(problem.fabric, links, weights, block, start)
        Search(arrangement, random, stopped).descend(effort)
        order = _move_hosts_and_leaves(problem, weights, arrangement.rank_at(), random, effort // 4, stopped)
        cost = _cost(problem, weights, order)
        if cost < best_cost:
            best, best_cost = order, cost
    progress("perturbations")
    arrangement = Arrangement(problem.fabric, links, weights, block, best)
    Search(arrangement, random, stopped).perturb(effort)
    return arrangement.rank_at(), not stopped()


def _starts(
    problem: Problem, weights: Floats, named: Ints, block: int, stopped: Callable[[], bool]
) -> list[tuple[float, Ints]]:
    """The best starting orders with their costs, the cheapest first."""
    fabric, traffic = problem.fabric, problem.traffic
    found: dict[float, Ints] = {}

    def evaluate(order: Ints) -> None:
        order = in_host_order(fabric, order)
        found.setdefault(_cost(problem, weights, order), order)

    evaluate(np.arange(fabric.slots, dtype=np.int32))
    evaluate(named)
    evaluated = 0
    if problem.shape is not None:
        for order in boxed_orders(fabric, problem.shape, block):
            evaluate(order)
            evaluated += 3000 + len(traffic.size)
            if evaluated > problem.effort // 3 or stopped():
                break
    if fabric.slots // block <= MOST_GROWN and not stopped():
        grown = grown_order(fabric, links_of(traffic, block), weights, block, stopped)
        if grown is not None:
            evaluate(grown)
    return sorted(found.items(), key=lambda item: item[0])[:_BEST_STARTS]


def _move_hosts_and_leaves(
    problem: Problem,
    weights: Floats,
    order: Ints,
    random: np.random.Generator,
    effort: int,
    stopped: Callable[[], bool],
) -> Ints:
    """`order` after a search that swaps whole hosts, then whole leaves, where all of them are of one size."""
    fabric = problem.fabric
    last = problem.block()
    for begins in (fabric.first, fabric.leaf_begin):
        sizes = np.diff(begins)
        size = int(sizes[0])
        if len(sizes) < 2 or np.any(sizes != size) or size == last:
            continue
        last = size
        # Ranks by the slots that they are on now, so that those of a host are neighbours.
        slots = _slots(order)
        relabelled = traffic_of(
            fabric.slots,
            slots[problem.traffic.source],
            slots[problem.traffic.target],
            problem.traffic.size,
        )
        identity = np.arange(fabric.slots, dtype=np.int32)
        arrangement = Arrangement(fabric, links_of(relabelled, size), weights, size, identity)
        Search(arrangement, random, stopped).descend(effort)
        order = order[arrangement.rank_at()]
    return order


def _cost(problem: Problem, weights: Floats, rank_at: Ints) -> float:
    return float(tier_bytes(problem.fabric, problem.traffic, _slots(rank_at)) @ weights)


def _random_cost(problem: Problem, weights: Floats) -> float:
    """Mean cost of ranks assigned to hosts in random order."""
    fabric = problem.fabric
    random = np.random.default_rng(problem.seed)
    costs = []
    for _ in range(_RANDOM_ORDERS):
        hosts = random.permutation(len(fabric.places))
        slots = np.concatenate([np.arange(fabric.first[h], fabric.first[h + 1]) for h in hosts])
        costs.append(float(tier_bytes(fabric, problem.traffic, slots.astype(np.int32)) @ weights))
    return float(np.mean(costs))
