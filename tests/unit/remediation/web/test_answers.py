"""Who reads much, and does not take it, holds up nobody and fills no memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import ClientPayloadError, web
from aiohttp.test_utils import TestClient, TestServer
from tests.unit.remediation.world import World, alert

from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.remediation.receiver.exposition import Scrapes
from fabricpulse.remediation.receiver.state.model import Held, State, Target, TargetState
from fabricpulse.remediation.receiver.state.transaction import Transaction
from fabricpulse.remediation.receiver.web import answers as answers_module
from fabricpulse.remediation.receiver.web.answers import Answers

LONG = 8 << 20


@asynccontextmanager
async def server(answers: Answers, made: list[int], size: int) -> AsyncIterator[TestClient]:  # type: ignore[type-arg]
    """Serves a list with so many characters. made : its numbers."""

    def make() -> list[Any]:
        made.append(len(made))
        return [made[-1], "x" * size]

    async def get(request: web.Request) -> web.StreamResponse:
        return await answers.document(request, make)

    async def other(request: web.Request) -> web.StreamResponse:
        return await answers.content(request, msgspec.json.encode(make()))

    app = web.Application()
    app.router.add_get("/list", get)
    app.router.add_get("/other", other)
    async with TestClient(TestServer(app)) as client:
        yield client


async def taken_later(client: Any, path: str = "/list") -> tuple[Any, Any]:
    """A connection whose answer is not read."""
    reader, writer = await asyncio.open_connection(client.host, client.port, limit=1 << 10)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await reader.readline()
    return reader, writer


async def test_a_long_document_is_made_once_for_all_who_ask(monkeypatch):
    """And anew when it has been given out for ten times as long as it took."""
    made: list[int] = []
    answers = Answers()
    async with server(answers, made, LONG) as client:
        monkeypatch.setattr(answers_module, "_SPACING", 1e9)
        asked = await asyncio.gather(*(client.get("/list") for _ in range(4)))
        found = [await answer.json() for answer in asked]
        assert [number for number, _ in found] == [0] * 4
        assert {len(text) for _, text in found} == {LONG}
        assert answers.held == 0
        answers._made["/list"].until = 0.0
        assert (await (await client.get("/list")).json())[0] == 1


@pytest.mark.parametrize("count", [0, 1, 2_000, 2_001, 9_000])
async def test_others_are_answered_while_a_long_one_is_made(count):
    """200,000 alerts held up the webhook for 0.4 s; now a part of them at a time, to the same bytes."""
    entries = [{"host": f"h{number}", "devices": {"rail0": True}} for number in range(count)]
    document = {"now": 1.5, "agents": entries, "rules": [], 'a "key"': {"empty": {}}}
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other())
    for each in (document, entries):
        turns = 0
        assert b"".join([part async for part in answers_module._encoded(each)]) == msgspec.json.encode(each)
        assert turns >= (count // 2_000 if count > 2_000 else 0)
    task.cancel()


async def test_a_short_one_is_always_new():
    """Who has ordered something sees it at once."""
    made: list[int] = []
    async with server(Answers(), made, 100) as client:
        assert [(await (await client.get("/list")).json())[0] for _ in range(3)] == [0, 1, 2]


async def test_what_is_not_taken_has_a_bound(monkeypatch):
    """Ten clients that ask and do not read: 503 for whoever would need more, until they are gone."""
    monkeypatch.setattr(answers_module, "_SPACING", 0)
    made: list[int] = []
    answers = Answers(max_bytes=3 * LONG)
    async with server(answers, made, LONG) as client:
        held = [await taken_later(client, path) for path in ("/list", "/other", "/list")]
        assert 3 * LONG <= answers.held <= 3 * LONG + 1_000
        for path in ("/list", "/other"):
            answer = await client.get(path)
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(60):
            while answers.held:  # noqa: ASYNC110 - the server meets the end of the connections
                await asyncio.sleep(0.01)
        assert (await client.get("/list")).status == 200


async def test_an_export_that_finds_no_room_is_no_whole_one():
    """Those that nobody takes have the same bound; the client of one that ends early sees that it does."""
    answers = Answers(max_bytes=2 * LONG)

    async def pages() -> AsyncIterator[bytes]:
        yield b"1\n"
        yield b"x" * LONG

    async def export(request: web.Request) -> web.StreamResponse:
        answer: web.StreamResponse = await answers.lines(request, pages())
        return answer

    app = web.Application()
    app.router.add_get("/export", export)
    async with TestClient(TestServer(app)) as client:
        assert await (await client.get("/export")).read() == b"1\n" + b"x" * LONG
        held = [await taken_later(client, "/export") for _ in range(2)]
        async with asyncio.timeout(60):
            while answers.held < 2 * LONG:  # noqa: ASYNC110 - both have come to the page that nobody takes
                await asyncio.sleep(0.01)
        assert (await client.get("/export")).status == 503
        answers.held -= 1
        with pytest.raises(ClientPayloadError):
            await (await client.get("/export")).read()
        answers.held += 1
        for _, writer in held:
            writer.close()


def test_scrapes_take_a_share_of_the_time_only():
    """One that takes 2 ms is made for each who asks; one of 50 ms, of very many alerts, once in 550 ms."""
    for took, expected in ((0.002, 100), (0.05, 2)):
        now, made, scrapes = 0.0, 0, Scrapes()

        def make(_: TextFormat, took: float = took) -> bytes:
            nonlocal now, made
            now, made = now + took, made + 1
            return str(made).encode()

        for turn in range(100):
            now = max(now, turn * 0.01)
            assert scrapes.answer(TextFormat.PLAIN, make, lambda: now) == str(made).encode()  # noqa: B023
        assert made == expected
    assert scrapes.answer(TextFormat.OPENMETRICS, make, lambda: now) == b"3", "each format has its own"


def test_targets_of_a_host_follow_what_is_committed():
    """The desired state of a host, and how many NICs it may hold, is looked up by host: what a search finds, always."""
    world = World(hosts=3)

    def found(host: str) -> set[str]:
        return set(world.state.targets_of_host.of(world.state.targets, host))

    def searched(host: str) -> set[str]:
        return {key for key, target in world.state.targets.items() if target.target.host == host}

    assert found("h0") == set()
    for turn in range(3):
        world.deliver(*(alert(f"h{i}", f"rail{(i + turn) % 2}", firing=turn != 1) for i in range(3)))
        world.deliver(alert("unknown", f"nic{turn}"))
        for _ in range(2):
            world.report(["h1"], held={f"nic{i}": Held("avoid", 10**12) for i in range(turn + 1)})
        for host in ("h0", "h1", "h2", "unknown"):
            assert found(host) == searched(host)
    assert len(found("h1")) > 3
    world.deliver(*(alert("unknown", f"nic{turn}", firing=False) for turn in range(3)))
    assert found("unknown") == searched("unknown") == set()


def test_targets_of_a_host_show_what_is_not_committed_yet():
    """To the transaction that changes them, and to no other."""
    state = State(targets={"h0/a": TargetState(target=Target("h0", "a"))})
    transaction = Transaction(state)
    transaction.put_target(TargetState(target=Target("h0", "b")))
    transaction.put_target(TargetState(target=Target("h1", "a")))
    transaction.drop("targets", ["h0/a"])
    assert transaction.targets_of("h0") == ["h0/b"]
    assert transaction.state.targets_of_host.of(transaction.state.targets, "h0") == {"h0/b"}
    assert Transaction(state).targets_of("h0") == ["h0/a"]
    after = transaction.apply()
    assert Transaction(after).targets_of("h0") == ["h0/b"]
    assert Transaction(after).targets_of("h1") == ["h1/a"]
