"""When a lane gets another path (nccl_plugin/src/core/path_selector.h), played in simulated time."""

import itertools
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.fixtures.native.programs import native

ROOT = Path(__file__).parents[3]
TICK_MS = 10
WINDOW_MS = 100
NOISE_MS = 100
SPEED = 25_000_000  # bytes per second of every NIC


@dataclass
class Lane:
    """What a lane does in this moment: its share of the NIC's speed, whether its path has a queue."""

    share: float = 1.0
    queue: bool = False
    busy: bool = True
    up: bool = True
    movable: bool = True
    lossy: bool = False
    own: bool = False  # the queue is of this process's own bytes, in its NIC
    noise: float = (
        0.0  # a tenth of a second delivers between 1 - noise and 1 + noise of the share, evenly spread
    )


class Selector:
    """The selector, with lanes that obey it."""

    def __init__(self, program: Path, *lanes: Lane) -> None:
        self.lanes = list(lanes)
        self.waiting = False
        self.now_ms = 1000
        self.random = random.Random(5)
        self.noise = [0.0] * len(lanes)
        self.delivered = [0.0] * len(lanes)
        self.congested = [0] * len(lanes)
        self.moves: list[tuple[int, int]] = []  # (ms, lane)
        self.returns: list[bool] = []  # of each move: back to the former path
        self.on_move: Callable[[int], None] = lambda _lane: None
        self.by_command = False  # somebody else moves the lanes just then
        self.unreachable = False  # no move that is chosen comes about, and nobody says so
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.asked = 0

    def say(self, *words: object) -> None:
        self.lines.append(" ".join([str(int(w)) if isinstance(w, bool) else str(w) for w in words]))

    def answers(self) -> list[int]:
        """To all questions so far: only at the end of its window does the selector choose, so many go together."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n".join(self.lines) + "\n")
        self.process.stdin.flush()
        answers = [int(self.process.stdout.readline()) for _ in range(self.asked)]
        self.lines, self.asked = [], 0
        return answers

    def run(self, milliseconds: int) -> list[tuple[int, int]]:
        """Lets time pass; each move is carried out at once. The moves of this span."""
        before = len(self.moves)
        end_ms = self.now_ms + milliseconds
        while self.now_ms < end_ms:
            self.now_ms += TICK_MS
            now = self.now_ms * 1_000_000
            if self.now_ms % NOISE_MS == 0:
                self.noise = [self.random.uniform(-1, 1) for _ in self.lanes]
            for index, lane in enumerate(self.lanes):
                if lane.busy and lane.up:
                    rate = lane.share * (1 + lane.noise * self.noise[index]) * SPEED
                    self.delivered[index] += rate * TICK_MS / 1000
                    self.congested[index] += lane.lossy
                rtt = 20_000_000 if lane.queue or lane.own else 100_000
                ahead = 0.0199 * SPEED if lane.own else 0
                self.say(
                    *("s", index, lane.up, lane.movable, lane.busy),
                    *(int(self.delivered[index]), SPEED, self.congested[index], rtt, int(ahead), now),
                )
            self.say("v", len(self.lanes), self.waiting, now)
            self.say("r")
            self.asked += 2
            if self.now_ms % WINDOW_MS != TICK_MS and self.now_ms < end_ms:
                continue
            *earlier, move, back = self.answers()
            assert set(earlier[::2]) <= {-1}
            if move >= 0:
                self.returns.append(bool(back))
                self.moves.append((self.now_ms, move))
                if self.unreachable:
                    continue
                self.say("m", move, self.by_command, now)
                self.on_move(move)
        return self.moves[before:]

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self.process.stdout.close()


@pytest.fixture
def program() -> Path:
    return native("plugin_path_selector", "address")


@pytest.fixture
def selector(program: Path) -> Iterator[Callable[..., Selector]]:
    made: list[Selector] = []

    def make(*lanes: Lane) -> Selector:
        made.append(Selector(program, *lanes))
        made[-1].run(300)  # round trips without a queue are known
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.simulation
def test_a_lane_that_stays_bad_beside_a_good_one_moves(selector: Callable[..., Selector]) -> None:
    """Within a second, and only that lane."""
    it = selector(Lane(), Lane())
    it.lanes[0] = Lane(share=0.4, queue=True)
    it.on_move = lambda lane: it.lanes.__setitem__(lane, Lane())  # its new path is free
    moves = it.run(5000)
    assert [lane for _, lane in moves] == [0]
    assert moves[0][0] - 1300 <= 1000


@pytest.mark.parametrize(
    "lane",
    [
        Lane(share=0.4),  # slow, but nothing waits in the network: the application does
        Lane(share=0.7, queue=True, lossy=True),  # not much worse
        Lane(share=0.1, queue=True, busy=False),  # hardly used
        Lane(share=0.1, queue=True, movable=False),  # by command where it is
        Lane(share=0.1, queue=True, up=False),
    ],
    ids=["no queue", "good enough", "idle", "fixed", "down"],
)
def test_a_lane_that_is_not_bad_stays(selector: Callable[..., Selector], lane: Lane) -> None:
    it = selector(Lane(), Lane())
    it.lanes[0] = lane
    assert it.run(10_000) == []


def test_a_short_congestion_moves_nothing(selector: Callable[..., Selector]) -> None:
    """Two bad windows, then a good one, again and again."""
    it = selector(Lane(), Lane())
    for _ in range(20):
        it.lanes[0] = Lane(share=0.3, queue=True)
        it.run(200)
        it.lanes[0] = Lane()
        it.run(200)
    assert it.moves == []


def pauses(moves: list[tuple[int, int]]) -> list[int]:
    """Milliseconds between two moves."""
    return [b - a for (a, _), (b, _) in itertools.pairwise(moves)]


@pytest.mark.simulation
def test_a_path_that_is_no_better_is_left_ever_more_seldom(selector: Callable[..., Selector]) -> None:
    """The NIC itself is slow: each pause between two moves is twice the one before; the first is as long as a trial."""
    it = selector(Lane(), Lane())
    it.lanes[0] = Lane(share=0.2, queue=True, lossy=True)
    moves = it.run(300_000)
    assert {lane for _, lane in moves} == {0}
    assert 8 <= len(moves) <= 10
    assert all(1.9 <= b / a <= 2.1 for a, b in itertools.pairwise(pauses(moves)[1:]))


@pytest.mark.simulation
@pytest.mark.parametrize(("share", "noise"), [(0.35, 0.6), (0.5, 0.4), (0.62, 0.3)])
def test_a_slower_nic_does_not_move_for_ever(
    selector: Callable[..., Selector], share: float, noise: float
) -> None:
    """Noise makes some windows after a move much better than those before it, and is no reason to hope."""
    it = selector(Lane(noise=0.3), Lane(noise=0.3))
    it.lanes[0] = Lane(share=share, queue=True, lossy=True, noise=noise)
    it.run(300_000)
    assert it.returns.count(False) <= 10
    assert len(it.returns) <= 12
    assert len(it.run(300_000)) <= 2


def test_a_collision_is_left_within_a_second_each_time(selector: Callable[..., Selector]) -> None:
    """Noise or not; that it happens again and again does not count against the lane whose moves help."""
    it = selector(Lane(noise=0.3), Lane(noise=0.3))
    it.on_move = lambda lane: it.lanes.__setitem__(lane, Lane(noise=0.3))
    for number in range(10):
        began = it.now_ms
        it.lanes[number % 2] = Lane(share=0.4, queue=True, noise=0.4)
        moves = it.run(10_000)
        assert [lane for _, lane in moves] == [number % 2]
        assert moves[0][0] - began <= 1000


@pytest.mark.simulation
def test_after_a_long_good_time_the_pauses_begin_anew(selector: Callable[..., Selector]) -> None:
    """What was a slow NIC for a minute may be a collision an hour later."""
    it = selector(Lane(), Lane())
    slow = Lane(share=0.3, queue=True, lossy=True)
    it.lanes[0] = slow
    before = pauses(it.run(60_000))
    assert before[-1] > 10_000
    it.lanes[0] = Lane()
    assert it.run(200_000) == []
    it.lanes[0] = slow
    assert pauses(it.run(60_000)) == before


def test_all_in_one_queue_search_for_another_way(selector: Callable[..., Selector]) -> None:
    """No sibling is well, so the one with the least to lose moves first."""
    it = selector(Lane(), Lane())
    it.lanes[:] = [Lane(share=0.5, queue=True), Lane(share=0.45, queue=True)]
    it.waiting = True
    it.on_move = lambda _lane: it.lanes.__setitem__(slice(None), [Lane(), Lane()])  # now each has its own way
    moves = it.run(3000)
    assert [lane for _, lane in moves] == [1]


@pytest.mark.simulation
def test_a_search_that_finds_nothing_ends(selector: Callable[..., Selector]) -> None:
    """The lanes share their NIC, not a link of the fabric: with every path they carry the same together."""
    it = selector(Lane(), Lane())
    it.lanes[:] = [Lane(share=0.5, queue=True, noise=0.5), Lane(share=0.45, queue=True, noise=0.5)]
    it.waiting = True
    assert len(it.run(300_000)) <= 20
    assert len(it.run(300_000)) <= 4


HALF = [Lane(share=0.5, lossy=True, noise=0.2), Lane(share=0.45, lossy=True, noise=0.2)]
QUARTER = [Lane(share=0.25, lossy=True, noise=0.2), Lane(share=0.25, lossy=True, noise=0.2)]


def in_one_queue(it: Selector, elsewhere: list[Lane]) -> list[int]:
    """All lanes are congested; elsewhere they deliver that. When moves to elsewhere began, ms."""
    it.waiting, it.lanes[:] = True, HALF
    it.on_move = lambda _lane: it.lanes.__setitem__(slice(None), HALF if it.returns[-1] else elsewhere)
    moves = it.run(120_000)
    return [ms for (ms, _), back in zip(moves, it.returns, strict=True) if not back]


@pytest.mark.simulation
@pytest.mark.parametrize("elsewhere", [QUARTER, HALF], ids=["less", "as much"])
def test_searches_in_vain_become_ever_rarer(selector: Callable[..., Selector], elsewhere: list[Lane]) -> None:
    """Of the connection, not of each lane: while one is tried, the job may carry less."""
    away = in_one_queue(selector(Lane(), Lane()), elsewhere)
    assert 4 <= len(away) <= 10
    assert all(b >= 1.4 * a for a, b in itertools.pairwise(b - a for a, b in itertools.pairwise(away)))


@pytest.mark.simulation
def test_searches_that_gain_become_rarer_too(selector: Callable[..., Selector]) -> None:
    """Of several connections that share links each gains when another one moves: two rings searched for ever."""
    it = selector(Lane(), Lane())
    it.lanes[:] = [Lane(share=0.002), Lane(share=0.002)]
    it.run(2_000)
    it.waiting, it.lanes[:] = True, [replace(lane, lossy=True) for lane in it.lanes]

    def gain(_lane: int) -> None:
        it.lanes[:] = [replace(lane, share=1.3 * lane.share) for lane in it.lanes]

    it.on_move = gain
    times = [ms for ms, _ in it.run(120_000)]
    assert not any(it.returns)
    assert 5 <= len(times) <= 8
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps[0] >= 2_000
    assert all(b >= 1.8 * a for a, b in itertools.pairwise(gaps))


@pytest.mark.simulation
def test_a_search_without_its_move_counts_too(selector: Callable[..., Selector]) -> None:
    """A full link drops the handshake of the new path as well: each try costs both ends."""
    it = selector(Lane(), Lane())
    it.waiting, it.lanes[:], it.unreachable = True, HALF, True
    times = [ms for ms, _ in it.run(120_000)]
    assert 3 <= len(times) <= 6
    assert all(b - a >= 10_000 for a, b in itertools.pairwise(times))


@pytest.mark.simulation
def test_a_move_after_which_less_is_carried_is_undone(selector: Callable[..., Selector]) -> None:
    """The lane has its former path again within two seconds; one that changes nothing stays."""
    it = selector(Lane(), Lane())
    away = in_one_queue(it, QUARTER)
    back = [ms for (ms, _), back in zip(it.moves, it.returns, strict=True) if back]
    assert len(away) - len(back) in (0, 1)
    assert all(0 < b - a <= 2000 for a, b in zip(away, back, strict=False))
    it = selector(Lane(), Lane())
    in_one_queue(it, HALF)
    assert 4 * it.returns.count(True) <= it.returns.count(False)


def test_a_lossy_path_stays_left_while_the_job_sends_less(selector: Callable[..., Selector]) -> None:
    """All lanes carry less, on paths that have room: the move has not cost that."""
    it = selector(Lane(), Lane())
    it.lanes[0] = Lane(share=0.4, lossy=True)
    it.on_move = lambda _lane: it.lanes.__setitem__(slice(None), [Lane(share=0.3), Lane(share=0.3)])
    it.run(10_000)
    assert it.returns == [False]


def test_a_bad_lane_that_moves_to_its_sibling_s_link_returns(selector: Callable[..., Selector]) -> None:
    """It delivers as much as its sibling then, and more than before: what they share is full."""
    it = selector(Lane(), Lane())
    it.lanes[0] = Lane(share=0.4, lossy=True)
    it.on_move = lambda _lane: it.lanes.__setitem__(slice(None), [Lane(share=0.5, lossy=True)] * 2)
    it.run(3_000)
    assert it.returns == [False, True]


def test_a_return_does_not_double_the_pause(selector: Callable[..., Selector]) -> None:
    """Only the move before it, which did not help."""
    it = selector(Lane(), Lane())
    it.lanes[0] = Lane(share=0.4, lossy=True)
    on_path = it.lanes[0], Lane(share=0.1, lossy=True)
    it.on_move = lambda lane: it.lanes.__setitem__(lane, on_path[not it.returns[-1]])
    moves = it.run(60_000)
    away = [ms for (ms, _), back in zip(moves, it.returns, strict=True) if not back]
    gaps = [b - a for a, b in itertools.pairwise(away)]
    assert len(gaps) >= 4
    assert all(b <= 2.2 * a for a, b in itertools.pairwise(gaps))


@pytest.mark.simulation
def test_noise_alone_undoes_few_moves(selector: Callable[..., Selector]) -> None:
    """Where windows differ much, a second after a move may carry a tenth less than one before it by chance."""
    found: list[bool] = []
    for seed in range(6):
        it = selector(Lane(), Lane())
        it.random.seed(seed)
        it.lanes[:] = [replace(lane, noise=0.8) for lane in HALF]
        it.run(2_000)
        it.waiting = True
        it.run(60_000)
        found += it.returns
    assert len(found) >= 18
    assert 10 * found.count(True) <= len(found)


def test_the_first_move_of_a_bad_lane_is_judged(selector: Callable[..., Selector]) -> None:
    """One that is bad on its new path as well has its former path again before it tries a third."""
    it = selector(Lane(), Lane())
    it.lanes[0] = Lane(share=0.4, lossy=True)
    it.on_move = lambda lane: it.lanes.__setitem__(lane, Lane(share=0.1, lossy=True))
    it.run(3_000)
    assert it.returns[:2] == [False, True]


def test_one_move_at_a_time_is_on_trial(selector: Callable[..., Selector]) -> None:
    """Of two bad lanes the second moves when the first has been judged, a second after its path has settled."""
    it = selector(Lane(), Lane(), Lane())
    it.lanes[:2] = [Lane(share=0.2, lossy=True), Lane(share=0.3, lossy=True)]
    moves = it.run(5_000)
    assert {lane for _, lane in moves} == {0, 1}
    away = [ms for (ms, _), back in zip(moves, it.returns, strict=True) if not back]
    assert all(b - a >= 1_200 for a, b in itertools.pairwise(away))


def test_a_trial_ends_without_its_move(selector: Callable[..., Selector]) -> None:
    it = selector(Lane(), Lane())
    it.lanes[0] = Lane(share=0.2, lossy=True)
    it.unreachable = True
    moves = it.run(25_000)
    assert all(10_000 <= b - a <= 11_000 for (a, _), (b, _) in itertools.pairwise(moves))
    assert len(moves) >= 2


def test_a_move_by_command_is_not_undone(selector: Callable[..., Selector]) -> None:
    """Not where it comes while a move of the selector is on its way either."""
    it = selector(Lane(), Lane())
    it.by_command = True
    assert in_one_queue(it, QUARTER)
    assert not any(it.returns)


def test_what_a_lost_sibling_carried_is_not_the_move_s_fault(selector: Callable[..., Selector]) -> None:
    it = selector(Lane(), Lane(), Lane())
    it.lanes[0] = Lane(share=0.2, lossy=True)

    def lose_one(lane: int) -> None:
        it.lanes[lane], it.lanes[2] = Lane(), Lane(up=False, busy=False)

    it.on_move = lose_one
    it.run(5_000)
    assert it.returns == [False]


@pytest.mark.simulation
def test_a_lane_that_is_bad_beside_full_paths_stays(selector: Callable[..., Selector]) -> None:
    """Flows that share a link are seldom fair to each other; with room on a sibling's path it is another matter."""
    it = selector(Lane(), Lane())
    it.lanes[:] = [Lane(share=0.2, lossy=True, noise=0.3), Lane(share=0.8, lossy=True, noise=0.3)]
    assert it.run(60_000) == []
    it.on_move = lambda lane: it.lanes.__setitem__(lane, Lane(noise=0.3))
    for _ in range(5):  # a queue now and then is no full path
        it.lanes[1] = Lane(share=0.8, noise=0.3)
        it.run(500)
        if not it.moves:
            it.lanes[1] = Lane(share=0.8, lossy=True, noise=0.3)
            it.run(300)
    assert [lane for _, lane in it.moves] == [0]


