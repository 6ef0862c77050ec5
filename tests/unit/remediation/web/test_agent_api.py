"""Who speaks for a host, as the receiver sees it: by its own name, or by the address that reports for it."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from tests.unit.remediation.world import RULES_AUTO, START, config

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.log_limit import LogLimit
from fabricpulse.core.web.connections import network_of
from fabricpulse.remediation.protocol import DesiredState, Envelope, end_of
from fabricpulse.remediation.receiver.commit_loop import CommitLoop
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state.model import Action, Target, TargetState
from fabricpulse.remediation.receiver.state.transaction import Transaction
from fabricpulse.remediation.receiver.store.sql_store import SqlStore
from fabricpulse.remediation.receiver.store.sqlite_database import SqliteDatabase
from fabricpulse.remediation.receiver.web import agent_api as agent_api_module
from fabricpulse.remediation.receiver.web.agent_api import AgentApi
from fabricpulse.remediation.receiver.web.agent_room import AgentRoom
from fabricpulse.remediation.receiver.web.auth import Principal

# As in the product: a key of its type is newer than the oldest aiohttp that we take.
pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")


@asynccontextmanager
async def receiver(
    folder: Path, principal: Principal, text: str = "", step_s: float = 0.0, **inventory: frozenset[str]
) -> AsyncIterator[tuple[AgentApi, CommitLoop, TestClient]]:  # type: ignore[type-arg]
    """The agents' API on a journal, asked by `principal`. text : configuration. step_s : between two readings of the
    clock."""
    store = SqlStore(SqliteDatabase(folder / "j.db"))
    now = itertools.count(START, step_s)
    loop, life = CommitLoop(store, lambda _transaction, _now: None, lambda: next(now)), object()
    await loop.start(lambda transaction, _: transaction.log("fleet", "started"))
    api = AgentApi(
        loop,
        Reconciler(config(text), inventory),
        life,  # type: ignore[arg-type]
        lambda payload: Envelope(payload.decode()),
        lambda: 60.0,
    )

    @web.middleware
    async def identify(request: web.Request, handler: Any) -> Any:
        request["principal"] = principal
        return await handler(request)

    app = web.Application(middlewares=[identify])
    api.add(app.router)
    running = asyncio.create_task(loop.run())
    try:
        async with TestClient(TestServer(app)) as client:
            yield api, loop, client
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        store.close()


SHARED = Principal("agents", ("agent",))


async def report(client: Any, host: str, **fields: Any) -> int:
    async with client.post(f"/api/v1/agents/{host}/report", json=fields) as answer:
        return int(answer.status)


async def desired_of(client: Any, query: str = "") -> DesiredState:
    async with client.get(f"/api/v1/agents/h0/desired?{query}") as answer:
        envelope = msgspec.json.decode(await answer.read(), type=Envelope)
        return msgspec.json.decode(envelope.payload, type=DesiredState)


@pytest.mark.parametrize(
    ("principal", "inventory", "source"),
    [
        (SHARED, {}, "127.0.0.1"),
        (Principal("", ("agent",)), {}, "127.0.0.1"),
        (Principal("agent of h0", ("agent",), "h0"), {}, ""),
        (SHARED, {"h0": frozenset({"rail0"})}, ""),
    ],
    ids=["shared token", "no token", "own token", "member"],
)
async def test_a_host_is_known_by_its_address_unless_it_proves_its_name(
    tmp_path, principal, inventory, source
):
    """A token of its own proves it; a membership file says that there is such a host."""
    async with receiver(tmp_path, principal, **inventory) as (_, loop, client):
        assert await report(client, "h0", users=[0, 1001]) == 200
        assert (loop.state.agents["h0"].source, loop.state.agents["h0"].users) == (source, (0, 1001))


@pytest.mark.parametrize("inventory", [{}, {"h0": frozenset({"rail0"})}], ids=["no membership", "member"])
async def test_a_stranger_does_not_undo_a_hosts_failover(tmp_path, inventory):
    """Where no agent has an identity of its own, one made-up report of anybody had it undone. One that has, counts from
    wherever it comes."""
    made_up = {"results": [{"op_id": "h0/rail0#1", "outcome": "refused"}]}
    async with receiver(tmp_path, SHARED, **inventory) as (api, loop, client):
        await loop.submit(lambda transaction, _: put_failover(transaction))
        now = loop.clock()
        for second in range(-700, 0, 5):
            assert api._reporters.admits("h0", "127.0.0.1", now + second, 15.0)
        assert await report(client, "h0") == 200
        api._address = lambda _request: "10.0.0.66"
        assert await report(client, "h0", **made_up) == 403
        assert (loop.state.actions["h0/rail0#1"].outcome, api.refused["address"]) == ("pending", 1)
    async with receiver(tmp_path / "own", Principal("agent of h0", ("agent",), "h0")) as (api, loop, client):
        await loop.submit(lambda transaction, _: put_failover(transaction))
        assert await report(client, "h0") == 200
        assert await report(client, "h0", **made_up) == 200
        assert loop.state.actions["h0/rail0#1"].outcome == "refused"


def put_failover(transaction: Transaction) -> None:
    target = Target("h0", "rail0")
    transaction.put_action(
        Action(
            op_id="h0/rail0#1", target=target, action="nic.avoid", desired="avoid", generation=1, reason="x",
            created_at=START,
        )
    )  # fmt: skip
    transaction.put_target(
        TargetState(target=target, desired="avoid", phase="avoiding", generation=1, op_id="h0/rail0#1")
    )


async def test_an_address_fills_so_much_of_the_journal(tmp_path, monkeypatch):
    """Each made-up host may join, and hold ever newer NICs: a line each, a thousand a host. All of them together have
    the address' share; what brings no line is taken."""
    monkeypatch.setattr(agent_api_module, "SOURCE_BURST", 50)
    async with receiver(tmp_path, SHARED) as (api, loop, client):
        held = {f"nic{i}": {"desired": "avoid", "generation": 7} for i in range(9)}
        statuses = [await report(client, f"made-up{i}", held=held) for i in range(8)]
        assert statuses == [200] * 5 + [429] * 3
        assert api.refused["lines"] == 3
        assert await report(client, "made-up0", held=held) == 200
        assert len(loop.state.agents) == 5
    async with receiver(tmp_path / "own", Principal("agent of h0", ("agent",), "h0")) as (_, loop, client):
        for generation in range(1, 20):
            held = {f"nic{i}": {"desired": "avoid", "generation": generation} for i in range(9)}
            assert await report(client, "h0", held=held) == 200, "it has a share of its own"


