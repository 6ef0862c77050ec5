"""Ranks of which no collective ends: how long is too long for a job, and what a host says of it."""

from collections.abc import Iterable

import pytest

from fabricpulse.qp.progress import Heartbeat, RankProgress
from fabricpulse.qp.stall import HostRanks, find_profiled_stalls
from fabricpulse.qp.unmoved import UnmovedRank, UnmovedRanks
from fabricpulse.qp.waiting import Waiting

STALLED_S = 5.0
# Past the two hours in which a job's pauses are not known.
KNOWN_S = 7300.0
HOUR_S = 3600.0


def rank(number: int, operations: int, inside: int, communicator: str = "a1", owner: int = 7) -> RankProgress:
    return RankProgress("job", communicator, number, operations, 0, inside, owner)


class Job:
    """One rank, polled once a second, as the exporter does."""

    def __init__(self, ranks: int = 1) -> None:
        self.watch = UnmovedRanks(STALLED_S)
        self.now_s = 0.0
        self.operations = 0
        self.ranks = ranks

    def poll(self, seconds: float, inside: int = 1) -> list[UnmovedRank]:
        """Nothing ends for so long; what is found at the last poll."""
        found: list[UnmovedRank] = []
        for _ in range(round(seconds)):
            self.now_s += 1
            ranks = [rank(n, self.operations, inside) for n in range(self.ranks)]
            found = self.watch.take(ranks, self.now_s)
        return found

    def train(self, seconds: float) -> None:
        """A collective ends each second."""
        for _ in range(round(seconds)):
            self.operations += 1
            assert self.poll(1) == []

    def compute(self, seconds: float) -> None:
        """No rank is in a collective; polled as seldom as may be. Then three collectives of a second."""
        self.operations += 1
        self.poll(1, inside=0)
        for _ in range(round(seconds / 10)):
            self.now_s += 10
            self.watch.take([rank(n, self.operations, 0) for n in range(self.ranks)], self.now_s)
        self.train(4)

    def limit_s(self, most_s: int = 700) -> int:
        """For how long a rank may wait now. The job is stuck then."""
        for second in range(most_s):
            if self.poll(1):
                return second
        return most_s


def test_a_stall_is_seen_within_seconds() -> None:
    """A collective of a job that is known does not end."""
    job = Job()
    job.compute(KNOWN_S)
    assert job.poll(5) == []
    (found,) = job.poll(1)
    assert (found.state, found.operations, found.for_s) == ("inside", 5, 6.0)
    job.train(1)


def test_a_pause_that_the_job_is_used_to_is_no_stall() -> None:
    """Others wait in a barrier while a rank saves a checkpoint, again and again. Twice as long is too long."""
    job = Job()
    job.compute(KNOWN_S / 2)
    job.poll(20)
    job.compute(KNOWN_S)
    for _ in range(3):
        assert job.poll(20) == []
        job.compute(5 * HOUR_S)
    assert job.limit_s() == 42


def test_a_habit_is_forgotten() -> None:
    """A day after."""
    job = Job()
    job.compute(KNOWN_S / 2)
    job.poll(25)
    job.train(1)
    job.compute(26 * HOUR_S)
    assert job.limit_s() == STALLED_S


@pytest.mark.parametrize("before_s", [10, 60, 150, 3600])
def test_a_job_whose_pauses_are_not_known_gets_more_time(before_s: int) -> None:
    """Its first checkpoint is no stall, nor are waits of a slow step."""
    job = Job()
    job.train(5)
    job.compute(before_s)
    for _ in range(8):
        assert job.poll(8) == []
        job.train(2)
    assert job.poll(25) == []
    assert job.poll(40) != []


@pytest.mark.parametrize("seconds", [29, 60])
def test_who_loads_teaches_nothing(seconds: int) -> None:
    """How long a job compiles and loads says nothing of later waits."""
    job = Job()
    job.poll(seconds)
    job.compute(KNOWN_S)
    assert job.limit_s() == STALLED_S
    job.train(1)
    job.compute(60)
    assert job.limit_s() == STALLED_S


@pytest.mark.parametrize("ranks", [1, 3])
def test_one_fault_does_not_hide_the_next_one(ranks: int) -> None:
    """A stall that ends by itself is no habit, however many ranks it had; two are one."""
    job = Job(ranks)
    job.compute(KNOWN_S)
    limits = []
    for _ in range(3):
        limits.append(job.limit_s())
        job.poll(400)
        job.train(1)
        job.compute(60)
    assert limits == [STALLED_S, STALLED_S, 610]


@pytest.mark.parametrize(("pause_s", "limit_s"), [(200, 301), (400, 601), (3000, 1800)])
def test_a_long_pause_is_a_habit_at_the_third_time(pause_s: int, limit_s: int) -> None:
    """A checkpoint of some minutes an hour: the first two are too long, and later ones are not, within bounds."""
    job = Job()
    job.compute(KNOWN_S)
    for _ in range(2):
        assert job.poll(pause_s) != []
        job.train(1)
        job.compute(HOUR_S)
    assert job.limit_s(2000) == limit_s


