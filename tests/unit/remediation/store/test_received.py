"""What was received cannot be removed or changed without `verify` finding it; what goes for its age or for room can."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fabricpulse.remediation.receiver.payload import DeadLetter
from fabricpulse.remediation.receiver.state.model import Pause
from fabricpulse.remediation.receiver.state.transaction import Transaction
from fabricpulse.remediation.receiver.store.seal import Seal, sum_rows
from fabricpulse.remediation.receiver.store.sql_store import SqlStore
from fabricpulse.remediation.receiver.store.sqlite_database import SqliteDatabase
from fabricpulse.remediation.receiver.store.store import Batch, Delivery, StoreError


def open_store(path: Path, keep_bytes: int = 1 << 30) -> SqlStore:
    store = SqlStore(SqliteDatabase(path), keep_bytes)
    store.load()
    return store


def receive(store: SqlStore, at: float, count: int = 1, body: bytes = b"body") -> None:
    """Deliveries and dead letters at that time."""
    batch = Batch(Transaction(store.load()), at)
    batch.transaction.log("fleet", "tested")
    batch.deliveries = [Delivery(at, f"{at}", body) for _ in range(count)]
    batch.dead_letters = [DeadLetter(b"letter", "bad\0") for _ in range(count)]
    store.commit(batch)


def received(path: Path) -> SqlStore:
    """Six of each in three commits."""
    store = open_store(path)
    for at in (10.0, 20.0, 30.0):
        receive(store, at, 2)
    return store


def by_hand(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as raw, raw:
        for statement in statements:
            raw.execute(statement)


CHANGES = [
    ("DELETE FROM {table} WHERE id = 1", "row 2 of {table} does not follow"),
    ("DELETE FROM {table} WHERE id = 3", "row 4 of {table} does not follow"),
    ("DELETE FROM {table} WHERE id = 6", "ends with row 5, 6 was written"),
    ("DELETE FROM {table} WHERE id > 3", "ends with row 3, 6 was written"),
    ("DELETE FROM {table}", "ends with row 0, 6 was written"),
    ("UPDATE {table} SET body = x'00' WHERE id = 3", "row 3 of {table} does not follow"),
    ("UPDATE {table} SET received_at = received_at + 1 WHERE id = 3", "row 3 of {table} does not follow"),
    ("UPDATE {table} SET hash = 'x' WHERE id = 6", "row 6 of {table} does not follow"),
    ("UPDATE {table} SET id = 99 WHERE id = 6", "row 99 of {table} does not follow"),
    ("UPDATE {table} SET id = 0 WHERE id = 1", "1 rows of {table} before row 1, 0 were kept"),
]


@pytest.mark.parametrize("table", ["delivery", "dead_letter"])
@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_verify_finds_it(path, table, change, reason):
    """While it runs, and after a start."""
    store = received(path)
    assert store.verify() == 3
    by_hand(path, change.format(table=table))
    for _ in range(2):
        with pytest.raises(StoreError, match=reason.format(table=table)):
            store.verify()
        store.close()
        store = open_store(path)
    store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE delivery SET sha256 = 'x' WHERE id = 3", "row 3 of delivery does not follow"),
        ("UPDATE delivery SET deflated = 1 WHERE id = 3", "row 3 of delivery does not follow"),
        ("UPDATE dead_letter SET reason = 'x' WHERE id = 3", "row 3 of dead_letter does not follow"),
        ("UPDATE meta SET value = '{}' WHERE key = 'received'", "state was changed"),
    ],
)
def test_verify_finds_each_column(path, change, reason):
    """And the ends of the chains, which are sealed."""
    store = received(path)
    by_hand(path, change)
    with pytest.raises(StoreError, match=reason):
        store.verify()
    store.close()


def test_what_goes_for_its_age_may_go(path):
    """Before a restart and after it; the next rows follow those that went. Also when all have gone."""
    store = received(path)
    for before, left in ((20.0, 4), (30.5, 1)):
        store.prune(before)
        receive(store, 40.0)
        assert store.verify() > 3
        assert len(list(store.deliveries(0, 99))) == left + 1
        store.close()
        store = open_store(path)
        assert (store.verify() > 3, store.edited) == (True, "")
    store.prune(50.0)
    assert store.verify() == 5
    assert store.dead_letters(9) == []
    receive(store, 60.0)
    assert store.verify() == 6
    store.close()


def test_a_clock_that_was_wrong_keeps_nothing_for_ever(path):
    """What is from the future goes with the rows around it; what is from the past takes no younger one with it."""
    store = open_store(path)
    for at in (1e9, 20.0, 10.0, 30.0):
        receive(store, at)
    store.prune(15.0, 100.0)
    assert [d.received_at for _, d in store.deliveries(0, 9)] == [20.0, 10.0, 30.0]
    store.prune(25.0, 100.0)
    assert [d.received_at for _, d in store.deliveries(0, 9)] == [30.0]
    assert store.verify() == 4
    store.close()


def test_what_makes_room_may_go(path):
    """Over several pages, and across restarts."""
    for _ in range(3):
        store = open_store(path, keep_bytes=50_000)
        for number in range(20):
            receive(store, float(number), 30, b"x" * 100)
        assert store.verify() > 0
        assert store.kept_bytes["delivery"] <= 50_000
        store.close()


@pytest.mark.parametrize("prune", [True, False], ids=["age", "room"])
def test_rows_that_are_missing_when_they_are_to_go_are_not_forgotten(path, prune):
    """Else who removes a delivery has only to wait until its neighbours have gone. Commits go on."""
    store = open_store(path, keep_bytes=2_000)
    for at in (10.0, 20.0, 30.0):
        receive(store, at)
    by_hand(path, "DELETE FROM delivery WHERE id = 2")
    if prune:
        store.prune(30.0)
    else:
        receive(store, 40.0, 12, b"")
    for _ in range(2):
        with pytest.raises(StoreError, match="rows of delivery were missing when they were to go"):
            store.verify()
        store.close()
        store = open_store(path, keep_bytes=2_000)
    receive(store, 50.0)
    store.close()


MOVED = "UPDATE delivery SET id = {} WHERE id = 1"
ADDED = "INSERT INTO delivery SELECT {}, received_at, sha256, deflated, body, hash FROM delivery WHERE id = 1"


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize(
    ("change", "rows", "prune"),
    [(MOVED, 3, 20.0), (MOVED, 3, 99.0), (MOVED, 3, None), (ADDED, 4, 20.0), (ADDED, 4, None)],
)
def test_rows_before_the_first_one_are_not_forgotten(path, change, rows, prune, number):
    """They went as if they had been there before there were chains, or made up for the row that was moved. prune : up
    to when; None to make room in a table that is full with so many rows."""
    store = open_store(path)
    for at in (10.0, 20.0, 30.0):
        receive(store, at)
    by_hand(path, change.format(number))
    store.close()
    store = open_store(path, keep_bytes=rows * 154)
    with pytest.raises(StoreError):
        store.verify()
    if prune is None:
        receive(store, 40.0)
        assert len(list(store.deliveries(-9, 99))) == rows
    else:
        store.prune(prune)
    for _ in range(2):
        with pytest.raises(StoreError):
            store.verify()
        store.close()
        store = open_store(path)
    store.close()


def test_chains_of_other_tables_are_not_taken(path):
    """Their names would be a part of queries."""
    received(path).close()
    by_hand(
        path, "UPDATE meta SET value = json_set(value, '$.transition', json('{}')) WHERE key = 'received'"
    )
    store = open_store(path)
    assert store.edited
    store.prune(20.0)
    receive(store, 1e9)
    store.prune(2e9)
    assert len(store.transitions(0, 99)) == 4
    with pytest.raises(StoreError, match="found at the start"):
        store.verify()
    store.close()


def as_schema_2(path: Path) -> int:
    """The journal as the version without chains has left it; the number of its seal."""
    with closing(sqlite3.connect(path)) as raw, raw:
        for table in ("delivery", "dead_letter"):
            raw.execute(f"ALTER TABLE {table} DROP COLUMN hash")
        raw.execute("DELETE FROM meta WHERE key = 'received'")
        raw.execute("UPDATE meta SET value = '2' WHERE key = 'schema'")
        state = sum_rows(
            ("meta", key, value)
            for key, value in raw.execute("SELECT key, value FROM meta WHERE key IN ('pause')")
        )
        length, head = raw.execute("SELECT id, hash FROM transition ORDER BY id DESC LIMIT 1").fetchone()
        seal = Seal(length, head, state)
        raw.execute("UPDATE meta SET value = ? WHERE key = 'seal'", (seal.digest,))
    return seal.number


def old_journal(path: Path) -> int:
    store = received(path)
    transaction = Transaction(store.load())
    transaction.set(pause=Pause(reason="r", owner="ada", since=1))
    transaction.log("fleet", "paused")
    store.commit(Batch(transaction, 40.0))
    store.close()
    return as_schema_2(path)


def test_a_journal_of_an_older_version_is_taken_over(path):
    """With its state and rows; the seal at the start is the one that it had, as Prometheus knows it. New rows have
    chains, the old ones are counted until they go."""
    number = old_journal(path)
    store = open_store(path)
    assert (store.edited, store.seal_at_start.number) == ("", number)
    assert (store.load().pause is not None, len(list(store.deliveries(0, 99)))) == (True, 6)
    assert store.verify() == 4
    receive(store, 50.0)
    store.prune(20.0)
    assert [n for n, _ in store.deliveries(0, 99)] == [3, 4, 5, 6, 7]
    assert store.verify() == 5
    store.close()
    store = open_store(path)
    assert (store.verify(), store.edited) == (5, "")
    by_hand(path, "DELETE FROM delivery WHERE id = 4")
    with pytest.raises(StoreError, match="3 rows of delivery before row 7, 4 were kept"):
        store.verify()
    store.prune(45.0)
    with pytest.raises(StoreError, match="0 rows of delivery before row 7, 1"):
        store.verify()
    store.close()


def test_an_edit_before_the_take_over_still_shows(path):
    """It is not sealed over."""
    old_journal(path)
    by_hand(path, "UPDATE meta SET value = 'null' WHERE key = 'pause'")
    for _ in range(2):
        store = open_store(path)
        assert store.edited
        with pytest.raises(StoreError, match="seal was changed"):
            store.verify()
        store.close()