async def test_a_host_that_made_room_is_forgotten(tmp_path):
    """In the state as well, also where the report that it made room for is refused."""
    async with receiver(tmp_path, SHARED) as (api, loop, client):
        api._room = AgentRoom(max_hosts=3)
        for i in range(3):
            assert await report(client, f"made-up{i}") == 200
        assert await report(client, "made-up3") == 503
        assert api.refused["room"] == 1
        api._source = lambda _request, _host: "10.0.0.1"
        assert await report(client, "h0") == 200
        assert set(loop.state.agents) == {"made-up0", "made-up1", "h0"}


async def test_lanes_of_made_up_hosts_are_no_evidence(tmp_path):
    """They collide with everybody's as somebody likes: of hosts that nobody has proven one counts for each address."""
    lane = ["7", f"{1:016x}", 0, "job", "rail0", 40_000, 1, 1e6, 1e6, 1e-4, 0, 0]
    async with receiver(tmp_path, SHARED, "rebalance: {mode: auto}\n", 10.0) as (api, _, client):
        addresses = {"h0": "10.0.0.1", "h1": "10.0.0.2", "fake0": "10.0.0.9", "fake1": "10.0.0.9"}
        api._source = lambda _request, host: addresses[host]
        for _ in range(2):
            for host in addresses:
                assert await report(client, host, lanes=[lane]) == 200
        believed = {key.partition("/")[0] for key in api._reconciler.evidence._lanes}
        assert believed == {"h0", "h1", "fake0"}


