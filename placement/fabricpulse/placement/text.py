"""An order and a choice as text for a terminal. Pure."""

from collections.abc import Iterator

from fabricpulse.core.fleet.host_list import fold
from fabricpulse.core.output import human_bytes, printable
from fabricpulse.placement.choose import Choice
from fabricpulse.placement.cost import TIERS
from fabricpulse.placement.fabric import Place
from fabricpulse.placement.formats.document import order_notes, ratio
from fabricpulse.placement.formats.ranks import HostRanks, format_ranks, is_contiguous
from fabricpulse.placement.order import Order, Problem, Score

_MOST_HOSTS = 40
_NAMES = dict(zip(TIERS, ("same host", "same leaf", "same pod", "beyond"), strict=True))


def order_text(problem: Problem, order: Order, hosts: list[HostRanks]) -> Iterator[str]:
    """Lines."""
    yield _size([each.place for each in hosts], problem)
    yield ""
    before, after = order.before, order.after
    yield f"{'bytes a step':24}{'by name':>12}{'this order':>12}"
    for index, tier in enumerate(TIERS):
        yield f"{_NAMES[tier]:24}{human_bytes(before.tiers[index]):>12}{human_bytes(after.tiers[index]):>12}"
    yield f"{'that cross rails':24}{human_bytes(before.cross_rail):>12}{human_bytes(after.cross_rail):>12}"
    yield f"{'busiest rail to mean':24}{_uneven(before):>12}{_uneven(after):>12}"
    yield f"{'cost (hop-bytes)':24}{human_bytes(before.cost):>12}{human_bytes(after.cost):>12}"
    yield ""
    gains = (ratio(before.cost, after.cost), ratio(order.random_cost, after.cost))
    by_name, random = (
        "infinitely cheaper" if gain is None else f"{gain:.2f} times cheaper" for gain in gains
    )
    yield f"this order: {by_name} than by name, {random} than hosts in random order"
    yield ""
    width = max(4, *(len(printable(each.place.host)) for each in hosts[:_MOST_HOSTS]))
    leaf = max(4, *(len(_leaf(each.place)) for each in hosts[:_MOST_HOSTS]))
    yield f"{'host':{width}}  {'leaf':{leaf}}  ranks"
    for each in hosts[:_MOST_HOSTS]:
        yield f"{printable(each.place.host):{width}}  {_leaf(each.place):{leaf}}  {format_ranks(each.ranks)}"
    if len(hosts) > _MOST_HOSTS:
        yield f"… and {len(hosts) - _MOST_HOSTS} more hosts: --output json"
    if is_contiguous(hosts):
        yield ""
        yield f"hosts in the order of ranks: {fold([each.place.host for each in hosts])}"
    for note in order_notes(problem.fabric, order):
        yield f"note: {printable(note)}"


def choice_text(choice: Choice, free: int, more: list[str]) -> Iterator[str]:
    """Lines."""
    leaves: dict[tuple[str, str], list[str]] = {}
    for place in choice.hosts:
        leaves.setdefault((place.pod(), _leaf(place)), []).append(place.host)
    pods = f" in {choice.pods} pods" if choice.pods > 1 else ""
    yield f"{len(choice.hosts)} of {free} hosts, below {choice.leaves} leaves{pods}"
    for (pod, leaf), hosts in leaves.items():
        yield f"{leaf}{f' ({printable(pod)})' if pod else ''}: {len(hosts)}: {fold(hosts)}"
    if choice.split:
        yield f"free on leaves that were not taken whole: {choice.split}"
    for note in more:
        yield f"note: {printable(note)}"


def _size(places: list[Place], problem: Problem) -> str:
    leaves = len({place.leaf() for place in places})
    pods = {place.pod() for place in places}
    pod_count = f", {len(pods)} pods" if pods != {""} else ""
    shape = f"; {problem.shape.describe()}" if problem.shape else ""
    return f"{len(places)} hosts, {problem.fabric.slots} GPUs, {leaves} leaves{pod_count}{shape}"


def _uneven(score: Score) -> str:
    mean = float(score.rails.mean())
    return f"{float(score.rails.max()) / mean:.2f}" if mean > 0 else "-"


def _leaf(place: Place) -> str:
    """The first of several: the others are its rails."""
    more = f" (+{len(set(place.leaves)) - 1})" if len(set(place.leaves)) > 1 else ""
    return printable(place.leaves[0]) + more if place.known else "unknown"
