"""The journal keeps what it has said it keeps, and says so when it cannot."""

import sqlite3
import threading
import time
from pathlib import Path

import pytest
from tests.unit.remediation.world import World, alert

from fabricpulse.core.errors import UserError
from fabricpulse.remediation.receiver.model import Bucket, Pause, State
from fabricpulse.remediation.receiver.payload import DeadLetter
from fabricpulse.remediation.receiver.sqlite_store import SqliteStore
from fabricpulse.remediation.receiver.step import Transition
from fabricpulse.remediation.receiver.store import Batch, Delivery, StoreError


def line(number: int) -> Transition:
    return Transition("h0/rail0", "blocked", {"reason": "paused", "number": number, "text": "ü\n"})


def batch(state: State, count: int = 1) -> Batch:
    return Batch(state, 100.5, transitions=[line(i) for i in range(count)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def test_state_comes_back_as_it_was(path):
    """What was committed is what is loaded, after a lot has happened."""
    world = World()
    world.deliver(alert(), alert("h1", "rail1"))
    world.settle()
    world.apply(world.mind.on_pause(world.state, "because", "ada", world.now))
    store = SqliteStore(path)
    store.load()
    store.commit(batch(world.state))
    store.close()
    again = SqliteStore(path)
    loaded = again.load()
    for field in (
        "epoch",
        "episodes",
        "targets",
        "actions",
        "breakers",
        "buckets",
        "pause",
        "recent",
        "watchdog",
    ):
        assert getattr(loaded, field) == getattr(world.state, field), field
    assert again.last_commit_at() == 100.5
    again.close()


def test_only_what_changed_is_written_and_what_is_gone_goes(path):
    """Rows follow the state in both directions."""
    store = SqliteStore(path)
    store.load()
    store.commit(batch(State(buckets={"failover": Bucket(1, 2), "failback": Bucket(3, 4)})))
    store.commit(
        batch(State(buckets={"failback": Bucket(3, 4)}, pause=Pause(reason="r", owner="o", since=1)))
    )
    store.close()
    again = SqliteStore(path)
    loaded = again.load()
    assert (loaded.buckets, loaded.pause) == (
        {"failback": Bucket(3, 4)},
        Pause(reason="r", owner="o", since=1),
    )
    again.close()


def test_chain_shows_an_edit_a_gap_and_a_swap(path):
    """The past cannot be changed without its being seen."""
    store = SqliteStore(path)
    store.load()
    store.commit(batch(State(), 20))
    assert store.verify() == 20
    assert store.head()[0] == 20
    for change in (
        "UPDATE transition SET detail = replace(detail, 'paused', 'manual') WHERE id = 7",
        "UPDATE transition SET at = at + 1 WHERE id = 7",
        "DELETE FROM transition WHERE id = 7",
        "UPDATE transition SET id = 99 WHERE id = 20",
    ):
        with sqlite3.connect(path) as raw:
            raw.execute("SAVEPOINT s")
            raw.execute(change)
            raw.commit()
        with pytest.raises(StoreError, match="does not follow"):
            store.verify()
        with sqlite3.connect(path) as raw:
            raw.execute("DELETE FROM transition")
        raw.close()
        store._head = (0, "0" * 64)
        store.commit(batch(State(), 20))
    store.close()


def test_readers_do_not_end_the_writers_transaction(path):
    """Reading while a commit is under way loses nothing of it."""
    store = SqliteStore(path)
    store.load()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            store.transitions(0, 10)
            list(store.deliveries(0, 1))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    end = time.monotonic() + 1.5
    count = 0
    while time.monotonic() < end:
        store.commit(batch(State(epoch=count), 5))
        count += 5
    stop.set()
    for reader in readers:
        reader.join()
    assert store.verify() == count
    store.close()


def test_a_failed_commit_keeps_nothing_and_the_next_one_works(path):
    """All of a batch or nothing; the chain goes on from what was kept."""
    store = SqliteStore(path)
    store.load()
    store.commit(batch(State(epoch=1)))
    with sqlite3.connect(path) as raw:
        raw.execute(
            "CREATE TRIGGER full BEFORE INSERT ON dead_letter BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
        )
    raw.close()
    bad = batch(State(epoch=2), 3)
    bad.deliveries.append(Delivery(1.0, "x", b"body"))
    bad.dead_letters.append(DeadLetter(b"x", "y"))
    with pytest.raises(StoreError, match="disk is full"):
        store.commit(bad)
    assert list(store.deliveries(0, 10)) == []
    store.commit(batch(State(epoch=3)))
    assert (store.verify(), store.head()[0]) == (2, 2)
    store.close()


def test_deliveries_come_back_and_go_after_their_time(path):
    """Raw bodies as they came, deflated or not, until they are pruned; the lines stay."""
    import zlib

    store = SqliteStore(path)
    store.load()
    given = batch(State())
    given.deliveries = [
        Delivery(10.0, "a", b"plain"),
        Delivery(20.0, "b", zlib.compress(b"large"), deflated=True),
    ]
    store.commit(given)
    assert [d.body for _, d in store.deliveries(0, 10)] == [b"plain", b"large"]
    store.prune(15.0)
    assert [d.body for _, d in store.deliveries(0, 10)] == [b"large"]
    assert store.verify() == 1
    store.close()


def test_one_process_at_a_time(path):
    """The second opener is told."""
    store = SqliteStore(path)
    with pytest.raises(UserError, match="in use by another receiver"):
        SqliteStore(path)
    store.close()
    SqliteStore(path).close()


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be one" * 50, b"SQLite format 3\x00" + b"\xff" * 4000]
)
def test_a_damaged_file_is_refused_with_a_sentence(path, content):
    """Never begun anew in silence: an empty journal would forget what is out of service."""
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"cannot be used|damaged"):
        SqliteStore(path)


def test_a_row_that_makes_no_sense_is_refused(path):
    """Malformed is not empty."""
    store = SqliteStore(path)
    store.load()
    store.commit(batch(State(buckets={"failover": Bucket(1, 2)})))
    store.close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE bucket SET document = '{}'")
    raw.close()
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="cannot be read"):
        store.load()
    store.close()


def test_another_schema_is_refused(path):
    """A journal of a later version is not guessed at."""
    SqliteStore(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    raw.close()
    with pytest.raises(UserError, match="has schema 99"):
        SqliteStore(path)
