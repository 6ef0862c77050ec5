"""An order and a choice as JSON documents. Pure."""

from typing import Any

from fabricpulse.placement.choose import Choice
from fabricpulse.placement.cost import TIERS
from fabricpulse.placement.fabric import Fabric, Place
from fabricpulse.placement.formats.ranks import HostRanks, by_rank
from fabricpulse.placement.order import Order, Problem, Score
from fabricpulse.placement.places import notes


def order_document(problem: Problem, order: Order, hosts: list[HostRanks]) -> dict[str, Any]:
    """What `placement order` found. Bytes are of one step; cost is bytes times weights."""
    return {
        "ranks": [
            {"rank": rank, "host": host, "gpu": gpu} for rank, (host, gpu) in enumerate(by_rank(hosts))
        ],
        "hosts": [_place(each.place) | {"ranks": list(each.ranks)} for each in hosts],
        "improved": order.improved,
        "complete": order.complete,
        "seed": problem.seed,
        "weights": dict(zip(TIERS, problem.weights.array().tolist(), strict=True)),
        "by_name": _score(order.before),
        "order": _score(order.after),
        "random": {"cost": order.random_cost},
        "gain": {
            "by_name": ratio(order.before.cost, order.after.cost),
            "random": ratio(order.random_cost, order.after.cost),
        },
        "notes": order_notes(problem.fabric, order),
    }


def choice_document(choice: Choice, of: int, more: list[str]) -> dict[str, Any]:
    """What `placement choose` found. of : hosts there were to choose from. more : notes."""
    return {
        "hosts": [_place(place) for place in choice.hosts],
        "leaves": choice.leaves,
        "pods": choice.pods,
        "left_on_split_leaves": choice.split,
        "free": of,
        "notes": more,
    }


def ratio(before: float, after: float) -> float | None:
    """How many times cheaper; 1 where both cost nothing, None where only the latter does."""
    if after > 0:
        return before / after
    return 1.0 if before <= 0 else None


def order_notes(fabric: Fabric, order: Order) -> list[str]:
    """Notes that belong to the figures."""
    found = notes(fabric.places)
    if not order.improved:
        found.append("nothing cheaper than the order of names was found: that is the answer")
    if not order.complete:
        found.append("the time was over before the search was: more --seconds may find a cheaper order")
    return found


def _score(score: Score) -> dict[str, Any]:
    return {
        "cost": score.cost,
        "bytes": dict(zip(TIERS, score.tiers.tolist(), strict=True)),
        "bytes_by_rail": score.rails.tolist(),
        "cross_rail_bytes": score.cross_rail,
    }


def _place(place: Place) -> dict[str, Any]:
    return {
        "host": place.host,
        "leaves": list(dict.fromkeys(place.leaves)),
        "pods": [pod for pod in dict.fromkeys(place.pods) if pod],
        "known": place.known,
    }