def test_waits_during_a_stall_teach_nothing() -> None:
    """Those of another communicator grow then."""
    job = Job()
    job.compute(KNOWN_S)
    for second in range(60):
        job.now_s += 1
        ended = second if second < 8 else 8 + second // 4
        job.watch.take([rank(0, job.operations, 1), rank(0, ended, 1, "b2")], job.now_s)
    job.train(1)
    assert job.limit_s() == STALLED_S


def test_a_job_that_has_not_waited_yet_is_not_known() -> None:
    """However old its process is."""
    job = Job()
    job.operations = 3
    for _ in range(800):
        job.now_s += 10
        job.watch.take([rank(0, 3, 0)], job.now_s)
    job.train(1)
    assert job.limit_s() == 30


def test_checkpoints_that_are_far_apart() -> None:
    """A minute each three hours: too long for a job that is not known to do that, and then no more."""
    job = Job()
    pages = 0
    for _ in range(6):
        job.compute(3 * HOUR_S)
        pages += bool(job.poll(60))
        job.train(1)
    assert pages == 2


def test_an_exporter_that_was_stopped_has_seen_no_wait() -> None:
    """Nor does a rank count as one that has waited in that time."""
    job = Job()
    job.compute(KNOWN_S)
    job.poll(1)
    job.now_s += 600
    assert job.poll(2) == []
    job.train(1)
    assert job.limit_s() == STALLED_S


def test_another_user_with_the_same_names() -> None:
    """His ranks and waits change nothing."""
    job = Job()
    job.compute(KNOWN_S)
    for _ in range(600):
        job.now_s += 1
        job.operations += 1
        job.watch.take([rank(0, job.operations, 1), rank(0, 3, 1, owner=8)], job.now_s)
    job.operations += 1
    for second in range(13):
        job.now_s += 1
        found = job.watch.take([rank(0, job.operations, 1), rank(0, 4 + second, 0, owner=8)], job.now_s)
    assert [(r.owner, r.for_s) for r in found] == [(7, 12.0)]


def test_a_slow_poll_is_usual_where_the_interval_is_long() -> None:
    """Ranks are seen to wait there as well."""
    watch = UnmovedRanks(STALLED_S, interval_s=20.0)
    assert [bool(watch.take([rank(0, 1, 1)], s)) for s in (0.0, 20.0, 40.0)] == [False, False, True]


def test_who_computes_is_outside() -> None:
    """And no stall; a rank that comes back to a collective begins to wait anew."""
    job = Job()
    job.compute(KNOWN_S)
    assert {r.state for r in job.poll(60, inside=0)} == {"outside"}
    assert job.poll(5) == []


def test_who_left_a_communicator_unused_is_not_outside() -> None:
    """Only the start of the job used it, and the job goes on in another one."""
    watch = UnmovedRanks(STALLED_S)
    for second in range(60):
        start = [rank(n, 3, 0, "b2") for n in range(8)]
        assert watch.take([rank(0, second // 2, second % 2), *start], second) == []


def test_who_is_late_is_outside_before_the_limit_of_its_host() -> None:
    """Its host knows long waits of the job; others, which do not, need it to name the rank."""
    watch = UnmovedRanks(STALLED_S)
    for second in range(400):
        operations = min(second, 150) if second < 179 else min(second, 300)
        late = second > 300
        ranks = [rank(0, operations, 1), rank(1, operations, 0 if late else 1)]
        found = watch.take(ranks, second)
        if late and found:
            break
    assert ([(r.rank, r.state) for r in found], second) == ([(1, "outside")], 317)


def test_a_job_that_is_gone_is_forgotten() -> None:
    """The next one of that name is new."""
    job = Job()
    job.compute(KNOWN_S)
    job.watch.take([], job.now_s)
    assert job.poll(20) == []


def unmoved(number: int, operations: int, state: str, communicator: str = "a1") -> UnmovedRank:
    return UnmovedRank("job", communicator, number, state, operations, 8.0, 7)  # type: ignore[arg-type]


def beats(*ages_s: float) -> tuple[Heartbeat, ...]:
    return tuple(Heartbeat("job", str(n), 100 + n, age_s, 7) for n, age_s in enumerate(ages_s))


def waiting(owner: int) -> Waiting:
    return Waiting("job", "0", "h1", "1", "peer_send", 8, owner=owner)


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
        ([unmoved(0, 6, "inside")], HostRanks((), (Heartbeat("job", "", 7, 9.0, 7),)), [("unknown", "")]),
        # Nobody waits: they compute.
        ([unmoved(0, 6, "outside")], HostRanks(), []),
        # Requests are seen: they say more.
        ([unmoved(0, 6, "inside")], HostRanks((waiting(7),)), []),
        # Of another user's job of that name.
        ([unmoved(0, 6, "inside")], HostRanks((waiting(8),)), [("unknown", "")]),
        (
            [unmoved(0, 6, "inside")],
            HostRanks((), (Heartbeat("job", "1", 7, 9.0, 8),)),
            [("unknown", "")],
        ),
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
