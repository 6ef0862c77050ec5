"""Delays that cannot be true: which of them show a wrong clock, and whose."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from fabricpulse.core.shm.probe_ring import INBOUND, OUTBOUND
from fabricpulse.mesh._probe_engine import EdgeCausality, HiddenJump, HostCausality

MS = 1_000_000
S = 1_000 * MS
# Trains of one direction of an edge are so far apart.
INTERVAL_NS = 50 * MS
BOUND_NS = 3_000


@dataclass
class Watched:
    """An edge of 1.5 us each way, and the time."""

    edge: EdgeCausality = field(default_factory=EdgeCausality)
    now_ns: int = 0

    def exchange(self, inbound_ns: float, outbound_ns: float) -> bool:
        """A train each way takes so long. Returns whether the edge shows a jump then."""
        self.now_ns += INTERVAL_NS
        for direction, owd_ns, at_ns in (
            (OUTBOUND, outbound_ns, self.now_ns),
            (INBOUND, inbound_ns, self.now_ns + 10 * MS),
        ):
            self.edge.add(direction, True, round(owd_ns), BOUND_NS, at_ns)
        return self.edge.violated


def watched(rng: np.random.Generator, seconds: int = 40, floor_ns: int = 1_500) -> Watched:
    """It has been watched for so long, now and then with a queue."""
    watch = Watched()
    for _ in range(seconds * S // INTERVAL_NS):
        queued = rng.exponential(50_000, 2) * (rng.random(2) < 0.3)
        assert not watch.exchange(*(floor_ns + rng.exponential(50, 2) + queued))
    return watch


@pytest.mark.parametrize("lost_ns", [13_000, 20_000, MS, 2 * S])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_clock_that_jumps_is_shown_by_two_trains_each_way(lost_ns: int, sign: int) -> None:
    """A machine was paused, or a fleet clock is ahead: delays one way are shorter by that, the other way longer."""
    for seed in range(5):
        watch = watched(np.random.default_rng(seed))
        reported = [watch.exchange(1_500 + sign * lost_ns, 1_500 - sign * lost_ns) for _ in range(3)]
        assert reported[0] is False
        assert reported[2]


def test_a_peer_that_was_set_anew_tells_nothing_of_before() -> None:
    """It was disrupted for seconds, without fleet time; trains of one direction come first then."""
    watch = watched(np.random.default_rng(1), seconds=10)
    assert [watch.exchange(-MS, MS) for _ in range(3)][-1]
    watch.now_ns += 7 * S
    watch.edge.add(OUTBOUND, True, 1_500, BOUND_NS, watch.now_ns)
    assert not watch.edge.violated


def test_one_broken_stamp_tells_nothing() -> None:
    """A train that is early by a millisecond between good ones."""
    watch = watched(np.random.default_rng(1))
    for _ in range(10):
        assert not watch.exchange(-MS, 1_600)
        assert not watch.exchange(1_600, 1_600)


@pytest.mark.parametrize("shift_ns", [(-10_000, -10_000), (10_000, 10_000), (0, 500_000), (-10_000, 0)])
def test_routes_and_queues_tell_nothing(shift_ns: tuple[int, int]) -> None:
    """A route that became shorter or longer both ways, a load one way, a shorter route one way."""
    rng = np.random.default_rng(2)
    watch = watched(rng, floor_ns=12_000)
    for _ in range(400):
        inbound, outbound = 12_000 + rng.exponential(50, 2) + shift_ns
        assert not watch.exchange(inbound, outbound)


def test_corrections_within_their_bounds_tell_nothing() -> None:
    """Fleet time is slewed by what both bounds allow: delays shift, and nobody was wrong."""
    watch = watched(np.random.default_rng(3))
    for _ in range(50):
        assert not watch.exchange(1_500 - 4_000, 1_500 + 4_000)


@pytest.mark.parametrize("level_ns", [30_000, 3 * MS])
def test_a_queue_that_drains_while_another_fills_tells_nothing(level_ns: int) -> None:
    """Also one that had been full since the engine began, for 20 s, and to the ns of one length with the other."""
    watch = Watched()
    for second in range(40):
        for _ in range(20):
            waits = (level_ns, 0) if second < 20 else (0, level_ns)
            assert not watch.exchange(1_500 + waits[0], 1_500 + waits[1])


def test_a_jump_can_hide_behind_a_queue_that_is_never_empty() -> None:
    """By so much as the queue is long, once no train has come at the floor for two seconds, and no longer than that."""
    watch = watched(np.random.default_rng(4))
    assert watch.edge.hidden_ns(INBOUND, watch.now_ns) == 0
    for _ in range(45):
        watch.exchange(1_500 + 3 * MS, 1_500)
    assert 2.9 * MS < watch.edge.hidden_ns(INBOUND, watch.now_ns) < 3.1 * MS
    assert watch.edge.hidden_ns(OUTBOUND, watch.now_ns) == 0
    watch.exchange(1_500, 1_500)
    assert watch.edge.hidden_ns(INBOUND, watch.now_ns) == 0


def edge_that_tells(jump_ns: int) -> EdgeCausality:
    """An edge that says that delays to this host have become shorter by so much; 0: that nothing has happened."""
    watch = watched(np.random.default_rng(5))
    for _ in range(3):
        watch.exchange(1_500 - jump_ns, 1_500 + jump_ns)
    assert watch.edge.violated == (jump_ns != 0)
    return watch.edge


@pytest.fixture(scope="module")
def good() -> EdgeCausality:
    """An edge that shows nothing."""
    return edge_that_tells(0)


@pytest.fixture(scope="module")
def jumped() -> EdgeCausality:
    """An edge that shows a jump."""
    return edge_that_tells(MS)


@pytest.mark.parametrize(
    ("violated", "received", "ours"),
    [
        (0, 10, False),
        (1, 10, False),
        (5, 10, False),
        (6, 10, True),
        (1, 1, True),
        (1, 2, False),
        (2, 2, True),
    ],
)
def test_most_peers_tell_that_it_is_our_clock(
    violated: int, received: int, ours: bool, good: EdgeCausality, jumped: EdgeCausality
) -> None:
    """One of several may be wrong itself; with one peer alone nobody can know, and both ends doubt themselves."""
    host = HostCausality()
    for peer in range(received):
        host.received(peer, jumped if peer < violated else good, 100 * MS)
    assert host.own_clock(101 * MS) == ours
    assert not host.own_clock(100 * MS + 600 * MS)


@pytest.mark.parametrize("other_ns", [-MS, 9_000_000, 40_000])
def test_jumps_that_are_not_one_are_not_ours(
    other_ns: int, good: EdgeCausality, jumped: EdgeCausality
) -> None:
    """Of four peers two have jumped, and a third by another size or the other way."""
    host = HostCausality()
    for peer, edge in enumerate((jumped, jumped, edge_that_tells(other_ns), good)):
        host.received(peer, edge, 100 * MS)
    assert not host.own_clock(101 * MS)


def test_peers_that_are_gone_have_no_vote(good: EdgeCausality, jumped: EdgeCausality) -> None:
    """Of ten peers eight fell silent before the clock jumped."""
    host = HostCausality()
    for peer in range(10):
        host.received(peer, good, 0)
    for peer in range(2):
        host.received(peer, jumped, 2 * S)
    assert host.own_clock(2 * S + MS)


def test_the_last_of_several_peers_proves_nothing(good: EdgeCausality, jumped: EdgeCausality) -> None:
    """While the others restart one edge is left, and its peer's clock may have jumped."""
    host = HostCausality()
    for peer in range(2):
        host.received(peer, good, 0)
    host.received(0, jumped, 2 * S)
    assert not host.own_clock(2 * S + MS)


