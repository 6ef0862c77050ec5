"""The queue: how often the reconciler comes round, and that nothing waits for it for long."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.unit.remediation.world import alert, config

from fabricpulse.remediation.receiver import commit_loop
from fabricpulse.remediation.receiver.commit_loop import CommitLoop
from fabricpulse.remediation.receiver.line_limit import LineLimit
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state.transaction import Transaction
from fabricpulse.remediation.receiver.store.sql_store import SqlStore
from fabricpulse.remediation.receiver.store.sqlite_database import SqliteDatabase


async def test_a_long_cycle_takes_a_share_of_the_time_only(tmp_path: Path) -> None:
    """With fifty thousand NICs firing a cycle for each batch took deliveries from 1,549 to 162 a second."""
    store = SqlStore(SqliteDatabase(tmp_path / "j.db"))
    seen: list[int] = []
    spent: list[float] = []

    def reconcile(transaction: Transaction, _: float) -> None:
        begun = time.monotonic()
        time.sleep(0.01)
        seen.append(transaction.epoch)
        spent.append(time.monotonic() - begun)

    loop = CommitLoop(store, reconcile, lambda: 50.0)
    await loop.start(lambda transaction, _: transaction.log("fleet", "started"))
    running = asyncio.create_task(loop.run())
    begun = time.monotonic()
    for number in range(1, 301):
        await loop.submit(lambda transaction, _, epoch=number: transaction.set(epoch=epoch))  # type: ignore[misc]
    took = time.monotonic() - begun
    assert sum(spent[:-1]) <= 0.15 * took  # a tenth of the time; the last cycle has only begun
    async with asyncio.timeout(30):
        while not seen or seen[-1] != 300:  # noqa: ASYNC110 - the last event is looked at soon, without another one
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    store.close()


async def test_a_quick_cycle_comes_with_the_event(tmp_path: Path) -> None:
    """An event is decided on in its own batch while that costs next to nothing."""
    store = SqlStore(SqliteDatabase(tmp_path / "j.db"))
    seen: list[int] = []
    loop = CommitLoop(store, lambda transaction, _: seen.append(transaction.epoch), lambda: 50.0)
    await loop.start(lambda transaction, _: transaction.log("fleet", "started"))
    running = asyncio.create_task(loop.run())
    for number in range(1, 11):
        await loop.submit(lambda transaction, _, epoch=number: transaction.set(epoch=epoch))  # type: ignore[misc]
        await asyncio.sleep(0.02)
        assert seen[-1] == number
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    store.close()


async def test_the_kill_switch_does_not_wait_for_a_storm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an operator orders comes before deliveries that wait, and a batch has so many alerts at most."""
    monkeypatch.setattr(commit_loop, "_SPACING", 0)  # a cycle for each batch, however long one takes
    store = SqlStore(SqliteDatabase(tmp_path / "j.db"))
    batches: list[list[str]] = []
    loop = CommitLoop(store, lambda _transaction, _now: batches.append([]), lambda: 50.0)
    await loop.start(lambda transaction, _: transaction.log("fleet", "started"))
    batches.append([])

    def noted(name: str) -> Callable[[Transaction, float], None]:
        return lambda _transaction, _now: batches[-1].append(name)

    waiting = [asyncio.create_task(loop.submit(noted(f"d{i}"), alerts=900)) for i in range(5)]
    waiting.append(asyncio.create_task(loop.submit(noted("great"), alerts=50_000)))
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(loop.order(noted("pause"))))
    await asyncio.sleep(0)
    running = asyncio.create_task(loop.run())
    await asyncio.gather(*waiting)
    assert [batch for batch in batches if batch] == [["pause", "d0", "d1"], ["d2", "d3"], ["d4"], ["great"]]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    store.close()


async def test_a_flood_of_orders_leaves_room_for_deliveries(tmp_path: Path) -> None:
    """By default anybody may order; a batch full of orders, and the next, kept every delivery waiting until 503."""
    store = SqlStore(SqliteDatabase(tmp_path / "j.db"))
    loop, done = CommitLoop(store, lambda _transaction, _now: None, lambda: 50.0), []
    await loop.start(lambda transaction, _: transaction.log("fleet", "started"))

    def noted(name: str) -> Callable[[Transaction, float], None]:
        return lambda _transaction, _now: done.append(name)

    waiting = [asyncio.create_task(loop.order(noted("order"))) for _ in range(1_000)]
    waiting += [asyncio.create_task(loop.submit(noted("delivery"), alerts=10)) for _ in range(3)]
    await asyncio.sleep(0)
    running = asyncio.create_task(loop.run())
    await asyncio.gather(*waiting)
    assert done[:70] == ["order"] * 64 + ["delivery"] * 3 + ["order"] * 3
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    store.close()


async def test_alerts_without_room_in_the_journal_are_believed_all_the_same(tmp_path: Path) -> None:
    """What is known follows from all of them; the lines that are left out are counted, and nobody waits for them."""
    store = SqlStore(SqliteDatabase(tmp_path / "j.db"))
    loop, reconciler = CommitLoop(store, lambda _transaction, _now: None, lambda: 50.0), Reconciler(config())
    loop.lines = LineLimit(burst_bytes=4_000, bytes_per_s=0)

    def note(host: str, transaction: Transaction, now: float) -> None:
        reconciler.observed.on_alerts(transaction, [alert(host)], now)

    await loop.start(lambda transaction, _: transaction.log("fleet", "started"))
    running = asyncio.create_task(loop.run())
    for number in range(30):
        await loop.submit(partial(note, f"h{number}"))
    await loop.order(lambda transaction, _: transaction.log("fleet", "paused"))
    assert len(loop.state.episodes) == 30
    events = [line["event"] for line in store.transitions(0, 100)]
    assert events == ["started", *["episode_firing"] * 10, "lines_left_out", "paused"]
    assert loop.lines.left_out == 20
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    store.close()


async def test_commits_have_a_thread_of_their_own(tmp_path: Path) -> None:
    """Large bodies, scrapes and readers queue for the shared threads by hundreds: the kill switch does not."""
    store = SqlStore(SqliteDatabase(tmp_path / "j.db"))
    loop, end = CommitLoop(store, lambda _transaction, _now: None, lambda: 50.0), threading.Event()
    busy = [asyncio.create_task(asyncio.to_thread(end.wait)) for _ in range(200)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(30):
            await loop.start(lambda transaction, _: transaction.log("fleet", "started"))
            running = asyncio.create_task(loop.run())
            await loop.order(lambda transaction, _: transaction.log("fleet", "paused"))
    finally:
        end.set()
    await asyncio.gather(*busy)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    store.close()
