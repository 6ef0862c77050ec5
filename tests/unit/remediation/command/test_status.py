"""What `status` says when something waits for a person, and how long the client waits for long answers."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.remediation.world import World, alert, config

from fabricpulse.core.web.client_options import ClientOptions
from fabricpulse.remediation import operator_client
from fabricpulse.remediation.operator_client import OperatorClient
from fabricpulse.remediation.receiver import health
from fabricpulse.remediation.receiver.explain import explain
from fabricpulse.remediation.receiver.health import problems
from fabricpulse.remediation.receiver.rebalance.history import resting
from fabricpulse.remediation.receiver.state.model import Drain, LaneMove, Rebalance, State, Target
from fabricpulse.remediation.receiver.state.transaction import Transaction


def codes(world: World, state: State | None = None) -> list[str]:
    return [problem.code for problem in problems(world.config, state or world.state, world.now, "")]


def plan(number: int, **fields: Any) -> Rebalance:
    move = LaneMove(
        host="h0",
        process="7",
        connection="0" * 16,
        lane=0,
        device="rail0",
        entropy_before=1,
        capacity_before=1.0,
        repaths=0,
    )
    made = Rebalance(
        id=f"p{number}",
        workload="train",
        scope=("train",),
        moves=(move,),
        before={},
        predicted=1.0,
        reason="",
        phase="rolled_back",
        created_at=number,
        changed_at=number,
    )
    changed: Rebalance = msgspec.structs.replace(made, **fields)
    return changed


def with_entries(world: World, **entries: Any) -> State:
    state: State = msgspec.structs.replace(world.state, **entries)
    return state


def test_a_return_that_came_to_nothing_is_a_problem():
    """It counts as out, and nothing goes on by itself when its agent has given it up."""
    world = World()
    world.deliver(alert())
    world.settle()
    world.deliver(alert(firing=False))
    world.tick(0)
    world.tick(11)
    assert codes(world) == []
    world.settle("refused", "pid 1: denied")
    (problem,) = problems(world.config, world.state, world.now, "")
    assert (problem.code, "h0/rail0" in problem.message) == ("not_returned", True)


def test_a_failover_that_an_agent_does_not_keep_up_is_a_problem():
    """After its restart the agent was paused on its host: the next job used the NIC, and it was shown as out."""
    world = World()
    world.deliver(alert())
    (action,) = world.settle()
    world.result(action, "refused", message="paused on this host by /run/x")
    world.result(action, "refused", message="paused on this host by /run/x")
    (problem,) = problems(world.config, world.state, world.now, "")
    assert (problem.code, "h0/rail0 (paused on this host" in problem.message) == ("not_kept", True)
    next_step = explain(world.config, {}, world.state, Target("h0", "rail0"), world.now)["next"]
    assert "paused on this host" in next_step
    world.result(action, "applied", processes=1)
    assert (codes(world), world.state.targets["h0/rail0"].phase) == ([], "avoided")
    events = [line.event for line in world.lines]
    assert (events.count("not_kept"), events.count("kept")) == (1, 1)


def test_a_host_that_is_off_is_no_return_that_came_to_nothing():
    """`not_returned` was shown for its NICs as long as it was off; `release` changed nothing."""
    world = World()
    world.deliver(alert())
    world.settle()
    world.deliver(alert(firing=False))
    world.tick(0)
    world.tick(11)
    world.now += 130
    world.report(["h1"])
    world.reconcile()
    assert world.state.actions[world.state.targets["h0/rail0"].op_id].outcome == "expired"
    assert codes(world) == ["agents_lost"]
    (problem,) = problems(world.config, world.state, world.now, "")
    next_step = explain(world.config, {}, world.state, Target("h0", "rail0"), world.now)["next"]
    assert ("forget HOST" in problem.message, "forget h0" in next_step) == (True, True)
    world.now += 2 * 86_400
    world.report(["h1"])
    world.reconcile()
    world.report(["h1"])
    assert codes(world) == ["agents_gone"], "its agent is forgotten, what was decided is not"
    world.report()
    assert codes(world) == ["not_returned"]
    world.run(lambda t: world.reconciler.operator.forget(t, "h0", "ada", world.now))
    assert codes(world) == []


def test_plans_for_lanes_and_hosts_wait_for_people():
    """A plan of the controller, and a drain whose command has failed: it blocks other drains (max_hosts)."""
    world = World()
    waits = plan(1, phase="awaiting_approval")
    state = with_entries(world, rebalances={"p1": waits})
    assert codes(world, state) == ["awaiting_approval"]
    approved = msgspec.structs.replace(waits, approved_at=1.0)
    assert codes(world, with_entries(world, rebalances={"p1": approved})) == []
    drain = Drain(id="d", host="h0", alert="A", reason="", phase="failed", created_at=1.0, changed_at=1.0)
    assert codes(world, with_entries(world, drains={"d": drain})) == ["drain_failed"]


def test_a_rebalancer_that_has_stopped_is_a_problem():
    """After max_unhelpful plans that did not help; not where it moves nothing anyway."""
    world = World(config("rules: []\nrebalance: {mode: auto, max_unhelpful: 3}\n"))
    plans = {f"p{i}": plan(i) for i in range(1, 4)}
    assert codes(world, with_entries(world, rebalances=plans)) == ["rebalancing_stopped"]
    assert codes(world, with_entries(world, rebalances=plans, resumed_at=4.0)) == []
    assert codes(World(), with_entries(world, rebalances=plans)) == []


def test_withdrawn_plans_say_nothing_about_what_plans_are_worth():
    """Three jobs ended while their plans were tried: that stopped the rebalancer. That lanes are not back is shown."""
    world = World(config("rules: []\nrebalance: {mode: auto, max_unhelpful: 3}\n"))
    withdrawn = {f"p{i}": plan(i, phase="rollback_failed", withdrawn=True) for i in range(1, 4)}
    state = with_entries(world, rebalances=withdrawn)
    assert codes(world, state) == ["rollback_failed"]
    assert resting(Transaction(state), 60.0, 64.0) == {}
    assert codes(world, msgspec.structs.replace(state, resumed_at=4.0)) == []


@pytest.mark.parametrize("read", [lambda c: c.copy("/x"), lambda c: c.get("/x", is_long=True)])
def test_what_reads_the_whole_journal_ends_when_nothing_comes(monkeypatch, capfdbinary, read):
    """An export ended after ten seconds in all, in the middle of a line."""
    given = []

    class Response:
        status = 200

        @property
        def content(self) -> "Response":
            return self

        async def iter_any(self) -> Any:
            yield b"{}"

        async def iter_chunked(self, _: int) -> Any:
            yield b"{}"

        async def __aenter__(self) -> "Response":
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    class Client(Response):
        def __init__(self, _: object) -> None:
            pass

        def request(self, method: str, url: str, **options: Any) -> Response:
            given.append(options["timeout"])
            return Response()

        def get(self, url: str, **options: Any) -> Response:
            return self.request("GET", url, **options)

    monkeypatch.setattr(operator_client, "HttpClient", Client)
    read(OperatorClient("http://h:1", ClientOptions()))
    assert [(timeout.total, timeout.sock_read) for timeout in given] == [(None, 600.0)]


def test_each_problem_has_a_series():
    """A code that the exposition does not know would be in `status` alone, and alert nobody."""
    source = Path(health.__file__).read_text()
    said = set(re.findall(r'Problem\(\s*"(\w+)"', source))
    assert said == {*health.CODES, "not_ready"}