def test_a_full_lane_is_no_congested_path(selector: Callable[..., Selector]) -> None:
    """Round trips that wait behind this process's own bytes in its NIC say nothing of the path."""
    it = selector(Lane(), Lane())
    it.waiting = True
    it.lanes[:] = [Lane(share=0.5, own=True), Lane(share=0.45, own=True)]
    assert it.run(20_000) == []
    it.lanes[:] = [Lane(share=0.5, queue=True), Lane(share=0.45, queue=True)]
    assert it.run(3_000)


def test_a_connection_that_ends_soon_searches_for_nothing(selector: Callable[..., Selector]) -> None:
    """What counts is how long it is held up, with pauses between."""
    it = selector(Lane(), Lane())
    for _ in range(3):
        it.waiting = True
        it.lanes[:] = [Lane(share=0.5, queue=True), Lane(share=0.45, queue=True)]
        assert it.moves == []
        it.run(600)
        it.waiting = False
        it.run(300)
    assert len(it.moves) == 1


@pytest.mark.parametrize("waiting", [True, False])
def test_no_search_where_nothing_waits_or_nobody_suffers(
    selector: Callable[..., Selector], waiting: bool
) -> None:
    it = selector(Lane(), Lane())
    it.lanes[:] = [Lane(queue=not waiting), Lane(queue=not waiting)]
    it.waiting = waiting
    assert it.run(20_000) == []


def test_a_single_lane_stays(selector: Callable[..., Selector]) -> None:
    """There is nothing to compare it with."""
    it = selector(Lane())
    it.lanes[0] = Lane(share=0.1, queue=True, lossy=True)
    it.waiting = True
    assert it.run(20_000) == []
