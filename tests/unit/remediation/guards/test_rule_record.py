"""When a rule stops: what processes of one host dispute among themselves."""

from typing import Any

import pytest

from fabricpulse.remediation.receiver.config import GuardConfig
from fabricpulse.remediation.receiver.guards.rule_record import FLEET, stops_of
from fabricpulse.remediation.receiver.state.model import Action, Target

RANK_FAILS = {"outcome": "failed", "processes": 7}
LIMITS = GuardConfig()


def failovers(count: int, hosts: int, first: int = 0, **fields: Any) -> list[Action]:
    return [
        Action(
            op_id=f"o{number}",
            target=Target(f"h{number % hosts}", "rail0"),
            action="nic.avoid",
            desired="avoid",
            generation=number + 1,
            reason="",
            alert="A",
            created_at=100.0 + number,
            **fields,
        )
        for number in range(first, first + count)
    ]


def fleet(actions: list[Action]) -> str:
    return stops_of("A", actions, LIMITS, 0.0).get(FLEET, "")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (RANK_FAILS, "unhelpful"),
        ({"outcome": "rolled_back", "processes": 8, "traffic": "partly_stalled"}, "harmful"),
    ],
)
def test_what_fails_in_one_process_of_each_job_stops_the_rule(fields, why):
    """A plugin that fails in one rank of each job failed over a whole fleet, and the rule went on."""
    assert fleet(failovers(40, 40, **fields)) == why
    assert fleet(failovers(40, 5, **fields)) == why
    assert fleet(failovers(40, 4, **fields)) == "", "one user may run on a few hosts"


def test_a_recovery_elsewhere_says_that_the_rule_is_well():
    """Disputes of one user's hosts are not in a row with what happens to the others."""
    last = LIMITS.max_unproven - 1
    good = failovers(1, 100, first=50, outcome="succeeded", processes=8, recovery="recovered")
    assert fleet(failovers(20, 20, **RANK_FAILS) + good + failovers(last, 100, first=60, **RANK_FAILS)) == ""
