"""Ranks of which no collective ends: how long is too long for a job, and what a host says of it."""

from collections.abc import Iterable

import pytest

from fabricpulse.qp.progress import Heartbeat, RankProgress
from fabricpulse.qp.stall import HostRanks, find_profiled_stalls
from fabricpulse.qp.unmoved import UnmovedRank, UnmovedRanks
from fabricpulse.qp.waiting import Waiting

STALLED_S = 5.0
# Past the two minutes in which a job is new.
OLD_S = 130.0


def rank(number: int, operations: int, inside: int, communicator: str = "a1") -> RankProgress:
    return RankProgress("job", communicator, number, operations, 0, inside)


class Job:
    """One rank, polled once a second, as the exporter does."""

    def __init__(self) -> None:
        self.watch = UnmovedRanks(STALLED_S)
        self.now_s = 0.0
        self.operations = 0

    def poll(self, seconds: float, inside: int = 1) -> list[UnmovedRank]:
        """Nothing ends for so long; what is found at the last poll."""
        found: list[UnmovedRank] = []
        for _ in range(round(seconds)):
            self.now_s += 1
            found = self.watch.take([rank(0, self.operations, inside)], self.now_s)
        return found

    def train(self, seconds: float) -> None:
        """A collective ends each second."""
        for _ in range(round(seconds)):
            self.operations += 1
            assert self.poll(1) == []


def test_a_stall_is_seen_within_seconds() -> None:
    """A collective of a job that is not new does not end."""
    job = Job()
    job.train(OLD_S)
    assert job.poll(5) == []
    (found,) = job.poll(1)
    assert (found.state, found.operations, found.for_s) == ("inside", OLD_S, 6.0)
    job.train(1)


def test_a_pause_that_the_job_is_used_to_is_no_stall() -> None:
    """Others wait in a barrier while a rank saves a checkpoint, again and again. Twice as long is too long."""
    job = Job()
    job.train(OLD_S)
    job.poll(20)
    job.train(60)
    for _ in range(3):
        assert job.poll(20) == []
        job.train(600)
    assert job.poll(35) == []
    assert job.poll(10) != []


def test_a_habit_is_forgotten() -> None:
    """One long wait hides no stall for longer than two hours."""
    job = Job()
    job.train(OLD_S)
    job.poll(60)
    job.train(1800)
    assert job.poll(30) == []
    job.train(2 * 3600 + 10)
    assert job.poll(7) != []


@pytest.mark.parametrize("pause_s", [10, 28])
def test_a_new_job_gets_more_time(pause_s: int) -> None:
    """It compiles and loads; how long it takes for that says nothing of later waits."""
    job = Job()
    job.train(10)
    assert job.poll(pause_s) == []
    assert job.poll(32 - pause_s) != []
    job.train(OLD_S)
    assert job.poll(7) != []


def test_who_computes_is_outside() -> None:
    """And no stall; a rank that comes back to a collective begins to wait anew."""
    job = Job()
    job.train(OLD_S)
    assert {r.state for r in job.poll(60, inside=0)} == {"outside"}
    assert job.poll(5) == []


def test_a_job_that_is_gone_is_forgotten() -> None:
    """The next one of that name is new."""
    job = Job()
    job.train(OLD_S)
    job.watch.take([], job.now_s)
    assert job.poll(20) == []


def unmoved(number: int, operations: int, state: str, communicator: str = "a1") -> UnmovedRank:
    return UnmovedRank("job", communicator, number, state, operations, 8.0)  # type: ignore[arg-type]


def beats(*ages_s: float) -> tuple[Heartbeat, ...]:
    return tuple(Heartbeat("job", str(n), 100 + n, age_s) for n, age_s in enumerate(ages_s))


@pytest.mark.parametrize(
    ("ranks", "own", "found"),
    [
        # Who of all hosts has not entered the rule tells.
        (
            [unmoved(0, 6, "inside"), unmoved(1, 6, "inside")],
            HostRanks((), beats(0.1, 0.1)),
            [("unknown", "")],
        ),
        (
            [unmoved(0, 6, "inside"), unmoved(1, 6, "outside")],
            HostRanks((), beats(0.1, 0.1)),
            [("unknown", "")],
        ),
        # A stopped process, by the launcher's number; one without a number is none.
        (
            [unmoved(0, 6, "inside"), unmoved(1, 6, "outside")],
            HostRanks((), beats(0.1, 9.0)),
            [("process", "1")],
        ),
        ([unmoved(0, 6, "inside")], HostRanks((), (Heartbeat("job", "", 7, 9.0),)), [("unknown", "")]),
        # Nobody waits: they compute.
        ([unmoved(0, 6, "outside")], HostRanks(), []),
        # Requests are seen: they say more.
        ([unmoved(0, 6, "inside")], HostRanks((Waiting("job", "0", "h1", "1", "peer_send", 8),)), []),
    ],
)
def test_what_a_host_says(ranks: Iterable[UnmovedRank], own: HostRanks, found: list[tuple[str, str]]) -> None:
    """The head as far as this host knows it."""
    stalls = find_profiled_stalls(ranks, own, "h0", STALLED_S)
    assert [(s.head, s.rank) for s in stalls] == found
    assert {s.peer for s in stalls} <= {"h0", ""}
    assert all(age_s >= 8.0 for age_s in stalls.values())


def test_who_is_inside_another_communicator_is_not_outside() -> None:
    """Two processes of one host: which of them is inside the other communicator is not seen."""
    watch = UnmovedRanks(STALLED_S)

    def poll(now_s: float, other: int) -> set[tuple[str, str]]:
        ranks = [rank(0, 6, 1), rank(1, 6, 0), rank(0, other, 1, "b2")]
        return {(r.communicator, r.state) for r in watch.take(ranks, now_s)}

    for second in range(40):
        found = poll(second, other=second)
    assert found == {("a1", "inside")}
    for second in range(40, 80):
        found = poll(second, other=40)
    assert found == {("a1", "inside"), ("b2", "inside"), ("a1", "outside")}
