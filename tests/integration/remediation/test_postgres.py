"""The journal in PostgreSQL: the same promises as in SQLite, and several receivers of which one leads."""

import concurrent.futures
import os
import random
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from tests.fixtures.ports import reserved_port
from tests.fixtures.postgres import postgres_server
from tests.fixtures.remediation.stack import Process, Stack, alert, request, webhook
from tests.fixtures.waiting import wait_for

from fabricpulse.core.errors import UserError
from fabricpulse.remediation.receiver.payload import DeadLetter
from fabricpulse.remediation.receiver.state.model import Pause
from fabricpulse.remediation.receiver.state.transaction import Transaction
from fabricpulse.remediation.receiver.store.postgres_database import PostgresDatabase
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


def test_a_transaction_that_hangs_does_not_keep_the_lease(url):
    """A leader stopped within a commit: the server ends its session, another takes over, nothing is committed."""
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


class Pair:
    """Receivers on one database, an agent that knows all of their ports, a plugin."""

    def __init__(self, stack: Stack, url: str, lease_s: float) -> None:
        self.stack = stack
        self.ports = [stack.receiver_port, reserved_port()]
        self.processes: list[Process] = []
        self._config = {"journal": url, "lease_s": lease_s}
        for index in (0, 1):
            self.processes.append(self._start(index))
            wait_for(partial(self._answers, self.ports[index]), 60, "receiver answers")
        stack.start_plugin()
        stack.start_agent(config={"receiver": ",".join(f"http://127.0.0.1:{port}" for port in self.ports)})

    def _start(self, index: int) -> Process:
        self.stack.receiver_port = self.ports[index]
        self.stack.start_receiver(self._config)
        assert self.stack.receiver is not None
        return self.stack.receiver

    @staticmethod
    def _answers(port: int) -> bool:
        try:
            return request(f"http://127.0.0.1:{port}/-/healthy", timeout_s=2)[0] == 200
        except OSError:
            return False

    def _is_ready(self, index: int) -> bool:
        try:
            return request(f"http://127.0.0.1:{self.ports[index]}/-/ready", timeout_s=2)[0] == 200
        except OSError:
            return False

    def leader(self) -> int:
        """The one that is ready; the stack asks it from now on."""
        index = wait_for(lambda: next((str(i) for i in (0, 1) if self._is_ready(i)), ""), 60, "a leader")
        self.stack.receiver_port = self.ports[int(index)]
        return int(index)

    def take_over(self, how: signal.Signals) -> None:
        """The leader is killed or stopped; the other one leads within 15 s; a stopped one comes back and gives up."""
        old = self.leader()
        self.processes[old].send_signal(how)
        wait_for(lambda: self._is_ready(1 - old), 15, "the standby leads")
        self.stack.receiver_port = self.ports[1 - old]
        if how == signal.SIGSTOP:
            self.processes[old].send_signal(signal.SIGCONT)
        assert self.processes[old].wait(60) != 0
        self.processes[old] = self._start(old)
        wait_for(lambda: self._answers(self.ports[old]), 60, "it stands by")
        self.stack.receiver_port = self.ports[1 - old]

    def act(self, number: int) -> None:
        """A NIC goes out, or back, by the leader of now."""
        firing = number % 2 == 0
        start = f"2026-11-21T{number // 120:02d}:{number // 2 % 60:02d}:00Z"
        body = webhook(alert(status="firing" if firing else "resolved", starts_at=start))
        wait_for(lambda: self.stack.post(body)[0] == 200, 30, "delivered")
        self.stack.wait_phase("avoided" if firing else "in_service", timeout_s=60)


def check(pair: Pair, rounds: int) -> None:
    """Each operation once, in order, whoever led; the journal is one chain."""
    effects = pair.stack.effects()
    assert [op for _, op, _ in effects] == (["nic.avoid", "nic.restore"] * rounds)[:rounds]
    assert len({op_id for op_id, _, _ in effects}) == rounds
    assert pair.stack.get("/api/v1/verify")["intact"] is True


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
        check(pair, 3)
    finally:
        stack.close()


# In each of FLEETS fleets, which do so at the same time: most of a takeover is waiting for a lease of 3 s to end.
LEADERS = int(os.environ.get("FABRICPULSE_TEST_LEADERS", "3"))
FLEETS = 3


def end_leaders(url: str, folder: Path, seed: int) -> None:
    """Kills and stops the leaders of one fleet, one after the other, and checks what they did."""
    stack, chance = Stack(folder), random.Random(seed)
    try:
        pair = Pair(stack, url, 3)
        pair.leader()
        stack.wait_agent()
        for number in range(LEADERS):
            pair.act(number)
            pair.take_over(chance.choice([signal.SIGKILL, signal.SIGSTOP]))
        check(pair, LEADERS)
    finally:
        stack.close()


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
            fleets.append(pool.submit(end_leaders, database, folder, 20261122 + number))
        for fleet in fleets:
            fleet.result()
