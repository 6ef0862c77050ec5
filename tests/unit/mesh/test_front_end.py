"""The front-end network: dead when nobody on it answers, unknown until somebody has, and never our own stall."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.ports import reserved_port

from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.mesh import front_end
from fabricpulse.mesh.config import MeshConfig
from fabricpulse.mesh.front_end import MISSED_ROUNDS, FrontEndHealth, FrontEndWatch, targets_of
from fabricpulse.mesh.snapshot import HealthState


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
def test_health_holds_for_any_history(rounds):
    """Down exactly after three silent rounds on time in a row since an answer; each change is reported once."""
    health = FrontEndHealth()
    seen, run, reported = False, 0, 0
    for now, (answered, on_time) in enumerate(rounds):
        before = health.state
        changed = health.update(answered, on_time, float(now))
        seen = seen or answered
        run = 0 if answered or not on_time else run + 1
        if not seen:
            assert health.state == HealthState.UNKNOWN
        elif answered:
            assert health.state == HealthState.UP
        elif before == HealthState.UP:
            assert (health.state == HealthState.DOWN) == (run >= MISSED_ROUNDS)
        else:
            assert health.state == HealthState.DOWN
        assert changed == ({before, health.state} == {HealthState.UP, HealthState.DOWN})
        reported += changed and health.state == HealthState.DOWN
    assert health.disconnects == reported


def test_outage_is_from_answer_to_answer():
    health = FrontEndHealth()
    health.update(True, True, 10.0)
    for now in (12.0, 14.0, 16.0):
        health.update(False, True, now)
    assert (health.disconnects, health.down_s, health.silent_s(16.0)) == (1, 0.0, 6.0)
    health.update(True, True, 18.0)
    assert health.down_s == 8.0


def test_targets_are_the_servers_that_are_used():
    text = """
    membership: {url: "https://coordinator/api/v1/membership"}
    alerting: {alertmanagers: ["http://am-0:9093", "http://[fd00::1]:9093/prefix", "http://am-0:9093", "http://127.0.0.1:9093"]}
    front_end: {targets: ["prometheus:9090", "localhost:1"]}
    """
    config = parse_config(text, MeshConfig, "mesh.yaml")
    assert targets_of(config) == (
        ("prometheus", 9090),
        ("am-0", 9093),
        ("fd00::1", 9093),
        ("coordinator", 443),
    )


@pytest.mark.parametrize(
    "target", ["prometheus", "prometheus:", ":9090", "http://prometheus:9090", "a:b", "[::1:9"]
)
def test_a_target_that_is_none_is_refused(target):
    with pytest.raises(ConfigError, match="host:port"):
        parse_config(f"front_end: {{targets: ['{target}']}}", MeshConfig, "mesh.yaml")


async def test_a_refusal_is_an_answer_and_silence_is_none(monkeypatch):
    """One server refuses: connected. It falls silent: disconnected after three rounds, then connected again."""
    changes = []
    changed = asyncio.Event()

    def note(connected, silent_s):
        changes.append(connected)
        changed.set()

    watch = FrontEndWatch([("127.0.0.1", reserved_port())], 0.05, note)
    rounds = asyncio.create_task(watch.run())
    async with asyncio.timeout(60):
        while watch.health.state != HealthState.UP:  # noqa: ASYNC110 - the watch reports losses and returns alone
            await asyncio.sleep(0)

        real = asyncio.open_connection

        async def silent(*_):
            await asyncio.Event().wait()

        monkeypatch.setattr(front_end.asyncio, "open_connection", silent)
        await changed.wait()
        assert changes == [False]
        assert list(watch.described().values()) == ["no answer within 0.05 s"]
        changed.clear()
        monkeypatch.setattr(front_end.asyncio, "open_connection", real)
        await changed.wait()
    assert changes == [False, True]
    rounds.cancel()
    await asyncio.gather(rounds, return_exceptions=True)


async def test_a_name_that_hangs_takes_one_look_up(monkeypatch):
    """The name server is on the dead network: rounds go on, and no thread is taken for each of them."""
    lookups = 0

    async def hang(host):
        nonlocal lookups
        lookups += 1
        await asyncio.Event().wait()

    monkeypatch.setattr(front_end, "_look_up", hang)
    watch = FrontEndWatch([("prometheus", 9090)], 0.02, lambda *_: None)
    rounds = asyncio.create_task(watch.run())
    async with asyncio.timeout(60):
        while watch.health._missed < 5:  # noqa: ASYNC110 - the watch reports losses and returns alone
            await asyncio.sleep(0.01)
    assert lookups == 1
    assert watch.health.state == HealthState.UNKNOWN
    rounds.cancel()
    await asyncio.gather(rounds, return_exceptions=True)


async def test_a_name_that_cannot_be_resolved_is_reported_and_rounds_go_on():
    """What the resolver refuses to ask for is an answer like any other; the rounds go on."""
    watch = FrontEndWatch([("prometheus..example", 9090)], 0.02, lambda *_: None)
    rounds = asyncio.create_task(watch.run())
    async with asyncio.timeout(60):
        while watch.health._missed < 2:
            assert not rounds.done()
            await asyncio.sleep(0.01)
    assert list(watch.described().values()) == ["prometheus..example is no host name"]
    rounds.cancel()
    await asyncio.gather(rounds, return_exceptions=True)


async def test_without_targets_nothing_is_said():
    watch = FrontEndWatch([], 1, lambda *_: None)
    await watch.run()
    assert watch.health.state == HealthState.UNKNOWN
