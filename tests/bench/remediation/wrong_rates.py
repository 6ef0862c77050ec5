"""Plans for two rings on two links when what lanes deliver is measured wrong, in a model: which of them can win."""

import random
from dataclasses import replace
from itertools import product

from tests.bench.rows import Rows
from tests.unit.remediation.simulation.ring_model import JOBS, KEYS, Places, rings, total

from fabricpulse.remediation.receiver.config import RebalanceConfig
from fabricpulse.remediation.receiver.rebalance.lane_planner import Proposal, propose

LINKS = 2
WRONG = (0.2, 0.4, 0.6)
# Of each assignment.
DRAWS = 2
# A landing that wins so much can be seen.
WINS = 1.05


def wrong_rates(rows: Rows, min_gain: float) -> None:
    """Every assignment, the rate of each lane times a factor of its own, evenly between 1 - wrong and 1 + wrong, where
    the plugins have searched already."""
    config = RebalanceConfig(min_gain=min_gain)
    every = [dict(zip(KEYS, links, strict=True)) for links in product(range(LINKS), repeat=len(KEYS))]
    best = max(map(total, every))
    for wrong in WRONG:
        chance = random.Random(1)
        others = wins = at_best = moved = 0
        for places in every * DRAWS:
            plan, landings = _planned(config, places, wrong, chance)
            if total(places) > 0.99 * best:
                at_best += 1
                moved += plan is not None
            else:
                others += 1
                wins += plan is not None and max(landings) >= WINS
        case = f"rates_{wrong:g}_wrong"
        rows.report(case, "plans_that_can_win", wins, "1", of=others, min_gain=min_gain)
        rows.report(case, "plans_of_the_best", moved, "1", of=at_best, min_gain=min_gain)


def _planned(
    config: RebalanceConfig, places: Places, wrong: float, chance: random.Random
) -> tuple[Proposal | None, list[float]]:
    """The plan, and what both rings carry after each landing of its lanes by what they did."""
    lanes = {
        key: replace(lane, capacity=lane.capacity * chance.uniform(1 - wrong, 1 + wrong))
        for key, lane in rings(places)[1].items()
    }
    found = propose(config, {lane.key: lane for lane in lanes.values()}, {}, searched=JOBS)
    plan = next((plan for plan in found if plan.predicted >= config.min_gain), None)
    moved = {move.key for move in plan.moves} if plan is not None else set()
    keys = [key for key, lane in lanes.items() if lane.key in moved]
    return plan, [
        total({**places, **dict(zip(keys, landing, strict=True))}) / total(places)
        for landing in product(range(LINKS), repeat=len(keys))
    ]
