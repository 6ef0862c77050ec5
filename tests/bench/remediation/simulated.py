"""Fleets in memory, in virtual time: what guards and rebalancing keep of their promises over many of them."""

from collections import Counter
from statistics import median

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.bench.remediation.selector import DELAYS_S
from tests.bench.rows import Rows
from tests.unit.remediation.simulation.fabric_model import Fabric
from tests.unit.remediation.simulation.fleet_simulation import simulate
from tests.unit.remediation.simulation.promises import ViolationError
from tests.unit.remediation.state.test_state_machine import Remediation

# After this time a fleet that nothing has happened to has no reason for another plan.
SETTLED_S = 1800.0


def guards(rows: Rows, fleets: int, steps: int, examples: int) -> None:
    """Random fleets with faults of their own, and random sequences of events: what was violated."""
    violations: Counter[str] = Counter()
    events: Counter[str] = Counter()
    done = 0
    for seed in range(fleets):
        try:
            fleet = simulate(seed, steps)
        except ViolationError as violation:
            violations[violation.name] += 1
        else:
            done += fleet.steps_done
            events += fleet.lines
    case = f"{fleets} fleets, {done} steps"
    rows.report(
        case,
        "state_machine_violations",
        violations.total(),
        "1",
        "== 0",
        of=dict(violations),
        failovers=events["nic.avoid"],
        restarts=events["started"],
    )
    broken = 0
    try:
        run_state_machine_as_test(
            Remediation,
            settings=settings(
                max_examples=examples,
                stateful_step_count=40,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    except AssertionError as error:
        broken = 1
        print(error)
    rows.report(f"{examples} examples of 40 steps", "state_machine_violations", broken, "1", "== 0")


def lanes(rows: Rows, fleets: int) -> None:
    """Two jobs whose lanes all collide, for an hour: how near they come to the best assignment, what they do later."""
    for delay_s in DELAYS_S:
        shares, errors, wrong, oscillations = [], [], 0, 0
        for seed in range(fleets):
            fabric = Fabric(2, 2, 1 + seed % 2, seed, delay_s)
            fabric.collide()
            fabric.run(SETTLED_S)
            settled = len(fabric.operations)
            fabric.run(SETTLED_S)
            oscillations += len(fabric.operations) - settled
            shares.append(fabric.goodput() / fabric.best_goodput())
            kept = [plan for plan in fabric.plans() if plan.phase == "kept"]
            wrong += sum(plan.measured < fabric.config.rebalance.min_gain for plan in kept)
            errors += [abs(plan.predicted - plan.measured) / plan.measured for plan in kept]
        case = f"{fleets} simulated fleets, control late by {delay_s:g} s"
        rows.report(case, "rebalance_to_optimum_least", min(shares), "ratio", ">= 0.95")
        rows.report(case, "rebalance_wrong", wrong, "1", "== 0")
        rows.report(case, "oscillations", oscillations, "1", "== 0")
        rows.report(
            case, "prediction_error_median", median(errors) if errors else float("nan"), "ratio", "<= 0.15"
        )
