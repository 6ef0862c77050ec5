"""A clock that moves is doubted before delays prove it; queues, routes and broken stamps are not taken for one."""

import numpy as np
import pytest
from tests.bench.clocksync.estimator import Round, recorded

from fabricpulse.mesh._probe_engine import EdgeCausality, EdgeShift, HostCausality, HostShift

MS = 1_000_000
INTERVAL_NS, PAUSE_NS, BOUND_NS = 20 * MS, 10 * MS, 3_000


class Watched:
    """Edges to `peers` peers, 1.5 us each way; trains each way come one after the other, with queues now and then."""

    def __init__(self, peers: int, waits: float = 0.3) -> None:
        self.rng, self.waits = np.random.default_rng(1), waits
        self.edges, self.host, self.now_ns = [EdgeShift() for _ in range(peers)], HostShift(), 0

    def exchange(self, ahead_ns: float = 0.0, moved: int | None = None, longer_ns: float = 0.0) -> bool:
        """Fleet time of this host is ahead by so much; as the first `moved` edges see it. longer_ns : of both ways."""
        for number, edge in enumerate(self.edges):
            ahead = ahead_ns if moved is None or number < moved else 0.0
            for outbound in False, True:
                queued = self.rng.exponential(50_000) * (self.rng.random() < self.waits)
                owd_ns = (
                    1_500 + longer_ns + self.rng.exponential(60) + queued + (-ahead if outbound else ahead)
                )
                edge.add(outbound, round(owd_ns), BOUND_NS, self.now_ns + outbound * PAUSE_NS, self.now_ns)
                self.host.received(number, edge.shifted, edge.limit_ns, self.now_ns)
        self.now_ns += INTERVAL_NS
        return self.host.own_clock(self.now_ns)

    def run(self, seconds: float) -> None:
        """All is well, and nothing is doubted."""
        for _ in range(round(seconds * 50)):
            assert not self.exchange()


@pytest.mark.parametrize("ppm", [-500, -100, -16, 5, 40, 500])
def test_a_rate_that_changes_is_doubted_before_the_bound_is_wrong(ppm: float) -> None:
    """In time, where that takes longer than three trains; two hosts may be wrong by BOUND_NS together."""
    watch = Watched(4, waits=0.1)
    watch.run(3.3)
    begin_ns = watch.now_ns
    while not watch.exchange((watch.now_ns - begin_ns) * ppm * 1e-6):
        assert watch.now_ns - begin_ns < max(3 * INTERVAL_NS, BOUND_NS / abs(ppm) * 1e6), ppm


def test_a_doubt_lasts_until_fits_know_the_rate() -> None:
    """Beyond two intervals after a rate changes, whatever it is and wherever the parts begin that delays are compared
    with, for two seconds: a clock that may be outside its bound was doubted within the last 0.3 s.
    """
    for seed in range(100):
        rng = np.random.default_rng(seed)
        watch = Watched(int(rng.integers(2, 6)), waits=0.0)
        watch.rng = rng
        watch.run(3 + rng.random())
        ppm, begin_ns, doubted_ns = rng.choice((-1, 1)) * 2 * 250 ** rng.random(), watch.now_ns, 0
        while (after_ns := watch.now_ns - begin_ns) < 2_000 * MS:
            if watch.exchange(after_ns * ppm * 1e-6):
                doubted_ns = watch.now_ns
            outside = abs(after_ns * ppm * 1e-6) > BOUND_NS
            assert not outside or after_ns <= 2 * INTERVAL_NS or watch.now_ns - doubted_ns < 300 * MS, (
                seed,
                ppm,
            )


@pytest.mark.parametrize("ppm", [-40, 8])
def test_a_turn_soon_after_another_one_is_doubted_as_soon(ppm: float) -> None:
    """What delays were while the first one was being corrected hides nothing of the second."""
    for seed in range(6):
        watch = Watched(4, waits=0.0)
        watch.rng = np.random.default_rng(seed)
        watch.run(3.3)
        first = watch.rng.choice((-16.0, 16.0, -80.0, 80.0))
        for _ in range(75):  # until the next fits
            watch.exchange(first * 1e-6 * (watch.now_ns - 3_300 * MS))
        for ahead_ns in (first * 1.5e3, first * -0.3e3):  # and too much
            for _ in range(125):
                watch.exchange(ahead_ns)
        for _ in range(int(watch.rng.integers(120, 250))):
            watch.exchange()
        begin_ns = watch.now_ns
        while not watch.exchange((watch.now_ns - begin_ns) * ppm * 1e-6):
            late_ns = watch.now_ns - begin_ns
            assert late_ns < max(3 * INTERVAL_NS, BOUND_NS / abs(ppm) * 1e6), (seed, first)


