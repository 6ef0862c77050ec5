"""Which lanes to put on other paths, and what that should win. Pure.

The fabric's hash is not known, so collisions are inferred. *Shared*: nearly all lanes of several jobs are congested on
one rail at once, below a common leaf where that is known; then the job with the fewest such lanes moves. That its lanes
deliver unequal parts says nothing then: flows that share a link are seldom fair to each other. *Unequal*: lanes of one
job deliver much less than its good lanes do, which have room. A job whose lanes the plugin has just re-pathed, or has
tried several paths for lately, is left alone: the plugin searches already, with better data. Jobs without a name are
not moved: which of their processes belong together is not known.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from statistics import median
from types import MappingProxyType
from typing import Literal

from fabricpulse.remediation.receiver.config import RebalanceConfig
from fabricpulse.remediation.receiver.rebalance.lane_evidence import IDLE_BYTES_S, LaneSummary, goodput_by_job
from fabricpulse.remediation.receiver.rebalance.lane_neighbours import (
    Neighbours,
    beside_good,
    connections_of,
    is_at_rest,
    neighbours,
    of_slow_connections,
    without_room,
)
from fabricpulse.remediation.receiver.rebalance.lane_places import Jobs, Leaves, groups
from fabricpulse.remediation.receiver.rebalance.lane_requests import LaneRequest
from fabricpulse.remediation.receiver.rebalance.lane_sharing import Sender, gain_apart, gain_of_rate
from fabricpulse.remediation.receiver.state.model import LaneMove

# A NIC that carries so much of its speed is what bounds its lanes, not the fabric.
_FULL_NIC = 0.8
# No plan promises more: most collisions are of two.
_MAX_GAIN = 2.0
# What jobs reach of the gain that the model says: on a link of its own the few flows of one job fill it less well than
# those of two did. 0.82 to 1.09 of it in seven fleets of the lab (two rings of TCP lanes, 200 and 1000 Mbit/s,
# messages of 256 KiB to 32 MiB).
_REACHED = 0.92
# Of what a job sends on a rail so much goes by congested lanes when nearly all of them cross a crowded link.
_NEARLY_ALL = 0.75
# Slow lanes that carry less than this part of what is theirs of a connection: the job sends by what lanes deliver.
_ADAPTS = 0.8
# Of what a plan has reached before.
_AS_GOOD = 0.75
# With two links or more, half of the tries or more reach another link; after three without a gain another cause is
# likely.
_FOR_OTHERS = 3
NO_LEAVES: Leaves = MappingProxyType({})


@dataclass(frozen=True)
class Proposal:
    """A plan before any decision. scope : jobs that are to gain. predicted : their goodput afterwards by now.
    max_tries : new paths for a lane at most, 0 for as many as the configuration allows."""

    workload: str
    scope: tuple[str, ...]
    moves: tuple[LaneMove, ...]
    before: dict[str, float]
    predicted: float
    reason: str
    max_tries: int = 0


@dataclass(frozen=True)
class _Fleet:
    """What lanes of jobs do, by the names of those. of_jobs : all lanes. carrying : those that carry something, at a
    rate that is known. busy : of the latter those of jobs in which the plugin does not search."""

    of_jobs: Mapping[str, list[LaneSummary]]
    carrying: Mapping[str, list[LaneSummary]]
    busy: Mapping[str, list[LaneSummary]]
    before: dict[str, float]
    leaves: Leaves


def propose(
    config: RebalanceConfig,
    lanes: Mapping[str, LaneSummary],
    resting: Mapping[str, Literal["cooldown", "no_new_path"]],
    reached: Mapping[tuple[str, ...], float] | None = None,
    request: LaneRequest | None = None,
    leaves: Leaves = NO_LEAVES,
    searched: Collection[str] = (),
) -> list[Proposal]:
    """Proposals, best first; with a request, only for lanes that it names, and with its operation.

    resting : jobs that are not to be moved now, or for which new paths did not help: lanes of those may get a weight.
    reached : goodput of jobs together (bytes per second) after a plan that helped them: while they still have about
    that, nothing is to be won. leaves : where NICs are plugged in, as far as that is known.
    """
    before = goodput_by_job(lanes)
    of_jobs: dict[str, list[LaneSummary]] = defaultdict(list)
    carrying: dict[str, list[LaneSummary]] = defaultdict(list)
    at_work = {lane.job for lane in lanes.values() if lane.repathed} | set(searched)
    for lane in lanes.values():
        of_jobs[lane.job].append(lane)
        if lane.goodput >= IDLE_BYTES_S and lane.capacity > 0:
            carrying[lane.job].append(lane)
    busy = {job: own for job, own in carrying.items() if job not in at_work}
    fleet = _Fleet(of_jobs, carrying, busy, before, leaves)
    slow_of = {
        job: found for job, own in carrying.items() if own[0].is_named and (found := slow_lanes(config, own))
    }
    shared = []
    if request is None or request.rule.action == "lane.repath":
        unequal = {job for job in slow_of if job in busy}
        shared = _shared(busy, unequal, before, resting, config.max_lanes, request, leaves)
    together = {workload for proposal in shared for workload in proposal.scope}
    proposals = []
    for workload, own in sorted(carrying.items()):
        if not own[0].is_named or not (low := below_good(config, own)):
            continue
        slow = slow_of.get(workload, [])
        rests = resting.get(workload)
        if rests == "cooldown" or (workload in together and rests is None):
            continue
        # Where the plugin searches it balances as well, and others may be helped by a path that comes later.
        weigh = rests == "no_new_path" and workload in busy
        if request is not None:
            weigh = request.rule.action == "lane.weight"
        if request is not None:
            if rests == "no_new_path" and not weigh:
                continue
            slow = [lane for lane in slow if request.names(lane)]
            low = [lane for lane in low if request.names(lane)]
        if not weigh:
            proposal = _repathed(config, workload, low, fleet)
        else:
            proposal = _reweighed(config, workload, slow, busy, before)
        if proposal is not None:
            proposals.append(proposal)
    for proposal in shared:
        best = (reached or {}).get(proposal.scope)
        if best is None or _sum(before, proposal.scope) < _AS_GOOD * best:
            proposals.append(proposal)
    return sorted(proposals, key=lambda p: (-p.predicted, len(p.moves), p.workload))


def slow_lanes(config: RebalanceConfig, own: list[LaneSummary]) -> list[LaneSummary]:
    """Congested lanes that deliver much less than the good ones of their job.

    The good ones are at least a quarter: half of the lanes may share a link.
    """
    return [lane for lane in below_good(config, own) if lane.congested]


def below_good(config: RebalanceConfig, own: list[LaneSummary]) -> list[LaneSummary]:
    """Lanes that deliver much less than the good ones of their job, also where it has no more to send by them: it waits
    for another one of its connections then. Lanes that were not measured are none of them, and not of the good ones."""
    measured = [lane for lane in own if lane.capacity > 0]
    if not measured:
        return []
    limit = config.slow_share * _good(measured)
    return [lane for lane in measured if lane.capacity < limit]


def _repathed(
    config: RebalanceConfig,
    workload: str,
    low: list[LaneSummary],
    fleet: _Fleet,
) -> Proposal | None:
    """Other paths for lanes of a job that deliver little, for its own sake and that of those whom they hold up; for its
    own alone where those are so many that the gain of all together would be too small to be seen.

    The plugin searches for the sake of one job alone, lane by lane, and has ended where nothing is left to win by that:
    that it has tried several paths says nothing against a plan for somebody else's, or for all lanes of a connection at
    once. What is predicted is of the lanes that are moved, where those are not all.
    """
    found = _repathed_of(config, workload, low, low, fleet)
    if found is None or len(found.moves) <= config.max_lanes:
        return found
    keys = {move.key for move in found.moves}
    some = _between_connections([lane for lane in low if lane.key in keys], config.max_lanes)
    return _repathed_of(config, workload, low, some, fleet)


def _between_connections(lanes: list[LaneSummary], most: int) -> list[LaneSummary]:
    """The first of them, no more than so many, and of each connection all or none; a part of one where each has more
    than so many."""
    found: list[LaneSummary] = []
    for own in connections_of(lanes).values():
        if len(found) + len(own) <= most:
            found += own
    return found or lanes[:most]


def _repathed_of(
    config: RebalanceConfig,
    workload: str,
    low: list[LaneSummary],
    some: list[LaneSummary],
    fleet: _Fleet,
) -> Proposal | None:
    """The same for some of these lanes."""
    own, keys = fleet.carrying[workload], {lane.key for lane in some}
    resting = {lane.key for lanes in connections_of(own).values() if is_at_rest(lanes) for lane in lanes}
    low, some = ([lane for lane in lanes if lane.key in resting] for lanes in (low, some))
    holding = [lane for lane in beside_good(low, own) if lane.key in keys]
    beside = neighbours(workload, some, holding, fleet.carrying, fleet.leaves)
    full = without_room(low, own) if beside.jobs else set()
    gaining = [lane for lane in low if lane.congested and lane.key in keys - full]
    if workload not in fleet.busy:
        gaining = of_slow_connections(gaining, fleet.of_jobs[workload])
    gain = _REACHED * gain_of_rate(_busy(own), _faster(own, gaining)) if gaining else 1.0
    if beside.jobs:
        total, won = (
            _sum(fleet.before, (workload, *beside.jobs)),
            (beside.gain - 1) * fleet.before.get(beside.helped, 0.0),
        )
        together = (total + max(0.0, gain - 1) * fleet.before[workload] + won) / total
        # Among many whom the lanes may hold up, what one or two win does not show.
        if together < config.min_gain <= gain:
            beside = Neighbours(frozenset())
        else:
            gain = together
    scope = tuple(sorted({workload, *beside.jobs}))
    wanted = {lane.key for lane in gaining} | ({lane.key for lane in holding} if beside.helped else set())
    moved = [lane for lane in low if lane.key in wanted]
    if not moved:
        return None
    reason = f"{len(moved)} of {len(own)} lanes deliver less than {config.slow_share:g} of the others"
    if beside.helped:
        reason += f" and hold up {beside.helped}"
    moves = tuple(map(_move, moved))
    max_tries = _FOR_OTHERS if beside.helped else 0
    return Proposal(workload, scope, moves, fleet.before, min(_MAX_GAIN, gain), reason, max_tries)


def _reweighed(
    config: RebalanceConfig,
    workload: str,
    slow: list[LaneSummary],
    busy: Mapping[str, list[LaneSummary]],
    before: dict[str, float],
) -> Proposal | None:
    """Less for the slow lanes of a job."""
    own = busy.get(workload, [])
    slow = [lane for lane in slow if _weighed(lane, own) is not None]
    moved = _between_connections(slow, config.max_lanes)
    moves = tuple(move for lane in moved if (move := _weighed(lane, own)) is not None)
    if not moves:
        return None
    gain = min(_MAX_GAIN, _REACHED * gain_of_rate(_busy(own), _faster(own, moved, weigh=True)))
    reason = f"{len(slow)} of {len(own)} lanes deliver less than {config.slow_share:g} of the others"
    return Proposal(workload, (workload,), moves, before, gain, reason)


def _good(own: list[LaneSummary]) -> float:
    capacities = sorted((lane.capacity for lane in own), reverse=True)
    return median(capacities[: max(1, (len(capacities) + 1) // 2)])


def _faster(own: list[LaneSummary], slow: list[LaneSummary], weigh: bool = False) -> float:
    """How many times as fast a job could send if its slow lanes delivered what the good ones do.

    Its slowest connection bounds it, of what each has to carry. Where a connection sends by what its lanes deliver,
    their sum counts, else the slowest lane of what it carries. weigh : if instead each lane carried by what it
    delivers, which a connection that sends so already gains nothing by.
    """
    good, moved = _good(own), {lane.key for lane in slow}
    now, then = [], []
    for lanes in connections_of(own).values():
        carried = sum(lane.goodput for lane in lanes)
        after = [good if lane.key in moved and not weigh else lane.capacity for lane in lanes]
        fair = carried / len(lanes)
        if any(lane.key in moved and lane.goodput < _ADAPTS * fair for lane in lanes):
            now.append(sum(lane.capacity for lane in lanes) / carried)
            then.append(sum(after) / carried)
        else:
            now.append(min(lane.capacity / lane.goodput for lane in lanes))
            weighed = weigh and any(lane.key in moved for lane in lanes)
            slowest = min(rate / lane.goodput for rate, lane in zip(after, lanes, strict=True))
            then.append(sum(after) / carried if weighed else slowest)
    return max(1.0, min(then) / min(now))


def _busy(own: list[LaneSummary]) -> float:
    """Part of the time in which a job waits for some lane of it, 1 if that is not known.

    That a NIC is idle while another one of the job sends is no time that the network does not take: its ranks wait for
    each other.
    """
    nics: dict[tuple[str, str], float] = defaultdict(float)
    for lane in own:
        if lane.busy < 0:
            return 1.0
        nics[lane.host, lane.last.device] = max(nics[lane.host, lane.last.device], lane.busy)
    return 1.0 - prod(1.0 - busy for busy in nics.values())


def _sender(own: list[LaneSummary]) -> Sender:
    """A job on the link that its lanes share: what one of its NICs sends."""
    nics = {(lane.host, lane.last.device) for lane in own}
    return Sender(sum(lane.goodput for lane in own) / len(nics), _busy(own))


def _shared(
    busy: Mapping[str, list[LaneSummary]],
    unequal: Collection[str],
    before: dict[str, float],
    resting: Mapping[str, str],
    max_lanes: int,
    request: LaneRequest | None,
    leaves: Leaves,
) -> list[Proposal]:
    rails: dict[str, dict[str, list[LaneSummary]]] = defaultdict(lambda: defaultdict(list))
    nics: dict[tuple[str, str], float] = defaultdict(float)
    for lane in (lane for own in busy.values() for lane in own):
        nics[lane.host, lane.last.device] += lane.goodput
    carried: dict[tuple[str, str], float] = defaultdict(float)
    for workload, own in busy.items():
        for lane in own:
            full = (
                lane.last.nic_speed and nics[lane.host, lane.last.device] >= _FULL_NIC * lane.last.nic_speed
            )
            carried[lane.last.device, workload] += lane.goodput
            if lane.congested and not full and lane.is_named:
                rails[lane.last.device][workload].append(lane)
    proposals: list[Proposal | None] = []
    for rail, congested in sorted(rails.items()):
        on_rail = {
            workload: lanes
            for workload, lanes in congested.items()
            if workload not in unequal
            or sum(lane.goodput for lane in lanes) >= _NEARLY_ALL * carried[rail, workload]
        }
        proposals += [
            _taken_apart(rail, jobs, before, resting, max_lanes, request) for jobs in groups(on_rail, leaves)
        ]
    return [proposal for proposal in proposals if proposal is not None]


def _taken_apart(
    rail: str,
    jobs: Jobs,
    before: dict[str, float],
    resting: Mapping[str, str],
    max_lanes: int,
    request: LaneRequest | None,
) -> Proposal | None:
    free = {w: found for w, found in jobs.items() if resting.get(w) != "cooldown"}
    if request is not None:
        # The whole job moves on this rail: one lane of a ring that moves alone leaves it as slow as it was.
        free = {
            w: found
            for w, found in free.items()
            if resting.get(w) is None and any(request.names(lane) for lane in found)
        }
    if len(jobs) < 2 or not free:
        return None
    mover = min(free, key=lambda w: (len(free[w]), w))
    # One link carries all of them; then the mover has another one like it.
    scope = tuple(sorted(jobs))
    moves = tuple(map(_move, _between_connections(free[mover], max_lanes)))
    reason = f"{len(jobs)} jobs are congested on {rail} at once"
    speed = free[mover][0].last.nic_speed or float("inf")
    gain = gain_apart([_sender(jobs[w]) for w in scope], scope.index(mover), speed)
    return Proposal(mover, scope, moves, before, min(_MAX_GAIN, _REACHED * gain), reason)


def _sum(values: Mapping[str, float], names: tuple[str, ...]) -> float:
    return sum(values.get(name, 0.0) for name in names)


def _move(lane: LaneSummary) -> LaneMove:
    last = lane.last
    return LaneMove(
        host=lane.host,
        process=last.process,
        connection=last.connection,
        lane=last.lane,
        device=last.device,
        entropy_before=last.entropy,
        capacity_before=lane.capacity,
        repaths=last.repaths,
    )


def _weighed(lane: LaneSummary, own: list[LaneSummary]) -> LaneMove | None:
    """A weight by what the lane delivers, None for one without siblings in its connection."""
    last = lane.last
    siblings = [
        other
        for other in own
        if other.host == lane.host
        and (other.last.process, other.last.connection) == (last.process, last.connection)
    ]
    if len(siblings) < 2:
        return None
    best = max(other.capacity for other in siblings)
    value = max(1, min(1000, round(1000 / len(siblings) * lane.capacity / best)))
    move = _move(lane)
    return LaneMove(
        **{name: getattr(move, name) for name in move.__struct_fields__}
        | {"operation": "lane.weight", "value": value}
    )