async def test_agents_learn_of_another_policy_at_once(tmp_path):
    """And not when their long poll ends, half a minute later; those for whom nothing has changed go on waiting."""
    async with receiver(tmp_path, SHARED) as (api, _, client):
        api._life = Lifetime()
        api._life.ready()
        first = await desired_of(client)
        assert not first.report_lanes
        waiting = asyncio.create_task(desired_of(client, f"version={first.version}&wait=30"))
        while not api._waiting:  # noqa: ASYNC110 - the handler has no event of its own
            await asyncio.sleep(0)
        api.wake_all()
        await desired_of(client)
        assert not waiting.done()
        api._reconciler.set_policy(config("rebalance: {mode: auto}\n"), {})
        api.wake_all()
        async with asyncio.timeout(10):
            assert (await waiting).report_lanes


async def decide(loop: CommitLoop, created_at: float) -> str:
    """A failover of rail0 of h0 that no agent has fetched is in the journal; returns its operation."""
    target = Target("h0", "rail0")
    action = Action(
        op_id="h0/rail0#7",
        target=target,
        action="nic.avoid",
        desired="avoid",
        generation=7,
        reason="FabricNicFlapping is firing",
        alert="FabricNicFlapping",
        created_at=created_at,
    )
    state = TargetState(target=target, desired="avoid", phase="avoiding", generation=7, op_id=action.op_id)

    def change(transaction: Transaction, _now: float) -> None:
        transaction.put_target(state)
        transaction.put_action(action)

    await loop.submit(change)
    return action.op_id


async def test_a_failover_is_valid_for_as_long_as_its_decision(tmp_path):
    """Whenever its agent fetches it, and however often."""
    async with receiver(tmp_path, SHARED, RULES_AUTO) as (_, loop, client):
        op_id = await decide(loop, START - 70)
        for _ in range(2):
            desired = await desired_of(client)
            (nic,) = desired.nics
            assert end_of(nic, desired.not_after) - time.time() == pytest.approx(50, abs=5)
            assert desired.not_after - time.time() == pytest.approx(60, abs=5)
        assert loop.state.actions[op_id].sent_at == START


async def test_a_pause_that_comes_while_a_failover_is_handed_out_stops_it(tmp_path):
    """The agent's request waits for the journal; the kill switch is answered first."""
    async with receiver(tmp_path, SHARED, RULES_AUTO) as (api, loop, client):
        await decide(loop, START)
        on_sent = api._on_sent

        def paused_meanwhile(op_ids: list[str], transaction: Any, now: float) -> None:
            api._reconciler.operator.pause(transaction, "stop", "ada", now)
            on_sent(op_ids, transaction, now)

        api._on_sent = paused_meanwhile
        assert (await desired_of(client)).nics == []


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
    ],
)
def test_one_host_has_a_network_of_ipv6_addresses(address, network):
    """They cost it nothing."""
    assert network_of(address) == network


async def test_refusals_are_in_the_log_again_after_a_flood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once a hundred made-up hosts were refused, no other one was ever named: the runbook says that the log has it."""
    now = [0.0]
    monkeypatch.setattr(agent_api_module, "LogLimit", partial(LogLimit, clock=lambda: now[0]))
    async with receiver(tmp_path, SHARED) as (api, _, _):

        def warned(*hosts: str) -> int:
            before = len(caplog.records)
            for host in hosts:
                api._warn(host, "another address reports for it", "10.0.0.66")
            return len(caplog.records) - before

        assert warned("h0", "h0") == 1
        assert warned(*(f"made-up-{number}" for number in range(200))) == 99
        assert warned("h1") == 0
        now[0] = 600.0
        assert warned("h0", "h1") == 2