def test_clocks_that_moved_leave_no_round_trip_that_is_too_short() -> None:
    """Jumps and turns of any size, some seconds apart, of which each showed a shorter round trip than the way has: a
    later turn by little is doubted all the same.
    """
    for seed in range(20):
        watch = Watched(4, waits=0.0)
        watch.rng = np.random.default_rng(seed)
        watch.run(3.3)
        for _ in range(4):
            ppm, begin_ns = watch.rng.choice((-1, 1)) * watch.rng.uniform(100, 500), watch.now_ns
            for _ in range(5):
                watch.exchange((watch.now_ns - begin_ns) * ppm * 1e-6)
            watch.now_ns += 7_000 * MS  # disrupted, and set anew
            for _ in range(int(watch.rng.integers(150, 200))):
                watch.exchange()
        begin_ns = watch.now_ns
        while not watch.exchange((watch.now_ns - begin_ns) * 7e-6):
            assert watch.now_ns - begin_ns < BOUND_NS / 7 * 1e6, seed


def test_wide_bounds_leave_no_round_trip_to_narrow_ones() -> None:
    """A peer whose bound is far wider for some seconds shows nothing of what its clock does then."""
    watch = Watched(4, waits=0.0)
    watch.run(3.3)
    for number in range(150):
        for edge in watch.edges:
            for outbound in False, True:
                # It is corrected meanwhile.
                owd_ns = 1_500 + (-1 if outbound else 1) * (1_000_000 - number * 10_000 - outbound * 5_000)
                edge.add(
                    outbound, owd_ns, 10_000 * BOUND_NS, watch.now_ns + outbound * PAUSE_NS, watch.now_ns
                )
        watch.now_ns += INTERVAL_NS
    for _ in range(200):
        watch.exchange()
    watch.run(1.5)
    begin_ns = watch.now_ns
    while not watch.exchange((watch.now_ns - begin_ns) * 7e-6):
        assert watch.now_ns - begin_ns < BOUND_NS / 7 * 1e6


def test_peers_that_can_see_nothing_do_not_count() -> None:
    """Some of four have bounds of a second, as after a pause of theirs: one of the others is no reason to doubt, two
    are, and where all bounds are wide all count.
    """
    for wide in range(5):
        for seen in range(5 - wide):
            host = HostShift()
            for peer in range(4):
                host.received(peer, 1 if peer < seen else 0, 200 * MS if peer >= 4 - wide else 500, MS)
            assert host.own_clock(MS) == (seen >= 2 and 2 * seen >= (4 if wide == 4 else 4 - wide)), (
                wide,
                seen,
            )


def test_a_jump_shows_on_any_path() -> None:
    """Each tenth train takes another source port, of which no floor is known: that it arrived too early says enough,
    that it did not says nothing.
    """
    edge = EdgeShift()
    for number in range(200):
        for outbound in False, True:
            edge.add(outbound, 1_500, BOUND_NS, number * INTERVAL_NS, number * INTERVAL_NS)
    now_ns = 200 * INTERVAL_NS
    for owd_ns, shifted in (40_000, 0), (-2_000, 0), (-40_000, -1), (40_000, -1):
        edge.add_elsewhere(False, owd_ns, BOUND_NS, now_ns)
        assert edge.shifted == shifted


@pytest.mark.parametrize("lost_ns", [5_000, 20 * MS])
def test_a_jump_is_doubted_with_the_first_trains(lost_ns: int) -> None:
    """A pause of the machine; also where there is one peer only, a train later, but not what one of several sees."""
    for peers, trains in (1, 2), (4, 1):
        watch = Watched(peers, waits=0.0)
        watch.run(2.5)
        assert [watch.exchange(-lost_ns) for _ in range(trains)][-1]
    watch = Watched(4, waits=0.0)
    watch.run(2.5)
    assert not any(watch.exchange(-lost_ns, moved=1) for _ in range(10))


