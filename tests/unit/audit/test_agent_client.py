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

from fabricpulse.audit.checks.fleet import host_silent
from fabricpulse.audit.fleet import agent_client, fleet_audit
from fabricpulse.audit.fleet.agent_client import AgentClient, DeadAgentError
from fabricpulse.audit.fleet.run import AgentError, Target, collect, post_document
from fabricpulse.audit.fleet.stage import Fleet, Silence
from fabricpulse.audit.model import HostReport, Run
from fabricpulse.audit.node.wire import FINDINGS_PATH, AuditRequest
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
                assert await client.is_alive(url)


async def test_a_miss_counts_for_the_next_request_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender gives its frozen receiver up after eight seconds, before that is known to be dead: the next request to
    it does not begin to wait anew.
    """
    monkeypatch.setattr(agent_client, "ALIVE_S", 0.1)
    monkeypatch.setattr(agent_client, "AGAIN_S", 300)
    patience = Patience(100)
    with frozen() as url:
        async with AgentClient(PATIENT, connections=1) as client:
            missed = asyncio.Event()

            class Noted(dict[str, tuple[int, float]]):
                def __setitem__(self, agent: str, state: tuple[int, float]) -> None:
                    super().__setitem__(agent, state)
                    missed.set()

            client._missed = Noted()
            await client.while_alive(f"{url}/send", missed.wait())
            monkeypatch.setattr(agent_client, "FIRST_S", 300)
            monkeypatch.setattr(agent_client, "AGAIN_S", 0.01)
            with pytest.raises(DeadAgentError):
                await client.while_alive(f"{url}/receive", asyncio.sleep(300))
    assert patience.left()


async def test_findings_of_a_silent_host_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs one question whether it is back, to which its gate owes that it is closed; and a shorter wait than one
    amid the tests.
    """
    monkeypatch.setattr(fleet_audit, "BACK_S", 0.1)
    monkeypatch.setattr(agent_client, "ALIVE_S", 300)
    monkeypatch.setattr(agent_client, "FIRST_S", 300)
    posted = []
    patience = Patience(100)

    async def take(request: web.Request) -> web.Response:
        posted.append(request.path)
        return web.Response(text="kept")

    application = web.Application()
    application.router.add_get("/-/healthy", take)
    application.router.add_post(FINDINGS_PATH, take)
    hosts = tuple(HostReport(name, 0.0, 0.0, (), (), "1") for name in ("back", "gone"))
    silent = [host_silent.CHECK.finding(host.host, "", "no answer any more") for host in hosts]
    run = Run("r", 0.0, 0.0, ("back", "gone"), hosts, tuple(silent))
    with frozen() as url:
        async with TestServer(application) as server:
            back = str(server.make_url("/")).rstrip("/")
            targets = [Target("back", back, {}), Target("gone", url, {})]
            not_published = await fleet_audit._publish(targets, PATIENT, run, ("back", "gone"), None)
    assert patience.left()
    assert not_published == ["gone: its agent has fallen silent"]
    assert posted == ["/-/healthy", FINDINGS_PATH]


def test_who_is_dead_is_not_asked_twice() -> None:
    """One request without an answer may be a busy host's."""
    silence = Silence()
    silence.unanswered("busy")
    silence.unanswered("dead", dead=True)
    assert [silence.silent(host) for host in ("busy", "dead")] == [False, True]
