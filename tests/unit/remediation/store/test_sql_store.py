"""The journal keeps what it has said it keeps, and says so when it cannot."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.fixtures.waiting import until
from tests.unit.remediation.world import World, alert

from fabricpulse.core.errors import UserError
from fabricpulse.remediation.receiver.commit_loop import CommitLoop
from fabricpulse.remediation.receiver.payload import DeadLetter
from fabricpulse.remediation.receiver.state.model import Bucket, Pause, State, Target, TargetState
from fabricpulse.remediation.receiver.state.transaction import COLLECTIONS, Transaction, Transition
from fabricpulse.remediation.receiver.store.sql_store import SqlStore
from fabricpulse.remediation.receiver.store.sqlite_database import SqliteDatabase
from fabricpulse.remediation.receiver.store.store import Batch, Delivery, StoreError


def line(number: int) -> Transition:
    return Transition("h0/rail0", "blocked", {"reason": "paused", "number": number, "text": "ü\n"})


def open_store(path: Path) -> SqlStore:
    return SqlStore(SqliteDatabase(path))


def batch(count: int = 1, **fields: object) -> Batch:
    transaction = Transaction(State())
    transaction.set(**fields)
    transaction.transitions += [line(i) for i in range(count)]
    return Batch(transaction, 100.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


FIELDS = ("epoch", "episodes", "targets", "actions", "breakers", "buckets", "pause", "recent", "watchdog")


def test_state_comes_back_as_it_was(path):
    """What was committed is what is loaded, change by change."""
    world = World()
    store = open_store(path)
    committed = Transaction(store.load())
    world.deliver(alert(), alert("h1", "rail1"))
    world.settle()
    world.pause("because", "ada")
    for collection, put in (
        ("episodes", committed.put_episode),
        ("targets", committed.put_target),
        ("actions", committed.put_action),
    ):
        for value in getattr(world.state, collection).values():
            put(value)
    committed.set(**{f: getattr(world.state, f) for f in FIELDS if f not in COLLECTIONS})
    committed.log("h0/rail0", "tested")
    store.commit(Batch(committed, 100.5))
    store.close()
    again = open_store(path)
    loaded = again.load()
    for field in FIELDS:
        assert getattr(loaded, field) == getattr(world.state, field), field
    assert again.last_commit_at() == 100.5
    again.close()


def test_removed_rows_go_and_others_stay(path):
    """Rows follow the state in both directions."""
    store = open_store(path)
    state = store.load()
    kept, removed = (TargetState(target=Target("h0", device), generation=3) for device in ("a", "b"))
    first = Transaction(state)
    first.put_target(kept)
    first.put_target(removed)
    store.commit(Batch(first, 1.0))
    second = Transaction(first.apply())
    second.drop("targets", ["h0/b"])
    second.set(pause=Pause(reason="r", owner="o", since=1))
    store.commit(Batch(second, 2.0))
    store.close()
    again = open_store(path)
    loaded = again.load()
    assert (loaded.targets, loaded.pause) == ({"h0/a": kept}, Pause(reason="r", owner="o", since=1))
    again.close()


def sealed(path: Path) -> SqlStore:
    """A journal of 20 lines with a target and a pause."""
    store = open_store(path)
    transaction = Transaction(store.load())
    transaction.transitions += [line(i) for i in range(20)]
    transaction.put_target(TargetState(target=Target("h0", "a"), generation=3))
    transaction.set(pause=Pause(reason="r", owner="ada", since=1))
    store.commit(Batch(transaction, 100.5))
    return store


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            "UPDATE transition SET detail = replace(detail, 'paused', 'manual') WHERE id = 7",
            "does not follow",
        ),
        ("UPDATE transition SET at = at + 1 WHERE id = 7", "does not follow"),
        ("DELETE FROM transition WHERE id = 7", "does not follow"),
        ("UPDATE transition SET id = 99 WHERE id = 20", "does not follow"),
        ("DELETE FROM transition WHERE id > 18", "18 lines, 20 were written"),
        ("DELETE FROM transition", "0 lines, 20 were written"),
        ("UPDATE target SET document = replace(document, '3', '4')", "state was changed"),
        ("DELETE FROM target", "state was changed"),
        ("INSERT INTO target VALUES ('h1/b', '{}')", "state was changed"),
        ("UPDATE meta SET value = 'null' WHERE key = 'pause'", "state was changed"),
        ("UPDATE meta SET value = 'x' WHERE key = 'seal'", "seal was changed"),
        ("DELETE FROM meta WHERE key = 'seal'", "seal was changed"),
    ],
)
def test_verify_finds_what_was_changed_or_removed(path, change, reason):
    """It said "intact" after all lines were deleted, or the state was edited; found while running and after a start."""
    store = sealed(path)
    assert store.verify() == 20
    before = store.seal().number
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(change)
    raw.close()
    with pytest.raises(StoreError, match=reason):
        store.verify()
    store.close()
    if "'{}'" in change:
        return  # a row that cannot be read: the start is refused
    again = open_store(path)
    again.load()
    if (
        "id = 7" not in change
    ):  # an edit in the middle of the lines is for verify: the start reads their end only
        assert again.edited
        with pytest.raises(StoreError):
            again.verify()
        assert "seal" in change or again.seal_at_start.number != before
    again.close()


def test_a_journal_of_which_nothing_is_left_is_not_a_new_one(path):
    """Lines, state and seal were removed together, and the start took it for an empty journal."""
    store = sealed(path)
    store.close()
    with closing(sqlite3.connect(path)) as raw, raw:
        for table in ("transition", "target", "action", "episode"):
            raw.execute(f"DELETE FROM {table}")  # noqa: S608
        raw.execute("DELETE FROM meta WHERE key != 'schema'")
    again = open_store(path)
    again.load()
    assert again.edited
    again.close()
    new = open_store(path.with_name("new.db"))
    new.load()
    assert (new.edited, new.verify()) == ("", 0)
    new.close()


def test_the_seal_is_the_same_after_a_restart(path):
    """What Prometheus saw last before the end is what the journal has at the next start."""
    store = sealed(path)
    state = store.load()
    for change in range(3):
        transaction = Transaction(state)
        transaction.put_target(TargetState(target=Target("h0", "a"), generation=10 + change))
        transaction.drop("targets", ["h0/b"] if "h0/b" in state.targets else [])
        transaction.put_target(TargetState(target=Target("h0", "b")))
        transaction.log("h0/a", "changed")
        store.commit(Batch(transaction, 200.0))
        state = transaction.apply()
    last = store.seal()
    assert store.verify() == 23
    store.close()
    again = open_store(path)
    again.load()
    assert (again.seal_at_start, again.edited, again.verify()) == (last, "", 23)
    again.close()


@pytest.mark.thorough
def test_readers_do_not_end_the_writers_transaction(path):
    """Reading while a commit is under way loses nothing of it."""
    store = open_store(path)
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
        store.commit(batch(5, epoch=count))
        count += 5
    stop.set()
    for reader in readers:
        reader.join()
    assert store.verify() == count
    store.close()


def test_a_failed_commit_keeps_nothing_and_the_next_one_works(path):
    """All of a batch or nothing; the chain goes on from what was kept."""
    store = open_store(path)
    store.load()
    store.commit(batch(epoch=1))
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(
            "CREATE TRIGGER full BEFORE INSERT ON dead_letter BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
        )
    raw.close()
    bad = batch(3, epoch=2)
    bad.deliveries.append(Delivery(1.0, "x", b"body"))
    bad.dead_letters.append(DeadLetter(b"x", "y"))
    with pytest.raises(StoreError, match="disk is full"):
        store.commit(bad)
    assert list(store.deliveries(0, 10)) == []
    store.commit(batch(epoch=3))
    assert (store.verify(), store.seal().length) == (2, 2)
    store.close()


def test_deliveries_come_back_and_go_after_their_time(path):
    """Raw bodies as they came, deflated or not, until they are pruned; the lines stay."""
    import zlib

    store = open_store(path)
    store.load()
    given = batch()
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


def test_no_more_is_kept_than_there_is_room_for(path):
    """Who may send alerts filled the disk for seven days. The oldest go first, and a restart knows what is there."""
    store = SqlStore(SqliteDatabase(path), keep_bytes=80_000)
    store.load()
    for number in range(300):
        given = batch()
        given.deliveries = [Delivery(float(number), "a", b"x" * 1_000) for _ in range(2)]
        given.dead_letters = [DeadLetter(b"y" * 500, "bad")]
        store.commit(given)
        assert store.kept_bytes["delivery"] <= 80_000
        assert store.kept_bytes["dead_letter"] <= 10_000
    kept = [d.received_at for _, d in store.deliveries(0, 1_000)]
    assert kept == sorted(kept)
    assert (len(kept), kept[-1]) == (80_000 // 1_150, 299.0)
    assert store.dropped == {"delivery": 600 - len(kept), "dead_letter": 300 - 10_000 // 650}
    assert len(store.dead_letters(1_000)) == 10_000 // 650
    held = dict(store.kept_bytes)
    given = batch()
    given.deliveries = [Delivery(1.0, "a", b"x")]
    given.transaction.log("h0", "unwritable", object=object())
    with pytest.raises(TypeError):
        store.commit(given)
    assert store.kept_bytes == held, "what was rolled back takes nothing"
    store.close()
    store = SqlStore(SqliteDatabase(path), keep_bytes=80_000)
    assert store.kept_bytes == held
    given = batch()
    given.deliveries = [Delivery(400.0, "a", b"x" * 200_000)]
    store.load()
    store.commit(given)
    assert list(store.deliveries(0, 10)) == [], "one that is larger than all that may be kept is not"
    assert (store.kept_bytes["delivery"], store.dropped["delivery"]) == (0, len(kept) + 1)
    store.prune(150.0)
    assert store.kept_bytes["dead_letter"] == 0
    store.close()


def test_closing_waits_for_the_transaction_under_way(path):
    """A cancelled task leaves its thread in the middle of a commit: that is kept whole, and the next is refused."""
    database = SqliteDatabase(path)
    inside, go_on = threading.Event(), threading.Event()

    def commit():
        with database.write() as connection:
            connection.execute("CREATE TABLE kept (n)")
            inside.set()
            go_on.wait(60)
            connection.execute("INSERT INTO kept VALUES (1)")

    writer, closer = threading.Thread(target=commit), threading.Thread(target=database.close)
    writer.start()
    assert inside.wait(60)
    closer.start()
    closer.join(0.1)
    assert closer.is_alive(), "closed in the middle of a transaction"
    go_on.set()
    writer.join()
    closer.join()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT n FROM kept").fetchall() == [(1,)]
    with pytest.raises(StoreError), database.write():
        pass


def test_only_the_owner_may_read_the_journal(path):
    """Alerts, hosts and names of operators: file, log and shared memory are 0600, also where an old file was not."""
    path.write_bytes(b"")
    path.chmod(0o644)
    store = open_store(path)
    store.commit(batch())
    names = {entry.name: entry.stat().st_mode & 0o777 for entry in path.parent.iterdir()}
    assert {"journal.db", "journal.db-wal", "journal.db-shm", "journal.db.lock"} <= names.keys()
    assert set(names.values()) == {0o600}
    store.close()


def test_one_process_at_a_time(path):
    """The second opener gets an error."""
    store = open_store(path)
    with pytest.raises(UserError, match="in use by another receiver"):
        open_store(path)
    store.close()
    open_store(path).close()


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be one" * 50, b"SQLite format 3\x00" + b"\xff" * 4000]
)
def test_a_damaged_file_is_refused_with_a_sentence(path, content):
    """Never begun anew in silence: an empty journal would forget what is out of service."""
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"cannot be used|damaged"):
        open_store(path)


@pytest.mark.parametrize("name", ["journal.db", "journal.db.lock"])
@pytest.mark.parametrize("by", ["", "another file"])
def test_a_file_that_was_removed_or_replaced_takes_no_commit(path, name, by):
    """What was acknowledged went to a file without a name, and was lost at the next restart; without its lock a second
    receiver could write as well. Moved back, it works again; readers make no empty file meanwhile."""
    store = open_store(path)
    store.load()
    store.commit(batch())
    file, aside = path.with_name(name), path.with_name("aside")
    file.rename(aside)
    if by:
        file.write_text(by)
    with pytest.raises(StoreError, match=r"No such file|was replaced while in use"):
        store.commit(batch())
    if file == path and not by:
        with pytest.raises(StoreError):
            store.transitions(0, 10)
    assert file.exists() == bool(by)
    aside.replace(file)
    store.commit(batch())
    assert len(store.transitions(0, 10)) == 2
    store.close()


def test_another_name_is_the_same_journal(path):
    """By a link to it two receivers wrote one journal, each with a lock of its own."""
    link, loop = path.with_name("link.db"), path.with_name("loop.db")
    link.symlink_to(path)
    loop.symlink_to(loop)
    store = open_store(link)
    with pytest.raises(UserError, match="in use by another receiver"):
        open_store(path)
    store.close()
    store = open_store(path)
    with pytest.raises(UserError, match="in use by another receiver"):
        open_store(link)
    store.close()
    with pytest.raises(UserError, match="links lead nowhere"):
        open_store(loop)


def test_a_row_that_makes_no_sense_is_refused(path):
    """Malformed is not empty."""
    store = open_store(path)
    store.load()
    store.commit(batch(buckets={"failover": Bucket(1, 2)}))
    store.close()
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE meta SET value = '{\"failover\": {}}' WHERE key = 'buckets'")
    raw.close()
    store = open_store(path)
    with pytest.raises(StoreError, match="cannot be read"):
        store.load()
    store.close()


def test_another_schema_is_refused(path):
    """A journal of a later version is not guessed at."""
    open_store(path).close()
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    raw.close()
    with pytest.raises(UserError, match="has schema 99"):
        open_store(path)


async def test_changes_without_a_line_are_saved_with_the_next_commit(path):
    """What an event changes without a line in the journal - the progress of a hold - is not lost at a restart."""
    store = open_store(path)
    loop = CommitLoop(store, lambda _transaction, _now: None, lambda: 50.0)

    def put(generation: int, line: bool) -> Callable[[Transaction, float], None]:
        def change(transaction: Transaction, _: float) -> None:
            transaction.put_target(TargetState(target=Target("h0", "a"), generation=generation))
            transaction.set(polled_at=1.0, watchdog="seen" if generation == 1 else "lost")
            if line:
                transaction.log("h0/b", "tested")

        return change

    await loop.start(put(1, line=True))
    running = asyncio.create_task(loop.run())
    await loop.submit(put(2, line=False))
    await loop.submit(lambda transaction, _: transaction.log("h0/b", "tested"))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    store.close()
    again = open_store(path)
    loaded = again.load()
    assert (loaded.targets["h0/a"].generation, loaded.watchdog) == (2, "lost")
    again.close()


async def test_readiness_knows_of_a_full_disk_and_of_its_end(path):
    """Ready stayed 200 with a full disk: without events nothing was written. The journal is tried regularly."""
    store = open_store(path)
    full = [False]
    write = store.commit

    def commit(given: Batch) -> None:
        if full[0]:
            raise StoreError("disk is full")
        write(given)

    store.commit = commit
    loop = CommitLoop(store, lambda _transaction, _now: None, lambda: 50.0)
    await loop.start(lambda transaction, _: transaction.log("fleet", "started"))
    running = asyncio.create_task(loop.run())
    full[0] = True
    loop._committed_at -= 11  # ten seconds without an event
    async with asyncio.timeout(30):
        await until(lambda: bool(loop.failure))
        assert loop.failure == "disk is full"
        with pytest.raises(StoreError, match="disk is full"):
            await loop.submit(lambda transaction, _: transaction.log("h0/a", "lost"))
        full[0] = False
        await until(lambda: not loop.failure)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [entry["event"] for entry in store.transitions(0, 10)] == ["started"]
    store.close()