def test_queues_and_routes_are_no_shift() -> None:
    """Most packets wait now and then; both ways become longer, and shorter again."""
    watch = Watched(3, waits=0.8)
    watch.run(20)
    watch.waits = 0.1
    for longer_ns in 30_000, 0:
        assert not any(watch.exchange(longer_ns=longer_ns) for _ in range(100))
    watch.waits = 0.0
    # Shorter than ever: while one way is known to be, and not the other.
    assert sum(watch.exchange(longer_ns=-1_200) for _ in range(200)) <= 2


@pytest.mark.parametrize("phase_s", [0.3, 1.3, 2.5, 5.0])
@pytest.mark.parametrize("peers", [1, 3, 7])
def test_traffic_that_changes_direction_is_hardly_a_shift(peers: int, phase_s: float) -> None:
    """A queue of 10 us that each packet of one direction meets, and then each of the other one: without what is known
    of earlier seconds a clock would be doubted for half of the time and more.
    """
    rng = np.random.default_rng(2)
    edges, host, doubted_ns = [EdgeShift() for _ in range(peers)], HostShift(), -300 * MS
    doubtful = last_ns = 0
    rounds = 3_000
    for now_ns in range(0, rounds * INTERVAL_NS, INTERVAL_NS):
        inbound = int(now_ns / 1e9 / phase_s) % 2 == 0
        for number, edge in enumerate(edges):
            for outbound in False, True:
                queue_ns = 2_500 + rng.exponential(10_000) if outbound != inbound else 0.0
                owd_ns = round(1_500 + rng.exponential(60) + queue_ns)
                edge.add(outbound, owd_ns, BOUND_NS, now_ns + outbound * PAUSE_NS, now_ns)
                host.received(number, edge.shifted, edge.limit_ns, now_ns)
        if host.own_clock(now_ns):
            doubted_ns = now_ns
        if now_ns - doubted_ns < 300 * MS:
            doubtful, last_ns = doubtful + 1, now_ns
    assert doubtful < 0.2 * rounds
    assert last_ns < 30_000 * MS


@pytest.mark.parametrize("first_ns", [2_000, -8_000])
@pytest.mark.parametrize("silent", [False, True])
def test_what_one_way_showed_long_ago_is_no_shift(silent: bool, first_ns: int) -> None:
    """Where stamps of that way have not come since: queues of the other one are no reason to doubt a clock."""
    edge = EdgeShift()
    for number in range(200):
        for outbound in False, True:
            edge.add(
                outbound, 10_000, BOUND_NS, number * INTERVAL_NS + outbound * PAUSE_NS, number * INTERVAL_NS
            )
    begin_ns = 200 * INTERVAL_NS
    edge.add(False, first_ns, BOUND_NS, begin_ns, begin_ns)
    shifted = []
    for number in range(150, 500):
        now_ns = begin_ns + number * INTERVAL_NS
        if not silent:
            edge.add(False, 10_000, BOUND_NS, now_ns, now_ns)
        edge.add(True, 30_000 if number % 10 == 0 else 10_000, BOUND_NS, now_ns + PAUSE_NS, now_ns)
        shifted.append(edge.shifted)
    assert not any(shifted[5:])


