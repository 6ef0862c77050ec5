"""When a rule stops: what processes of one host dispute among themselves."""

from typing import Any

import pytest
from tests.unit.remediation.world import World, alert

from fabricpulse.remediation.receiver.config import GuardConfig
from fabricpulse.remediation.receiver.guards.rule_record import FLEET, stops_of
from fabricpulse.remediation.receiver.state.model import Action, AgentState, Target

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


def agents(**users: tuple[int, ...]) -> list[AgentState]:
    """Of a fleet; users : of each host."""
    return [AgentState(host=host, seen_at=100.0, users=uids) for host, uids in users.items()]


STALLED = {"outcome": "rolled_back", "processes": 8, "traffic": "stalled"}


def test_what_one_user_may_have_said_alone_counts_where_he_is():
    """His jobs on two hosts said that they stall, and stopped the rule for everybody."""
    said = failovers(4, 2, users=(1001,), **STALLED)
    stops = stops_of("A", said, LIMITS, 0.0, agents(h0=(1001,), h1=(1001,), h2=(1001, 7), h3=(7,), h4=()))
    assert stops == {"h0": "harmful", "h1": "harmful", "h2": "harmful"}


def test_disputes_on_many_hosts_of_one_user_count_where_he_is():
    """He may run on five hosts beside others, too."""
    said = failovers(20, 5, users=(7, 1001), **STALLED | {"traffic": "partly_stalled"})
    fleet_of = agents(**{f"h{i}": (7, 1001) for i in range(5)}, h9=(7, 8), h10=(9,))
    stops = stops_of("A", said, LIMITS, 0.0, fleet_of)
    assert stops == dict.fromkeys([f"h{i}" for i in range(5)] + ["h9"], "harmful")


def test_what_two_users_say_stops_the_rule():
    """Not each of them may have false counters."""
    said = failovers(2, 2, users=(1001,), **STALLED)
    said += failovers(1, 3, first=2, users=(1002,), **STALLED)
    stops = stops_of("A", said, LIMITS, 0.0, agents(h0=(1001,), h1=(1001,), h2=(1002,)))
    assert stops == {FLEET: "harmful"}


@pytest.mark.parametrize("users", [(), (1001,)])
def test_users_that_are_not_known_are_not_several(users):
    """More uids than a report has made one user's containers an agreement of several users."""
    said = failovers(2, 2, users=(), **STALLED) + failovers(1, 3, first=2, users=users, **STALLED)
    fleet_of = [*agents(h2=(1001,), h3=(7,), h4=()), AgentState(host="h1", seen_at=100.0, processes=99)]
    hosts = {"h0", "h1", "h2"}
    assert stops_of("A", said, LIMITS, 0.0, fleet_of) == dict.fromkeys(hosts, "harmful")


def test_a_fleet_of_agents_that_do_not_report_users_stops_the_rule():
    """Of older ones: nothing is known of anybody."""
    said = failovers(3, 3, **STALLED)
    assert stops_of("A", said, LIMITS, 0.0, agents(h0=(), h1=(), h3=())) == {FLEET: "harmful"}


def test_one_user_of_the_whole_fleet_stops_the_rule():
    """There are no others whom he could harm, as where all jobs run as root."""
    said = failovers(3, 3, users=(0,), **STALLED)
    assert stops_of("A", said, LIMITS, 0.0, agents(h0=(0,), h1=(0,), h2=(0,), h3=(0, 7))) == {
        FLEET: "harmful"
    }


def test_a_failover_keeps_whose_processes_were_there():
    """They may be gone when it is judged."""
    world = World()
    world.report(users=(7, 1001))
    world.deliver(alert())
    world.report(users=())
    assert [action.users for action in world.pending()] == [(7, 1001)]
