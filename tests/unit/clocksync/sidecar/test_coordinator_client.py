"""What a sidecar asks of a coordinator when it reports by HTTP."""

import asyncio

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.unit.clocksync.sidecar.reports import empty_report

from fabricpulse.clocksync.sidecar.coordinator_client import CoordinatorClient
from fabricpulse.clocksync.wire.messages import (
    PROTOCOL,
    ROUND_PATH,
    Channel,
    EdgeReport,
    HostInfo,
    RoundReply,
    RoundReport,
    pack_edges,
    report_decoder,
)
from fabricpulse.core.web.client import HttpClient
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.token_file import TokenFile


@pytest.mark.parametrize(("edges", "asks"), [(132, True), (133, False)])
async def test_a_channel_is_asked_for_where_reports_fit_datagrams(edges: int, asks: bool) -> None:
    """A host with more edges than that: a channel would be opened at each round, and not used."""
    received: list[RoundReport] = []

    async def serve_round(request: web.Request) -> web.Response:
        received.append(report_decoder.decode(await request.read()))
        reply = RoundReply(1, None, "a", False, b"", "", None, 1)
        return web.Response(body=msgspec.msgpack.encode(reply))

    def report(with_info: bool) -> RoundReport:
        info = HostInfo(1, "", (), (), "none") if with_info else None
        block = pack_edges(EdgeReport(0, 0, 0, 0, 1, 1, 1, k, 0) for k in range(edges))
        return RoundReport(PROTOCOL, "a", 1, 1, 0, block, None, None, "", 0, info)

    app = web.Application()
    app.router.add_post(ROUND_PATH, serve_round)
    async with TestServer(app) as server, HttpClient(HttpClientConfig()) as http:
        client = CoordinatorClient(TokenFile(""))
        for _ in range(2):
            url = str(server.make_url(""))
            await client.report(http, [url], report, lambda *_: None, wait_s=10.0, follow_s=2.0)
        await client.close()
    assert [report.datagrams for report in received] == [asks, asks]
    assert [report.info is not None for report in received] == [True, False]


async def test_after_a_lost_datagram_the_report_by_http_says_who_the_host_is() -> None:
    """A coordinator that was restarted meanwhile then need not ask for it."""
    received: list[RoundReport] = []

    async def serve_round(request: web.Request) -> web.Response:
        received.append(report_decoder.decode(await request.read()))
        reply = RoundReply(1, None, "a", False, b"", "", None, 1, channel=Channel(1, bytes(16)))
        return web.Response(body=msgspec.msgpack.encode(reply))

    app = web.Application()
    app.router.add_post(ROUND_PATH, serve_round)
    async with TestServer(app) as server, HttpClient(HttpClientConfig()) as http:
        client = CoordinatorClient(TokenFile(""))
        url = str(server.make_url(""))
        for _ in range(2):  # on the port of the second's datagram nobody listens
            await client.report(http, [url], empty_report, lambda *_: None, wait_s=10.0, follow_s=2.0)
        await client.close()
    assert [report.info is not None for report in received] == [True, True]


async def test_a_fault_in_a_report_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged for each coordinator, the call returns, and the next round tries again."""

    def report(_: bool) -> RoundReport:
        raise ZeroDivisionError

    async with HttpClient(HttpClientConfig()) as http:
        client = CoordinatorClient(TokenFile(""))
        urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
        for _ in range(2):
            await client.report(http, urls, report, lambda *_: None, wait_s=10.0, follow_s=2.0)
        await client.close()
    assert [r.getMessage() for r in caplog.records].count("report failed") == 4
    assert not client.up


async def test_a_coordinator_may_answer_until_a_report_to_it_has_failed() -> None:
    """While the first report, or one after an answer, is under way, it is not gone; when it has failed, it is, also
    while the next is tried; with the next answer it is there again."""
    go_on, asked = asyncio.Event(), asyncio.Event()
    fails = False

    async def serve_round(request: web.Request) -> web.Response:
        asked.set()
        await go_on.wait()
        if fails:
            raise web.HTTPServiceUnavailable
        reply = RoundReply(1, None, "a", False, b"", "", None, 1)
        return web.Response(body=msgspec.msgpack.encode(reply))

    def report(_: bool) -> RoundReport:
        return RoundReport(PROTOCOL, "a", 1, 1, 0, b"", None, None, "", 0, None)

    app = web.Application()
    app.router.add_post(ROUND_PATH, serve_round)
    async with TestServer(app) as server, HttpClient(HttpClientConfig()) as http:
        client = CoordinatorClient(TokenFile(""), datagrams=False)
        assert not client.may_answer, "without coordinators nobody does"

        async def state_of_a_round() -> tuple[bool, bool]:
            """While the report is under way, and once it has ended."""
            go_on.clear()
            asked.clear()
            url = str(server.make_url(""))
            ended = asyncio.create_task(
                client.report(http, [url], report, lambda *_: None, wait_s=60, follow_s=2)
            )
            await asked.wait()
            meanwhile = client.may_answer
            go_on.set()
            await ended
            return meanwhile, client.may_answer

        assert await state_of_a_round() == (True, True)
        fails = True
        assert await state_of_a_round() == (True, False)
        fails = False
        assert await state_of_a_round() == (False, True)
        await client.close()
