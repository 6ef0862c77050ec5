"""Agents that do not answer: who is alive is waited for, who is not costs seconds, whatever it was asked for."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.fixtures.descriptors import none_left
from tests.fixtures.waiting import Patience

from fabricpulse.audit.fleet import agent_client
from fabricpulse.audit.fleet.agent_client import AgentClient
from fabricpulse.audit.fleet.run import AgentError, Target, collect, post_document
from fabricpulse.audit.fleet.stage import Fleet, Silence
from fabricpulse.audit.node.wire import AuditRequest
from fabricpulse.audit.pair_tests.path_tests import PathDirections
from fabricpulse.core.web.client_config import HttpClientConfig

PATIENT = HttpClientConfig(timeout_s=300)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_S", "AGAIN_S", "SELDOM_S"):
        monkeypatch.setattr(agent_client, name, 0.01)


@contextmanager
def frozen() -> Iterator[str]:
    """The kernel of a host whose processes stand still takes connections, and nobody reads."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def test_a_frozen_agent_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up long before the time limit of what it was asked for."""
    monkeypatch.setattr(agent_client, "ALIVE_S", 0.1)
    patience = Patience(100)
    with frozen() as url:
        reports, silent = await collect([Target("h0", url, {})], PATIENT, host_timeout_s=300)
    assert patience.left()
    assert (reports, silent) == ([], {"h0": "no answer, not even whether its agent is alive"})


async def test_an_agent_that_works_is_waited_for() -> None:
    """As long as it says that it is alive, however often it is asked; it need not know the path."""
    asked, enough = 0, asyncio.Event()

    async def healthy(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked > 20:
            enough.set()
        return web.Response(status=404)

    async def works(_: web.Request) -> web.Response:
        await enough.wait()
        return web.Response(text="done")

    application = web.Application()
    application.router.add_get("/-/healthy", healthy)
    application.router.add_post("/work", works)
    async with TestServer(application) as server, AgentClient(PATIENT, connections=1) as client:
        await post_document(client, str(server.make_url("/work")), AuditRequest({}))
    assert asked > 20


async def test_a_sender_is_not_waited_for_whose_receiver_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is alive, and has still patience with the other end; it is that one that is given up."""
    monkeypatch.setattr(agent_client, "ALIVE_S", 0.1)

    async def sends(_: web.Request) -> web.Response:
        await asyncio.sleep(300)
        return web.Response()

    application = web.Application()
    application.router.add_post("/send", sends)
    patience = Patience(100)
    with frozen() as url:
        async with TestServer(application) as server, AgentClient(PATIENT, connections=1) as client:
            targets = {"a": Target("a", str(server.make_url("/")).rstrip("/"), {}), "b": Target("b", url, {})}
            fleet = Fleet(targets, PATIENT, PathDirections({}, []), {}, asyncio.Event())
            with pytest.raises(AgentError) as refused:
                await fleet.ask(client, "a", "/send", AuditRequest({}), AuditRequest, 300, "b")
    assert patience.left()
    assert refused.value.of_peer
    assert (fleet.silence.silent("a"), fleet.silence.silent("b")) == (False, True)


async def test_without_a_descriptor_nobody_is_dead() -> None:
    """The fault is this process's own."""
    with frozen() as url:
        async with AgentClient(PATIENT, connections=1) as client:
            with none_left():
                assert await client._is_alive(f"{url}/-/healthy")


def test_who_is_dead_is_not_asked_twice() -> None:
    """One request without an answer may be a busy host's."""
    silence = Silence()
    silence.unanswered("busy")
    silence.unanswered("dead", dead=True)
    assert [silence.silent(host) for host in ("busy", "dead")] == [False, True]
