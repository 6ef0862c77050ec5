"""Fleets with faults of their own: what the receiver promises holds, and these checks would tell if it did not."""

import os
from collections import Counter
from typing import Any

import pytest
from tests.unit.remediation.simulation.fleet_simulation import FleetSimulation, simulate
from tests.unit.remediation.simulation.promises import ViolationError

from fabricpulse.remediation.receiver.failover import decisions
from fabricpulse.remediation.receiver.guards.guards import Guards
from fabricpulse.remediation.receiver.guards.shared_cause import SharedCauses
from fabricpulse.remediation.receiver.state.model import Action, Direction, Target
from fabricpulse.remediation.receiver.state.transaction import Transaction

STEPS = int(os.environ.get("FABRICPULSE_TEST_SIMULATED_STEPS", "20000"))
FLEETS = int(os.environ.get("FABRICPULSE_TEST_SIMULATED_FLEETS", "5"))


@pytest.mark.simulation
def test_a_fleet_with_faults_of_its_own():
    """Nothing is violated, and in the end all is in service; faults, blindness and restarts did happen."""
    events: Counter[str] = Counter()
    for seed in (1, 2):
        events += simulate(seed, 700).lines
    for event in ("nic.avoid", "nic.restore", "blocked", "started", "hold_stopped", "watchdog_lost"):
        assert events[event] > 0, event


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1000 + FLEETS))
def test_fleets_for_long(seed):
    """The same for 20,000 steps each, and with other seeds."""
    simulate(seed, STEPS)


def _nothing(*_: Any) -> str:
    return ""


def _without_people(guards: Guards, direction: Direction, target: Target) -> str:
    return "" if (reason := STANDING(guards, direction, target)) in ("paused", "breaker") else reason


def _is_unknown(_state: Transaction, action: Action, _timeout_s: float) -> bool:
    return action.outcome == "unknown" and action.desired == "avoid"


STANDING = Guards._standing
# What is taken away -> the promise that is broken then.
TAKEN_AWAY = {
    "capacity": ("capacity", lambda m: m.setattr(Guards, "_capacity", _nothing)),
    "workload": ("job", lambda m: m.setattr(Guards, "_workload", _nothing)),
    "breaker": ("budget", lambda m: m.setattr(Guards, "breaker", _nothing)),
    "room": ("budget", lambda m: m.setattr(Guards, "_room", _nothing)),
    "people": ("people", lambda m: m.setattr(Guards, "_standing", _without_people)),
    "shared cause": ("leaf", lambda m: m.setattr(SharedCauses, "follow", lambda *_: frozenset())),
    "hold": ("hold", lambda m: m.setattr(decisions, "is_over", lambda target: target.healthy_at > 0)),
    "agent's journal": ("hold", lambda m: m.setattr(decisions, "never_arrived", _is_unknown)),
}


@pytest.mark.simulation
@pytest.mark.parametrize("what", TAKEN_AWAY)
def test_a_guard_that_is_missing_is_noticed(what, monkeypatch):
    """Within a few fleets, by the promise that it keeps."""
    promise, take_away = TAKEN_AWAY[what]
    take_away(monkeypatch)
    noticed = set()
    for seed in range(6):
        try:
            FleetSimulation(seed).steps(900)
        except ViolationError as violation:
            noticed.add(violation.name)
        if promise in noticed:
            return
    raise AssertionError(f"without {what}: {noticed or 'nothing'} was noticed, {promise} is broken")