@pytest.mark.parametrize("bound_ns", [1_900, 3_400])
def test_recorded_stamps_are_no_shift(bound_ns: int) -> None:
    """The wire of the bench, all loads and rates, with the true fleet time; four peers, begun at other moments."""
    for rate, loads in recorded().items():
        for load, rounds in loads:
            trains = delays(rounds)
            span_ns = trains[-1][0] - trains[0][0]
            edges, host = [EdgeShift() for _ in range(4)], HostShift()
            seen = [
                ((t + k * span_ns // 4) % span_ns, k, out, owd) for t, out, owd in trains for k in range(4)
            ]
            for now_ns, peer, outbound, owd_ns in sorted(seen):
                edges[peer].add(outbound, owd_ns, bound_ns, now_ns, now_ns)
                host.received(peer, edges[peer].shifted, edges[peer].limit_ns, now_ns)
                assert not host.own_clock(now_ns), (rate, load)


def delays(rounds: list[Round]) -> list[tuple[int, bool, int]]:
    """Of each train when it was sent, by the recording, its direction, and its least delay above the least of all."""
    truth = np.concatenate([one.truth for one in rounds])
    begin = truth[0]
    here, there = (truth - begin).T
    ahead = np.polynomial.Polynomial.fit(here, there - here, 2)
    trains = []
    for outbound in False, True:
        of = [one.outbound if outbound else one.inbound for one in rounds]
        tx, rx, valid = (np.concatenate([getattr(one, f) for one in of]) for f in ("tx_ns", "rx_ns", "valid"))
        shown = np.where(valid, rx - tx - (rx - tx)[0, 0], np.iinfo(np.int64).max)
        t_ns = tx[:, 0] - begin[0 if outbound else 1]
        known = np.flatnonzero(valid.any(axis=1))
        owd = (shown.min(axis=1) - ahead(t_ns) * (1 if outbound else -1))[known]
        sent = t_ns[known].tolist()
        trains += [(t, outbound, round(by)) for t, by in zip(sent, (owd - owd.min()).tolist(), strict=True)]
    return sorted(trains)


@pytest.mark.parametrize("seed", range(5))
def test_peers_that_are_gone_are_forgotten(seed: int) -> None:
    """Hosts join and leave for hours, mostly while nobody asks: what is remembered is of two minutes, and what
    HostShift says is as if all were remembered. Of HostCausality only how many it remembers is checked.
    """
    rng, shift, causality, edge = np.random.default_rng(seed), HostShift(), HostCausality(), EdgeCausality()
    s = 1_000 * MS
    last: dict[int, tuple[int, int, int, int]] = {}  # received_ns, shifted, times, limit_ns
    now_ns, shifted_ns, present, asked = 0, -(10**18), [1, 2, 3], 0
    for _ in range(1_500):
        now_ns += int(rng.choice([20 * MS, 500 * MS, 5 * s, 61 * s], p=[0.6, 0.3, 0.09, 0.01]))
        if rng.random() < 0.2:
            present = rng.integers(0, 10_000, rng.integers(1, 5)).tolist()
        for peer in present:
            shifted, limit_ns = int(rng.choice([-1, 0, 1], p=[0.6, 0.3, 0.1])), int(rng.choice([300, 9_000]))
            shift.received(peer, shifted, limit_ns, now_ns)
            causality.received(peer, edge, now_ns)
            received_ns, before, times, _ = last.get(peer, (-(10**18), 0, 0, 0))
            times = times + 1 if before == shifted and now_ns - received_ns <= 60 * s else 1
            last[peer] = now_ns, shifted, times, limit_ns
            shifted_ns = now_ns if shifted else shifted_ns
        recent = sum(now_ns - at <= 121 * s for at, *_ in last.values())
        assert shift.peers <= recent
        assert causality.peers <= recent
        if rng.random() < 0.3:
            asked += shift.own_clock(now_ns)
            lately = [peer for peer in last.values() if now_ns - peer[0] <= 2 * s]
            least_ns = min((limit_ns for *_, limit_ns in lately), default=0)
            senses = [shifted for _, shifted, _, limit_ns in lately if shifted or limit_ns // 10 <= least_ns]
            most = max(senses.count(-1), senses.count(1))
            known = [peer for peer in last.values() if now_ns - peer[0] <= 60 * s]
            alone = len(known) == 1 and known[0][2] >= 3
            wanted = now_ns - shifted_ns <= 2 * s and 2 * most >= len(senses) and (most >= 2 or alone)
            assert shift.own_clock(now_ns) == wanted
    assert asked > 40


def test_a_peer_that_cannot_see_is_there_all_the_same() -> None:
    """One that sees a clock move is not the only one beside it, whose clock may as well be ours; two are enough."""
    shift, blind_ns = HostShift(), 2**62
    for number in range(20):
        shift.received(1, 0, blind_ns, number * INTERVAL_NS)
        shift.received(2, -1, 300, number * INTERVAL_NS)
        assert not shift.own_clock(number * INTERVAL_NS)
    shift.received(3, -1, 300, 20 * INTERVAL_NS)
    assert shift.own_clock(20 * INTERVAL_NS)
