"""The journal in PostgreSQL: the same promises as in SQLite, and several receivers of which one leads."""

import concurrent.futures
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.fixtures.postgres import postgres_server
from tests.fixtures.remediation.leaders import TAKEOVER_S, Pair, end_leaders
from tests.fixtures.remediation.stack import Stack, alert, request, webhook
from tests.fixtures.waiting import wait_for

from fabricpulse.core.errors import UserError
from fabricpulse.remediation.receiver.payload import DeadLetter
from fabricpulse.remediation.receiver.state.model import Pause
from fabricpulse.remediation.receiver.state.transaction import Transaction
from fabricpulse.remediation.receiver.store.postgres_database import PostgresDatabase
from fabricpulse.remediation.receiver.store.seal import Seal, sum_rows
from fabricpulse.remediation.receiver.store.sql_store import SqlStore
from fabricpulse.remediation.receiver.store.store import Batch, Delivery, StoreError


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """One server for this module."""
    with postgres_server() as url:
        yield url


@pytest.fixture
def url(server: str) -> str:
    """An empty database."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return server


def commit(store: SqlStore, text: str) -> None:
    transaction = Transaction(store.load())
    transaction.set(pause=Pause(reason=text, owner="ada", since=1.0))
    transaction.log("fleet", "paused", reason=text)
    letters = [DeadLetter(b"\xff\x00", "bad\0letter")]
    store.commit(Batch(transaction, 5.0, deliveries=[Delivery(4.0, "x", b"\x00body")], dead_letters=letters))


def test_what_is_committed_is_read_again_and_edits_show(url):
    """State, lines, deliveries, dead letters; chain and seal; a schema of another version is refused."""
    database = PostgresDatabase(url, 60)
    assert database.take_lease() == ""
    store = SqlStore(database)
    commit(store, "[/x] \x1b ä \0")
    commit(store, "second")
    assert store.verify() == 2
    store.close()
    database = PostgresDatabase(url, 60)
    assert database.take_lease() == "", "the lease was given back"
    store = SqlStore(database)
    state = store.load()
    assert state.pause is not None
    assert (state.pause.reason, store.edited) == ("second", "")
    assert [line["detail"]["reason"] for line in store.transitions(0, 10)] == ["[/x] \x1b ä \0", "second"]
    assert [line["id"] for line in store.lines_of("fleet", 1)] == [2]
    assert [delivery.body for _, delivery in store.deliveries(0, 10)] == [b"\x00body"] * 2
    assert len(store.dead_letters(10)) == 2
    assert store.kept_bytes == {"delivery": 2 * (5 + 150), "dead_letter": 2 * (2 + 150)}
    store.prune(4.5)
    assert list(store.deliveries(0, 10)) == []
    assert store.kept_bytes == {"delivery": 0, "dead_letter": 2 * (2 + 150)}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE transition SET subject = 'x' WHERE id = 1")
    with pytest.raises(StoreError, match="line 1 does not follow"):
        store.verify()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    with pytest.raises(UserError, match="has schema 99"):
        SqlStore(database)
    database.close()


@pytest.mark.parametrize("table", ["delivery", "dead_letter"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("DELETE FROM {table} WHERE id = 2", "row 3 of {table} does not follow"),
        ("DELETE FROM {table} WHERE id = 3", "{table} ends with row 2, 3 was written"),
        ("UPDATE {table} SET body = '' WHERE id = 2", "row 2 of {table} does not follow"),
    ],
)
def test_what_was_received_cannot_be_removed_unseen(url, table, change, reason):
    """As in SQLite; what goes for its age can."""
    database = PostgresDatabase(url, 60)
    assert database.take_lease() == ""
    store = SqlStore(database)
    for text in ("first", "second", "third"):
        commit(store, text)
    assert store.verify() == 3
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(change.format(table=table).encode())
    with pytest.raises(StoreError, match=reason.format(table=table)):
        store.verify()
    store.close()


def test_a_journal_of_an_older_version_gets_chains(url):
    """Schema 2 had none: what it has is kept and counted, and the seal fits."""
    database = PostgresDatabase(url, 60)
    assert database.take_lease() == ""
    store = SqlStore(database)
    commit(store, "first")
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("delivery", "dead_letter"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN hash".encode())
        connection.execute("DELETE FROM meta WHERE key = 'received'")
        connection.execute("UPDATE meta SET value = '2' WHERE key = 'schema'")
        rows = connection.execute("SELECT key, value FROM meta WHERE key = 'pause'").fetchall()
        seal = Seal(store.seal().length, store.seal().head, sum_rows(("meta", *row) for row in rows))
        connection.execute("UPDATE meta SET value = %s WHERE key = 'seal'", (seal.digest,))
    store = SqlStore(database)
    store.load()
    assert (store.edited, store.seal_at_start, store.verify()) == ("", seal, 1)
    commit(store, "second")
    store.prune(4.5)
    assert (store.verify(), list(store.deliveries(0, 10)), len(store.dead_letters(10))) == (2, [], 2)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM dead_letter WHERE id = 1")
    with pytest.raises(StoreError, match="0 rows of dead_letter before row 2, 1 were kept"):
        store.verify()
    store.close()


def test_one_writes_at_a_time(url):
    """While one leads nobody else does; who has lost the lease writes nothing more, and never gets it back."""
    first, second = PostgresDatabase(url, 2), PostgresDatabase(url, 60)
    assert first.take_lease() == ""
    store = SqlStore(first)
    commit(store, "first")
    assert second.take_lease() != ""
    first.renew_lease()
    wait_for(lambda: second.take_lease() == "", 30, "the lease ends")
    assert first.lease_left_s() == 0
    with pytest.raises(StoreError, match="lease"):
        commit(store, "stale")
    with pytest.raises(StoreError):
        first.renew_lease()
    other = SqlStore(second)
    commit(other, "second")
    assert [line["detail"]["reason"] for line in other.transitions(0, 10)] == ["first", "second"]
    assert other.verify() == 2
    first.close()
    third = PostgresDatabase(url, 1)
    assert third.take_lease() != "", "the old one's end gives nothing back"
    third.close()
    second.close()


@pytest.mark.parametrize("within", [False, True], ids=["between statements", "within a pipeline"])
def test_a_transaction_that_hangs_does_not_keep_the_lease(url, within):
    """A leader stopped within a commit: its session is ended, another takes over, nothing is committed. To the server
    that waits for the rest of a pipeline it is busy: no limit of PostgreSQL 15 ends that."""
    # A lease that a busy machine cannot outlast between taking it and the begin of a transaction.
    first, second = PostgresDatabase(url, 4), PostgresDatabase(url, 600)
    assert first.take_lease() == ""
    store = SqlStore(first)
    commit(store, "first")
    first.renew_lease()

    def taken() -> bool:
        try:
            return bool(second.take_lease() == "")
        except StoreError:
            return False  # it waits for the row

    with pytest.raises(StoreError), first.write() as connection:
        connection.execute("UPDATE meta SET value = 'stale' WHERE key = 'pause'")
        if within:
            writer = first._writer
            assert writer is not None
            with writer.pipeline():
                writer.execute("SELECT 1")
                writer.pgconn.send_flush_request()
                writer.pgconn.flush()
                wait_for(taken, 30, "the session is ended")
        wait_for(taken, 30, "the session is ended")
    other = SqlStore(second)
    other.load()
    assert other.verify() == 1
    first.close()
    second.close()


def test_receivers_that_race_for_the_lease(url):
    """Of twenty that ask at once, one gets it."""
    databases = [PostgresDatabase(url, 60) for _ in range(20)]
    won = []

    def ask(database: PostgresDatabase) -> None:
        if database.take_lease() == "":
            won.append(database)

    threads = [threading.Thread(target=ask, args=(database,)) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    for database in databases:
        database.close()


def test_a_standby_takes_over(url, tmp_path: Path):
    """After a kill and after a stop, each within 15 s; the leader that comes back gives up and has no effect."""
    stack = Stack(tmp_path)
    try:
        pair = Pair(stack, url, 4)
        pair.leader()
        stack.wait_agent()
        pair.act(0)
        standby = next(i for i in (0, 1) if i != pair.leader())
        status, text = request(
            f"http://127.0.0.1:{pair.ports[standby]}/api/v1/alertmanager", webhook(alert())
        )
        assert (status, text) == (503, "standby, another receiver leads\n")
        assert "leads" in request(f"http://127.0.0.1:{pair.ports[standby]}/-/ready")[1]
        pair.take_over(signal.SIGKILL)
        pair.act(1)
        pair.take_over(signal.SIGSTOP)
        pair.act(2)
        assert pair.problems(3) == []
    finally:
        stack.close()


# In each of FLEETS fleets, which do so at the same time: most of a takeover is waiting for a lease of 3 s to end.
LEADERS = int(os.environ.get("FABRICPULSE_TEST_LEADERS", "3"))
FLEETS = 3


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_many_leaders_end(url, tmp_path: Path):
    """Killed or stopped at any moment: takeover within 15 s, no effect of a leader that is none any more."""
    with psycopg.connect(url, autocommit=True) as connection:
        for number in range(FLEETS):
            connection.execute(f"CREATE DATABASE fleet{number}")
    with concurrent.futures.ThreadPoolExecutor(FLEETS) as pool:
        fleets = []
        for number in range(FLEETS):
            folder = tmp_path / str(number)
            folder.mkdir()
            database = url.replace("///postgres?", f"///fleet{number}?")
            fleets.append(pool.submit(end_leaders, database, folder, LEADERS, 20261122 + number))
        for fleet in fleets:
            found = fleet.result()
            assert found.problems == []
            assert max(found.spent_s) <= TAKEOVER_S
