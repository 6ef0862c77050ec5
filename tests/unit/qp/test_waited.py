"""How long ranks have waited, and for whom: a counter of time, not of polls, that accuses nobody of what is unknown."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.plugin.telemetry_file import TelemetryFile

from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.plugin_ipc.telemetry import PluginTelemetryReader, Table
from fabricpulse.qp.aggregate import Aggregator
from fabricpulse.qp.expose import expose
from fabricpulse.qp.waited import MOST_PEERS, MOST_S, WaitedTime

PEER_RECEIVE, DELIVERY, PEER_SEND, ARRIVAL = 1, 2, 3, 4
RANK = ("train-7", "0")


class Job:
    """One process and the time, both of which the test moves."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.file = TelemetryFile(folder, 100, rank=rank)
        self.waited = WaitedTime()
        self.now = time.clock_gettime(time.CLOCK_MONOTONIC)
        self.poll(0)

    def waits(self, waits_for: int, peer: int = 1, *, since_s: float = 0.1, slot: int = 0) -> None:
        """A request that has not moved for so long."""
        at = int((self.now - since_s) * 1e9)
        self.file.put(
            Table.CONNECTIONS, slot, state=1, peer=f"h{peer}".encode(), peer_rank=peer, waits_for=waits_for,
            oldest_request_mono_ns=at, last_progress_mono_ns=at,
        )  # fmt: skip

    def goes_on(self, slot: int = 0) -> None:
        self.file.put(Table.CONNECTIONS, slot, state=1, waits_for=0, oldest_request_mono_ns=0)

    def poll(self, after_s: float, *, silent_s: float = 0.0) -> None:
        self.now += after_s
        self.file.header["heartbeat_mono_ns"] = int((self.now - silent_s) * 1e9)
        self.waited.take([PluginTelemetryReader(self.file.path).read()], self.now)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    yield Job(tmp_path)


def test_waits_that_come_and_go_add_up_to_their_time(job: Job) -> None:
    """A rank that waits three tenths of the time for a peer, in waits shorter than a poll, has waited so long."""
    random = np.random.default_rng(3)
    for _ in range(400):
        if random.random() < 0.3:
            job.waits(PEER_SEND)
        else:
            job.goes_on()
        job.poll(1.0)
    assert job.waited.ranks()[RANK] == pytest.approx(120, rel=0.2)
    assert job.waited.peers()["train-7", "0", "h1", "1"] == job.waited.ranks()[RANK]


@pytest.mark.parametrize(
    ("waits_for", "accused"), [(PEER_RECEIVE, True), (PEER_SEND, True), (DELIVERY, False), (ARRIVAL, False)]
)
def test_only_what_a_peer_has_not_offered_is_its_wait(job: Job, waits_for: int, accused: bool) -> None:
    """What is under way is waited for as well, and held against nobody."""
    job.waits(waits_for)
    job.poll(1.0)
    assert job.waited.ranks() == {RANK: pytest.approx(1.0)}
    assert job.waited.peers() == ({("train-7", "0", "h1", "1"): pytest.approx(1.0)} if accused else {})


def test_two_waits_at_once_are_one_time(job: Job) -> None:
    """Of the rank; each of the peers has been waited for."""
    job.waits(PEER_SEND, 1, slot=0)
    job.waits(PEER_RECEIVE, 2, slot=1)
    job.waits(PEER_SEND, 2, slot=2)
    job.poll(1.0)
    assert job.waited.ranks()[RANK] == pytest.approx(1.0)
    assert {key[3]: value for key, value in job.waited.peers().items()} == pytest.approx({"1": 1.0, "2": 1.0})


def test_a_request_that_moves_waits_for_nothing(job: Job) -> None:
    """Within 50 ms."""
    job.waits(PEER_SEND, since_s=0.02 - 1.0)
    job.poll(1.0)
    assert job.waited.ranks() == {RANK: 0.0}
    assert not job.waited.peers()


def test_what_a_stopped_process_waited_for_may_be_there(job: Job) -> None:
    """Without a sign of life it neither waits nor accuses."""
    job.waits(PEER_SEND)
    for _ in range(5):
        job.poll(1.0, silent_s=3.0)
    assert job.waited.ranks() == {RANK: 0.0}
    assert not job.waited.peers()


def test_of_a_long_pause_only_what_the_age_proves_is_counted(job: Job) -> None:
    """Nobody looked for a minute: a wait of three seconds has not been one of a minute."""
    job.waits(PEER_SEND, since_s=3.0 - 6 * MOST_S)
    job.poll(6 * MOST_S)
    assert job.waited.ranks()[RANK] == pytest.approx(3.0)


def test_before_it_was_first_seen_nothing_is_known(tmp_path: Path) -> None:
    """A counter begins at 0, also where the exporter finds a job that waits."""
    job = Job(tmp_path)
    job.waits(PEER_SEND, since_s=50)
    later = WaitedTime()
    snapshot = PluginTelemetryReader(job.file.path).read()
    later.take([snapshot], job.now)
    assert later.ranks() == {RANK: 0.0}
    later.take([snapshot], job.now + 1)
    assert later.ranks() == {RANK: pytest.approx(1.0)}


def test_no_rank_no_series(tmp_path: Path) -> None:
    """Of a process whose rank nobody knows nothing can be said; nor of a peer without a number."""
    job = Job(tmp_path, rank=0xFFFFFFFF)
    job.waits(PEER_SEND)
    job.poll(1.0)
    assert not job.waited.ranks()
    job = Job(tmp_path)
    job.waits(PEER_SEND, 0xFFFFFFFF)
    job.poll(1.0)
    assert job.waited.ranks() == {RANK: pytest.approx(1.0)}
    assert not job.waited.peers()


def test_series_have_an_end_and_the_one_that_is_waited_for_stays(job: Job) -> None:
    """Of many peers that are each waited for once the straggler is kept."""
    for _ in range(10):
        job.waits(PEER_SEND, 1)
        job.poll(1.0)
    for number in range(2, 160):
        job.waits(PEER_SEND, number, slot=1)
        job.poll(1.0)
    peers = {key[3]: value for key, value in job.waited.peers().items()}
    assert len(peers) == MOST_PEERS
    assert peers["1"] > 150


def test_a_process_that_is_gone_is_forgotten_and_polls_of_scrapes_count_nothing(tmp_path: Path) -> None:
    """Two scrapers must not make time pass faster."""
    job = Job(tmp_path)
    aggregator = Aggregator(forget_after_s=300, worst_count=2, worst_owd_s=0.005, waiting_s=1.0)
    job.waits(PEER_SEND)
    snapshot = PluginTelemetryReader(job.file.path).read()
    aggregator.take([snapshot], [], job.now, interval=True)
    for tenth in range(1, 10):
        aggregator.take([snapshot], [], job.now + 0.1 * tenth, interval=False)
    aggregator.take([snapshot], [], job.now + 1, interval=True)
    exposition = Exposition()
    expose(aggregator, 0, exposition)
    lines = exposition.render().decode().splitlines()
    assert [float(line.split()[1]) for line in lines if line.startswith("fabricpulse_request_waited_")] == [
        pytest.approx(1.0), pytest.approx(1.0)
    ]  # fmt: skip
    aggregator.take([], [], job.now + 2, interval=True)
    assert not aggregator.waited.ranks()
