"""Which lanes to put on other paths, and what that should win. Pure.

The fabric's hash is not known, so collisions are inferred. *Unequal*: lanes of one job deliver much less than its good
lanes do, with signs of a queue on their path. *Shared*: lanes of several jobs are congested on one rail at once, though
none is worse than its siblings; then the job with the fewest such lanes moves. A job whose lanes the plugin has just
re-pathed is left alone: it is at work already, and knows more.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from fabricpulse.remediation.receiver.config import RebalanceConfig
from fabricpulse.remediation.receiver.lane_evidence import LaneSummary, goodput_by_workload
from fabricpulse.remediation.receiver.model import LaneMove

# A lane that moves less than this is idle, and says nothing.
_IDLE_BYTES_S = 1e5
# A NIC that carries so much of its speed is what bounds its lanes, not the fabric.
_FULL_NIC = 0.8
# No plan promises more: most collisions are of two. What lanes deliver in bursts would promise too much.
_MAX_GAIN = 2.0
# Of what a plan has reached before.
_AS_GOOD = 0.75


@dataclass(frozen=True)
class Proposal:
    """A plan that nobody has decided on. scope : jobs that are to gain. predicted : their goodput afterwards by now."""

    workload: str
    scope: tuple[str, ...]
    moves: tuple[LaneMove, ...]
    before: dict[str, float]
    predicted: float
    reason: str


def propose(
    config: RebalanceConfig,
    lanes: Mapping[str, LaneSummary],
    resting: Mapping[str, Literal["cooldown", "no_new_path"]],
    reached: Mapping[tuple[str, ...], float] | None = None,
) -> list[Proposal]:
    """Proposals, best first.

    resting : jobs that are not to be moved now, or for which new paths did not help: lanes of those may get a weight.
    reached : goodput of jobs together (bytes per second) after a plan that helped them: while they still have about
    that, nothing is to be won.
    """
    before = goodput_by_workload(lanes)
    busy: dict[str, list[LaneSummary]] = defaultdict(list)
    at_work = {lane.last.workload for lane in lanes.values() if lane.repathed}
    for lane in lanes.values():
        if lane.goodput >= _IDLE_BYTES_S and lane.capacity > 0 and lane.last.workload not in at_work:
            busy[lane.last.workload].append(lane)
    proposals = []
    unequal = set()
    for workload, own in sorted(busy.items()):
        slow, good = _slow(config, own)
        if not slow:
            continue
        unequal.add(workload)
        rests = resting.get(workload)
        if rests == "cooldown":
            continue
        gain = min(_MAX_GAIN, good / min(lane.capacity for lane in slow))
        moves = [_move(lane) for lane in slow]
        if rests == "no_new_path":
            moves = [move for lane in slow if (move := _weighed(lane, own)) is not None]
        if moves:
            reason = f"{len(slow)} of {len(own)} lanes deliver less than {config.slow_share:g} of the others"
            proposals.append(
                Proposal(workload, (workload,), tuple(moves[: config.max_lanes]), before, gain, reason)
            )
    for shared in _shared(config, busy, unequal, before, resting):
        best = (reached or {}).get(shared.scope)
        if best is None or _sum(before, shared.scope) < _AS_GOOD * best:
            proposals.append(shared)
    return sorted(proposals, key=lambda p: (-p.predicted, len(p.moves), p.workload))


def _slow(config: RebalanceConfig, own: list[LaneSummary]) -> tuple[list[LaneSummary], float]:
    """Congested lanes that deliver much less than the good ones of their job, and what the good ones do.

    The good ones are at least a quarter: half of the lanes may share a link.
    """
    capacities = sorted((lane.capacity for lane in own), reverse=True)
    good = median(capacities[: max(1, (len(capacities) + 1) // 2)])
    limit = config.slow_share * good
    return [lane for lane in own if lane.congested and lane.capacity < limit], good


def _shared(
    config: RebalanceConfig,
    busy: Mapping[str, list[LaneSummary]],
    unequal: set[str],
    before: dict[str, float],
    resting: Mapping[str, str],
) -> list[Proposal]:
    rails: dict[str, dict[str, list[LaneSummary]]] = defaultdict(lambda: defaultdict(list))
    nics: dict[tuple[str, str], float] = defaultdict(float)
    for lane in (lane for own in busy.values() for lane in own):
        nics[lane.host, lane.last.device] += lane.goodput
    for workload, own in busy.items():
        for lane in own:
            full = (
                lane.last.nic_speed and nics[lane.host, lane.last.device] >= _FULL_NIC * lane.last.nic_speed
            )
            if lane.congested and workload not in unequal and not full:
                rails[lane.last.device][workload].append(lane)
    proposals = []
    for rail, workloads in sorted(rails.items()):
        free = {w: found for w, found in workloads.items() if resting.get(w) != "cooldown"}
        if len(workloads) < 2 or not free:
            continue
        mover = min(free, key=lambda w: (len(free[w]), w))
        # One link carries all of them; with the mover on a free one, both links are as full as the one was.
        scope = tuple(sorted(workloads))
        moves = tuple(_move(lane) for lane in free[mover][: config.max_lanes])
        reason = f"{len(workloads)} jobs are congested on {rail} at once"
        proposals.append(Proposal(mover, scope, moves, before, 2.0, reason))
    return proposals


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
