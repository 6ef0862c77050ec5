"""Which jobs a job's slow lanes hold up, and what these win when the lanes leave. Pure.

A lane that is slow beside a sibling that has all it needs shares its link with somebody. Where every path of the job is
full it wins nothing by leaving: its sibling delivers the rest. Who wins is the other one, whose slowest connection gets
what the lane took from it; so a plan for such lanes is for both, and measured by both.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

from fabricpulse.remediation.receiver.rebalance.lane_evidence import LaneSummary
from fabricpulse.remediation.receiver.rebalance.lane_places import Leaves
from fabricpulse.remediation.receiver.rebalance.lane_sharing import gain_of_rate

Connections = Mapping[tuple[str, str, str], Sequence[LaneSummary]]


@dataclass(frozen=True)
class Neighbours:
    """jobs : those that the slow lanes may hold up: which win if it is them. helped : the one that wins most by their
    leaving, "" if none does; gain : its goodput afterwards by now."""

    jobs: frozenset[str]
    helped: str = ""
    gain: float = 1.0


def connections_of(lanes: Sequence[LaneSummary]) -> Connections:
    """The lanes by the connection that they belong to."""
    found: dict[tuple[str, str, str], list[LaneSummary]] = defaultdict(list)
    for lane in lanes:
        found[lane.host, lane.last.process, lane.last.connection].append(lane)
    return found


def is_at_rest(lanes: Sequence[LaneSummary]) -> bool:
    """Whether none of them has got another path lately."""
    return not any(lane.repathed for lane in lanes)


def beside_good(slow: Sequence[LaneSummary], own: Sequence[LaneSummary]) -> list[LaneSummary]:
    """Of the slow lanes of a job those that have a sibling that is not slow, and so may hold up others: a connection of
    which all lanes are slow may be alone on its path, and hold up nobody."""
    keys = {lane.key for lane in slow}
    found = []
    for lanes in connections_of(own).values():
        if any(lane.key not in keys for lane in lanes):
            found += [lane for lane in lanes if lane.key in keys]
    return found


def of_slow_connections(slow: Sequence[LaneSummary], own: Sequence[LaneSummary]) -> list[LaneSummary]:
    """Of the slow lanes of a job those of connections of which all lanes are slow: alone on its path or not, such a
    connection may win by another one itself. The plugin tries one lane of it at a time, and at last once an hour: what
    it has left there it has not found to be good. own : all lanes of the job, as one that is idle or was not measured
    is not known to be slow."""
    keys = {lane.key for lane in slow}
    return [
        lane
        for lanes in connections_of(own).values()
        if all(lane.key in keys for lane in lanes)
        for lane in lanes
    ]


def without_room(slow: Sequence[LaneSummary], own: Sequence[LaneSummary]) -> set[str]:
    """Keys of the slow lanes of a job whose good siblings are full: on their paths, too, they would win nothing."""
    keys = {lane.key for lane in slow}
    found: set[str] = set()
    for lanes in connections_of(own).values():
        good = [lane for lane in lanes if lane.key not in keys]
        if good and all(lane.congested for lane in good):
            found |= {lane.key for lane in lanes} & keys
    return found


def neighbours(
    workload: str,
    slow: Sequence[LaneSummary],
    holding: Sequence[LaneSummary],
    busy: Mapping[str, list[LaneSummary]],
    leaves: Leaves,
) -> Neighbours:
    """Of a job's slow lanes. holding : those that may hold up others. busy : lanes of all jobs that carry something.
    leaves : where NICs are plugged in, as far as that is known."""
    places = {(lane.last.device, leaves.get((lane.host, lane.last.device), "")) for lane in slow}
    freed = sorted(connections_of(holding).values(), key=lambda lanes: -sum(lane.goodput for lane in lanes))
    jobs, helped, best = set(), "", 1.0
    for other, lanes in sorted(busy.items()):
        near = [lane for lane in lanes if lane.congested and _is_near(lane, places, leaves)]
        if other == workload or not near or not lanes[0].is_named:
            continue
        gain = _gain_of(lanes, {lane.key for lane in near}, freed)
        if gain > 1.0:
            jobs.add(other)
        if gain > best:
            helped, best = other, gain
    return Neighbours(frozenset(jobs), helped, best)


def _is_near(lane: LaneSummary, places: set[tuple[str, str]], leaves: Leaves) -> bool:
    """Whether the lane may leave its leaf by the same links: on the same rail, below the same leaf or one that is not
    known."""
    rail, leaf = lane.last.device, leaves.get((lane.host, lane.last.device), "")
    return any(rail == other and (not leaf or not place or leaf == place) for other, place in places)


def _gain_of(lanes: Sequence[LaneSummary], near: set[str], freed: Sequence[Sequence[LaneSummary]]) -> float:
    """Goodput of a job afterwards by now, when what these lanes of another job carry is left to it.

    Lanes that share a link deliver about the same: so each lot is left to the connection of which the lanes are most
    like them, of those that are crowded by all of their lanes. The slowest of all connections is what counts. Nothing
    is known of a job of which a lane has got another path lately: that may be the one that was held up.
    """
    if not is_at_rest(lanes):
        return 1.0
    rates = {key: sum(lane.capacity for lane in own) for key, own in connections_of(lanes).items()}
    crowded = {
        key: own for key, own in connections_of(lanes).items() if all(lane.key in near for lane in own)
    }
    slowest = connections_of(lanes)[min(rates, key=lambda key: (rates[key], key))]
    for lot in freed:
        if not crowded:
            break
        like = min(crowded, key=lambda key: (abs(log(_mean(crowded[key]) / _mean(lot))), key))
        own = crowded.pop(like)
        rates[like] = sum(lane.goodput for lane in [*own, *lot])
    if min(rates.values()) <= sum(lane.capacity for lane in slowest):
        return 1.0
    now = sum(lane.goodput for lane in slowest)
    busy = max(lane.busy if lane.busy >= 0 else 1.0 for lane in slowest)
    return gain_of_rate(busy, max(1.0, min(rates.values()) / now))


def _mean(lanes: Sequence[LaneSummary]) -> float:
    return sum(lane.capacity for lane in lanes) / len(lanes)
