"""What an edge knows of lost trains: exact by numbering, moving in silence, by path and direction."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from fabricpulse.mesh._probe_engine import EdgeTrains, RoundTrip
from fabricpulse.mesh.snapshot import HealthState

PATHS, SWEEP = 8, 10
PERIOD = 20_000_000  # ns


class TwoEnds:
    """Both ends of an edge, train by train. `passes(direction, path, train, position)` says which packet arrives."""

    def __init__(self, passes):
        self.passes = passes
        self.ends = [EdgeTrains(), EdgeTrains()]
        self.now = 0
        self.sent = [0, 0]
        self.received = [0, 0]  # by the end that receives
        self.lost = [0, 0]  # truly, by the end that receives
        self.by_path = [[0] * PATHS, [0] * PATHS]
        self.received_at = [0, 0]
        self.between = [0, 0]  # the longest time between two packets, by the end that receives

    def play(self, trains):
        for _ in range(trains):
            self.now += PERIOD
            for sender in (0, 1):
                receiver = 1 - sender
                end, other = self.ends[sender], self.ends[receiver]
                train, sweep, path = end.begin(PATHS, SWEEP)
                for position in range(3):
                    self.sent[sender] += 1
                    if not self.passes(sender, path, train, position):
                        self.lost[receiver] += 1
                        self.by_path[receiver][path] += 1
                        continue
                    self.received[receiver] += 1
                    other.receive(train, position, PATHS, sweep, self.now)
                    gap = self.now - self.received_at[receiver]
                    self.between[receiver] = max(self.between[receiver], gap)
                    self.received_at[receiver] = self.now
                    end.report(position, self.now, other, self.received[sender])
                end.finish(self.sent[sender])
            for receiver in (0, 1):
                self.ends[receiver].silence(self.now - self.received_at[receiver])


def losing(rate, seed):
    """A direction that loses `rate` of its packets; the other loses none."""
    luck = random.Random(seed)
    return lambda sender, path, train, position: sender == 1 or luck.random() >= rate


@given(st.sampled_from([0.0, 0.001, 0.005, 0.05, 0.2, 0.6]), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_loss_is_counted_at_both_ends(rate, seed):
    """By the receiver exactly, but for the newest trains; by the sender, from what the peer counts, within a few."""
    edge = TwoEnds(losing(rate, seed))
    edge.play(1_000)
    still_open = 3 * 12
    assert edge.lost[1] - still_open <= edge.ends[1].lost <= edge.lost[1]
    assert abs(edge.ends[0].outbound_lost - edge.lost[1]) <= still_open + 60 * rate + 16 * 3 * rate
    assert edge.ends[0].lost == edge.ends[1].outbound_lost == 0


@given(st.integers(0, 3_000), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_the_counter_moves_in_an_outage_and_never_counts_twice(trains, seed):
    """Nothing arrives: the counter goes on at the peer's rate; numbers that come afterwards correct nothing twice."""
    edge = TwoEnds(losing(0.0, seed))
    edge.play(200)
    edge.passes = lambda sender, *_: sender == 1
    before = 0
    for done in range(trains // 50):
        edge.play(50)
        lost = edge.ends[1].lost
        assert lost >= before
        if done:
            assert lost >= 3 * 50 * done
        before = lost
    edge.passes = losing(0.0, seed)
    edge.play(50)
    assert edge.ends[1].lost == edge.lost[1]


def test_a_peer_that_stopped_sending_costs_no_later_loss():
    """It was restarted: its numbers begin anew, what was presumed stays, and what is lost from now on is counted."""
    edge = TwoEnds(lambda *_: True)
    edge.play(200)
    receiver = edge.ends[1]
    receiver.silence(1_000 * PERIOD)
    presumed = receiver.lost
    assert 3 * 980 <= presumed <= 3 * 1_000
    receiver.restart()
    for train in range(1, 200):
        if train % 10:
            receiver.receive(train, 0, PATHS, 0, edge.now + train * PERIOD)
            receiver.receive(train, 1, PATHS, 0, edge.now + train * PERIOD)
            receiver.receive(train, 2, PATHS, 0, edge.now + train * PERIOD)
    assert receiver.lost - presumed == 3 * 19


@given(st.sets(st.integers(0, PATHS - 1), min_size=1, max_size=PATHS - 2), st.integers(0, 1))
@settings(max_examples=40, deadline=None)
def test_dead_paths_are_found_and_the_edge_receives_all_the_same(dead, direction):
    """Some source ports of one direction arrive nowhere, the main path among them or not: each is found, no other is
    called dead, and the other end receives something at least each half second, so that an edge with that interval
    lives.
    """
    edge = TwoEnds(lambda *_: True)
    edge.play(500)
    edge.passes = lambda sender, path, *_: sender != direction or path not in dead
    edge.between = [0, 0]
    edge.play(1_500)
    receiver = edge.ends[1 - direction]
    states = {path for path in range(PATHS) if receiver.path(path)[2] == HealthState.DOWN}
    assert states == dead
    alive = PATHS - 1 - len(dead - {0})
    sweeps = 2 if 0 in dead else SWEEP
    longest = (len(dead - {0}) + 1) * sweeps if 0 in dead else 1 + sweeps
    assert alive > 0
    assert edge.between[1 - direction] <= (longest + 6) * PERIOD
    if len(dead) <= PATHS // 2:
        assert edge.between[1 - direction] < 500_000_000


def test_with_half_of_the_paths_gone_the_edge_receives_each_200_ms():
    """One spine of two is dead in both directions: every second source port, the main path too."""
    edge = TwoEnds(lambda sender, path, *_: path % 2 == 1)
    edge.ends[0].receive(1, 0, PATHS, SWEEP, 0)
    edge.ends[1].receive(1, 0, PATHS, SWEEP, 0)
    edge.play(20)
    edge.between = [0, 0]
    edge.play(2_000)
    assert max(edge.between) <= 200_000_000


@given(st.sampled_from([0.015, 0.05, 0.2]), st.integers(0, PATHS - 1), st.integers(0, 1_000))
@settings(max_examples=30, deadline=None)
def test_loss_on_one_path_is_seen_on_that_path(rate, lossy, seed):
    """The window of a minute names the path, with its rate; the others stay well."""
    luck = random.Random(seed)
    edge = TwoEnds(lambda sender, path, *_: sender == 1 or path != lossy or luck.random() >= rate)
    for _ in range(12):  # a minute and a bit
        edge.play(250)
        edge.ends[1].rotate_loss()
    reported = [edge.ends[1].path(path) for path in range(PATHS)]
    assert not any(path[3] or path[4] for index, path in enumerate(reported) if index != lossy)
    expected, lost, _, is_lossy, ppm = reported[lossy]
    if lost >= 12:
        assert is_lossy
        assert abs(ppm / 1e6 - rate) < 5 * (rate / (expected * 11 / 12)) ** 0.5 + 0.3 * rate


@given(st.integers(40, 1_500), st.integers(0, 300))
@settings(max_examples=20, deadline=None)
def test_an_outage_of_the_edge_is_no_loss_of_a_path(gap, before):
    """A cable pulled and plugged in again: every packet of it is counted as lost, by none of the paths."""
    edge = TwoEnds(lambda *_: True)
    edge.play(300 + before)
    edge.passes = lambda *_: False
    edge.play(gap)
    edge.passes = lambda *_: True
    edge.play(300)
    for end, lost in zip(edge.ends, edge.lost, strict=True):
        assert end.lost == lost
        paths = [end.path(path) for path in range(PATHS)]
        assert not any(lost or lossy or ppm for _, lost, _, lossy, ppm in paths)
        assert HealthState.DOWN not in [path[2] for path in paths]


def test_one_lost_train_is_no_lossy_path():
    edge = TwoEnds(lambda sender, path, train, position: train != 100)
    edge.play(1_000)
    assert not any(edge.ends[1].path(path)[3] for path in range(PATHS))


@given(
    st.integers(-(10**18), 10**18),
    st.lists(
        st.tuples(st.integers(1_000, 5_000_000), st.integers(1_000, 5_000_000)), min_size=1, max_size=60
    ),
)
def test_the_round_trip_needs_no_common_clock(offset, halves):
    """Whatever the clocks' offset: the sum of both ways, and the median of the last 16."""
    trip = RoundTrip()
    truth = []
    for number, (out, back) in enumerate(halves):
        at = number * PERIOD
        trip.out(out + offset, at)
        assert trip.back(back - offset, at + 1_000_000)
        truth.append(out + back)
        assert trip.latest == truth[-1]
    last = sorted(truth[-16:])
    assert trip.median == last[len(last) // 2]


def test_halves_that_do_not_belong_together_make_no_round_trip():
    trip = RoundTrip()
    assert not trip.back(1_000, 0)  # nothing went out
    trip.out(1_000, 0)
    assert not trip.back(1_000, 600_000_000)  # too long ago
    trip.out(-10_000, 0)
    assert not trip.back(1_000, 0)  # negative: a clock was stepped in between
    trip.out(1_000, 0)
    trip.forget()
    assert not trip.back(1_000, 0)


@given(st.integers(500, 600), st.integers(1, 300), st.sampled_from([(0,), (0, 3), (3,)]))
@settings(max_examples=60, deadline=None)
def test_lost_trains_are_not_blamed_on_a_healthy_path(first, lasts, dead):
    """Paths die, the main one too, and come back, so that the sender sweeps in another way for a while: what was lost
    is counted on these paths alone.
    """

    def passes(sender, path, train, position):
        return sender == 1 or path not in dead or not first <= train < first + lasts

    edge = TwoEnds(passes)
    edge.play(1_200)
    for path in range(PATHS):
        lost = edge.ends[1].path(path)[1]
        assert lost <= edge.by_path[1][path]
        assert path in dead or lost == 0
    assert edge.ends[1].lost == edge.lost[1]
