"""A large delivery: taken in parts, never refused for its size but beyond all fleets, resumed after a failure."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from tests.fixtures.remediation.stack import alert, webhook
from tests.unit.remediation.world import config

from fabricpulse.remediation.receiver.commit_loop import CommitLoop
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.store.sql_store import SqlStore
from fabricpulse.remediation.receiver.store.sqlite_database import SqliteDatabase
from fabricpulse.remediation.receiver.store.store import Batch, StoreError
from fabricpulse.remediation.receiver.web import webhook as webhook_module
from fabricpulse.remediation.receiver.web.webhook import PATH, Webhook

PART = 10


class Store(SqlStore):
    """Remembers how many alerts began in each commit; refuses the commit with the number `fails`."""

    begun: list[int]
    fails = -1

    def commit(self, batch: Batch) -> None:
        """See SqlStore."""
        begun = sum(line.event == "episode_firing" for line in batch.transaction.transitions)
        if begun:
            self.begun.append(begun)
        if len(self.begun) == self.fails:
            raise StoreError("disk full")
        super().commit(batch)


@asynccontextmanager
async def receiver(
    folder: Path, settings: str = ""
) -> AsyncIterator[tuple[Store, CommitLoop, TestClient, asyncio.Event]]:  # type: ignore[type-arg]
    """The webhook on a journal."""
    store = Store(SqliteDatabase(folder / "j.db"))
    store.begun = []
    loop, poll = CommitLoop(store, lambda _transaction, _now: None, lambda: 50.0), asyncio.Event()
    await loop.start(lambda transaction, _: transaction.log("fleet", "started"))
    app = web.Application(client_max_size=64 << 20)
    Webhook(loop, Reconciler(config(settings)), poll).add(app.router)
    running = asyncio.create_task(loop.run())
    try:
        async with TestClient(TestServer(app)) as client:
            yield store, loop, client, poll
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        store.close()


def body(count: int) -> bytes:
    return json.dumps(webhook(*(alert(f"host{i:03d}") for i in range(count)))).encode()


async def test_parts_are_committed_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 after the last part; no commit has more than one part, so that what else comes in waits for one at most; the
    delivery is in the journal once, with the first part."""
    monkeypatch.setattr(webhook_module, "_PART", PART)
    async with receiver(tmp_path) as (store, loop, client, _):
        answer = await client.post(PATH, data=body(35))
        assert answer.status == 200
        assert store.begun == [10, 10, 10, 5]
        assert len(loop.state.episodes) == 35
        assert [json.loads(d.body)["version"] for _, d in store.deliveries(0, 10)] == ["4"]


async def test_sent_again_it_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third part is refused: 503. What was taken stays, and sent again only the rest is new: it cannot be refused
    for ever."""
    monkeypatch.setattr(webhook_module, "_PART", PART)
    async with receiver(tmp_path) as (store, loop, client, _):
        store.fails = 3
        assert (await client.post(PATH, data=body(35))).status == 503
        assert len(loop.state.episodes) == 20
        store.fails, store.begun = -1, []
        assert (await client.post(PATH, data=body(35))).status == 200
        assert store.begun == [10, 5]
        assert len(loop.state.episodes) == 35


async def test_more_than_any_fleet_has_is_413(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alertmanager does not send it again; the Alertmanagers are polled for what is active."""
    monkeypatch.setattr(webhook_module, "_MAX_ALERTS", 30)
    async with receiver(tmp_path) as (store, loop, client, poll):
        answer = await client.post(PATH, data=body(31))
        assert (answer.status, await answer.text()) == (
            413,
            "31 alerts in one body, 30 are taken; set max_alerts\n",
        )
        assert poll.is_set()
        assert loop.state.episodes == {}
        assert (await client.post(PATH, data=body(30))).status == 200
        assert store.begun == [30]


async def test_a_body_of_nonsense_leaves_few_dead_letters(tmp_path: Path) -> None:
    """Each was kept with up to 4 KiB: two hundred thousand of them from one body that compresses to nothing."""
    nowhere = [alert(device="") for _ in range(3_000)]
    sent = json.dumps(webhook(*nowhere, *({"status": "odd"} for _ in range(3_000)))).encode()
    async with receiver(tmp_path) as (store, _, client, _):
        assert (await client.post(PATH, data=sent)).status == 200
        assert len(store.dead_letters(10_000)) == 100


async def test_refused_bodies_fill_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line a minute, however many come; each is a dead letter all the same."""
    async with receiver(tmp_path) as (store, _, client, _):
        for number in range(50):
            assert (await client.post(PATH, data=b"no webhook %d" % number)).status == 400
        assert sum(record.getMessage() == "body is not a webhook" for record in caplog.records) == 1
        assert len(store.dead_letters(100)) == 50


async def test_few_bytes_are_worked_on_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made of a body takes several times its size: as much as one of the largest makes, not that of all that
    come together. All of them are taken."""
    monkeypatch.setattr(webhook_module, "MAX_BODY", 2 * len(body(3)))
    taken, at_once = Webhook._take, [0]
    most = 0

    async def take(self: Webhook, *parts: Any) -> web.Response:
        nonlocal most
        at_once[0] += 1
        most = max(most, at_once[0])
        try:
            return await taken(self, *parts)
        finally:
            at_once[0] -= 1

    monkeypatch.setattr(Webhook, "_take", take)
    async with receiver(tmp_path) as (_, loop, client, _):
        answers = await asyncio.gather(*(client.post(PATH, data=body(3)) for _ in range(6)))
        assert [answer.status for answer in answers] == [200] * 6
        assert len(loop.state.episodes) == 3
    assert most == 2


async def test_an_old_alert_before_the_first_poll_is_503(tmp_path: Path) -> None:
    """Nothing of it is in the journal; once the Alertmanagers have answered it is asked about."""
    rules = "rules: [{alert: FabricNicFlapping, mode: auto}]\nalertmanagers: [http://a]\n"
    old = json.dumps(webhook(alert(starts_at="1969-12-31T23:00:00Z"))).encode()
    async with receiver(tmp_path, rules) as (store, loop, client, poll):
        await loop.submit(lambda transaction, now: transaction.set(started_at=now))
        answer = await client.post(PATH, data=old)
        assert (answer.status, await answer.text()) == (
            503,
            "the Alertmanagers were not asked yet, try again\n",
        )
        assert (loop.state.episodes, list(store.deliveries(0, 10))) == ({}, [])
        await loop.submit(lambda transaction, now: transaction.set(polled_at=now))
        assert (await client.post(PATH, data=old)).status == 200
        assert (loop.state.episodes, poll.is_set()) == ({}, True)