@pytest.mark.parametrize("hosts", range(3, 9))
def test_a_fleet_in_which_some_clocks_jumped_together(
    hosts: int, good: EdgeCausality, jumped: EdgeCausality
) -> None:
    """Which did is known here, not to them. The fewer doubt themselves; of two equal halves (two of four say one thing,
    two another) nobody can know which is right, and all of them do: none goes on as synchronized.
    """
    for moved in range(1, hosts):
        doubting = set()
        for host in range(hosts):
            view = HostCausality()
            for peer in set(range(hosts)) - {host}:
                view.received(peer, jumped if (host < moved) != (peer < moved) else good, 100 * MS)
            if view.own_clock(101 * MS):
                doubting.add(host)
        fewer = set(range(moved)) if 2 * moved < hosts else set(range(moved, hosts))
        assert doubting == (set(range(hosts)) if 2 * moved == hosts else fewer), (hosts, moved)


def test_what_hides_is_what_most_peers_cannot_show() -> None:
    """A queue to two of five peers hides nothing; to three it does."""
    clear = watched(np.random.default_rng(6))
    behind = watched(np.random.default_rng(6))
    for _ in range(45):
        clear.exchange(1_500, 1_500)
        behind.exchange(1_500 + MS, 1_500)
    for congested, hides in ((2, False), (3, True)):
        hidden = HiddenJump()
        hidden.begin()
        for peer in range(5):
            hidden.edge(peer, (behind if peer < congested else clear).edge, clear.now_ns)
        assert (hidden.ns() > 0) == hides
