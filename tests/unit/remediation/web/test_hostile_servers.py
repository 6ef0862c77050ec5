"""Whoever has the port of a server that a daemon asks can neither end it nor fill its memory."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from fabricpulse.core.web.client import HttpClient
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.remediation.node import mesh
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.node.mesh import MeshNics, SquattedError, parse_mesh, scrape_mesh
from fabricpulse.remediation.node.receiver_client import ReceiverClient, ReceiverError
from fabricpulse.remediation.protocol import MAX_NICS, Report
from fabricpulse.remediation.receiver import alertmanager_poll
from fabricpulse.remediation.receiver.alertmanager_poll import AlertmanagerPolls

LINE = 'fabricpulse_nic_connected{device="rail0"} 1\n'
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def endless(request: web.Request) -> web.StreamResponse:
    """A body without an end."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(LINE.encode() * 1000)


@asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[str]:
    """The URL of a server that answers so whatever it is asked."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("charset", ["zlib", "no such", "utf-16", "idna"])
async def test_a_mesh_exporter_that_claims_a_charset(charset: str) -> None:
    """What is no charset of a text ended the agent; an exposition is UTF-8 whatever its header says."""

    async def claims(_request: web.Request) -> web.Response:
        return web.Response(body=LINE.encode(), headers={"Content-Type": f'text/plain; charset="{charset}"'})

    async with served(claims) as url, HttpClient(HttpClientConfig(timeout_s=20)) as client:
        assert await scrape_mesh(client, url) == MeshNics({"rail0": True})


async def test_a_mesh_exporter_of_another_user() -> None:
    """Who has the port of one that does not run could say that a NIC is healthy, and so bring it back into service."""

    async def claims(_request: web.Request) -> web.Response:
        return web.Response(body=LINE.encode())

    own = os.getuid()
    async with served(claims) as url, HttpClient(HttpClientConfig(timeout_s=20)) as client:
        assert await scrape_mesh(client, url, {own, own + 1}) == MeshNics({"rail0": True})
        with pytest.raises(SquattedError, match=f"user {own} "):
            await scrape_mesh(client, url, {own + 1})


async def test_a_mesh_exporter_of_another_user_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody listened before it was asked, or listens afterwards."""
    seen: list[frozenset[int]] = []
    monkeypatch.setattr(mesh, "listeners", lambda _url: seen.pop(0))

    async def claims(_request: web.Request) -> web.Response:
        return web.Response(body=LINE.encode())

    async with served(claims) as url, HttpClient(HttpClientConfig(timeout_s=20)) as client:
        for seen[:] in ([frozenset(), frozenset({7})], [frozenset({7}), frozenset()]):
            with pytest.raises(SquattedError):
                await scrape_mesh(client, url, {8})


async def test_answers_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is given up at its bound, long before the time limit: none fills the memory."""
    monkeypatch.setattr(mesh, "_MOST_BODY", 1 << 20)
    monkeypatch.setattr(alertmanager_poll, "_MOST_BODY", 1 << 20)
    async with served(endless) as url:
        async with HttpClient(HttpClientConfig(timeout_s=600)) as client:
            assert await scrape_mesh(client, url) == MeshNics()
            assert await AlertmanagerPolls(lambda: None).ask(client, (url,)) == [None]
        agent = ReceiverClient(NodeConfig(host="h0", receiver=url))
        try:
            with pytest.raises(ReceiverError, match="larger than"):
                await agent.fetch_desired("")
        finally:
            await agent.close()


async def test_redirects_are_not_followed() -> None:
    """Who has the port of a server had root's agent ask others, as the metadata of a cloud; and a POST that became a
    GET of a page of a login was taken for done."""
    asked: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        asked.append(f"{request.method} {request.path}")
        if request.path == "/secret":
            return web.Response(text=LINE)
        raise web.HTTPFound("/secret")

    async with served(elsewhere) as url:
        async with HttpClient(HttpClientConfig(timeout_s=20)) as client:
            assert await scrape_mesh(client, url) == MeshNics()
            assert await AlertmanagerPolls(lambda: None).ask(client, (url,)) == [None]
            async with client.post(url) as response:
                assert response.status == 302
        agent = ReceiverClient(NodeConfig(host="h0", receiver=url))
        try:
            with pytest.raises(ReceiverError, match="HTTP 302"):
                await agent.fetch_desired("")
            with pytest.raises(ReceiverError, match="HTTP 302"):
                await agent.report(Report())
        finally:
            await agent.close()
    assert (len(asked), "secret" in str(asked)) == (5, False)


async def test_an_answer_that_is_nested_too_deep() -> None:
    """Some kilobytes of brackets ended the agent."""

    async def nested(_request: web.Request) -> web.Response:
        return web.Response(text='{"x":' + "[" * 20_000 + "]" * 20_000 + "}")

    async with served(nested) as url:
        agent = ReceiverClient(NodeConfig(host="h0", receiver=url))
        try:
            with pytest.raises(ReceiverError, match="recursion"):
                await agent.fetch_desired("")
        finally:
            await agent.close()


def test_lines_of_a_mesh_exporter_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In number and length, also those of a counter alone: a million of them held up the agent for a minute."""
    parsed: list[str] = []

    def families(text: str) -> list[object]:
        parsed.append(text)
        return []

    monkeypatch.setattr(mesh, "text_string_to_metric_families", families)
    parse_mesh("fabricpulse_nic_disconnects_total{} 1\n" * 100_000)
    parse_mesh(f'fabricpulse_nic_connected{{device="{"x" * 1_000_000}"}} 1\n')
    assert parsed[0].count("\n") <= 10 * MAX_NICS
    assert len(parsed[1]) < 10
