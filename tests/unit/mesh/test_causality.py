"""Delays that cannot be true: which of them tell of a wrong clock, and of whose."""

import numpy as np
import pytest

from fabricpulse.core.shm.probe_ring import INBOUND, OUTBOUND
from fabricpulse.mesh._probe_engine import EdgeCausality, HostCausality

MS = 1_000_000


def watched(rng: np.random.Generator, trains: int = 200, bound_ns: int = 3_000) -> EdgeCausality:
    """An edge of 1.5 us each way, now and then with a queue, that has been watched for a while."""
    edge = EdgeCausality()
    for _ in range(trains):
        for direction in (INBOUND, OUTBOUND):
            queued = rng.exponential(50_000) if rng.random() < 0.3 else 0.0
            edge.add(direction, True, round(1_500 + rng.exponential(50) + queued), bound_ns)
    return edge


@pytest.mark.parametrize("lost_ns", [8_000, 20_000, MS, 2_000 * MS])
@pytest.mark.parametrize("ahead", [INBOUND, OUTBOUND])
def test_a_clock_that_jumps_is_told_by_two_trains_each_way(lost_ns: int, ahead: int) -> None:
    """A machine was paused, or a fleet clock is ahead: delays one way are shorter by that, the other way longer."""
    for seed in range(20):
        edge = watched(np.random.default_rng(seed))
        assert not edge.violated
        told = []
        for _ in range(2):
            edge.add(ahead, True, 1_500 - lost_ns, 3_000)
            edge.add(1 - ahead, True, 1_500 + lost_ns, 3_000)
            told.append(edge.violated)
        assert told == [False, True]


def test_one_broken_stamp_tells_nothing() -> None:
    """A train that is early by a millisecond between good ones."""
    edge = watched(np.random.default_rng(1))
    for _ in range(10):
        assert edge.add(INBOUND, True, -MS, 3_000)
        assert not edge.violated
        assert not edge.add(INBOUND, True, 1_600, 3_000)
        assert not edge.violated


@pytest.mark.parametrize("shift_ns", [(-10_000, -10_000), (10_000, 10_000), (0, 500_000), (-10_000, 0)])
def test_routes_and_queues_tell_nothing(shift_ns: tuple[int, int]) -> None:
    """A route that became shorter or longer both ways, a load one way, a shorter route one way."""
    edge = EdgeCausality()
    rng = np.random.default_rng(2)
    for k in range(400):
        for direction in (INBOUND, OUTBOUND):
            shift = shift_ns[direction] if k >= 200 else 0
            edge.add(direction, True, round(12_000 + rng.exponential(50)) + shift, 3_000)
            assert not edge.violated


def test_corrections_within_their_bounds_tell_nothing() -> None:
    """Fleet time is slewed by what both bounds allow: delays shift, and nobody was wrong."""
    edge = watched(np.random.default_rng(3))
    for _ in range(50):
        edge.add(INBOUND, True, 1_500 - 4_000, 3_000)
        edge.add(OUTBOUND, True, 1_500 + 4_000, 3_000)
        assert not edge.violated


@pytest.mark.parametrize(
    ("violated", "heard", "ours"),
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
def test_most_peers_tell_that_it_is_our_clock(violated: int, heard: int, ours: bool) -> None:
    """One of several may be wrong itself; with one peer alone nobody can tell, and both ends doubt themselves."""
    host = HostCausality()
    for peer in range(heard):
        host.heard(peer, peer < violated, 100 * MS)
    assert host.own_clock(101 * MS) == ours
    assert not host.own_clock(100 * MS + 600 * MS)


def test_peers_that_are_gone_have_no_vote() -> None:
    """Of ten peers eight fell silent before the clock jumped."""
    host = HostCausality()
    for peer in range(10):
        host.heard(peer, False, 0)
    for peer in range(2):
        host.heard(peer, True, 2_000 * MS)
    assert host.own_clock(2_001 * MS)


def test_the_last_of_several_peers_proves_nothing() -> None:
    """While the others restart one edge is left, and what its queues do may look like a clock that jumped."""
    host = HostCausality()
    for peer in range(2):
        host.heard(peer, False, 0)
    host.heard(0, True, 2_000 * MS)
    assert not host.own_clock(2_001 * MS)


@pytest.mark.parametrize("hosts", range(3, 9))
def test_a_fleet_in_which_some_clocks_jumped_together(hosts: int) -> None:
    """Which did is known here, not to them. The fewer doubt themselves; of two equal halves (two of four say one thing,
    two another) nobody can know which is right, and all of them do: none goes on as synchronized.
    """
    for jumped in range(1, hosts):
        doubting = set()
        for host in range(hosts):
            view = HostCausality()
            for peer in set(range(hosts)) - {host}:
                view.heard(peer, (host < jumped) != (peer < jumped), 100 * MS)
            if view.own_clock(101 * MS):
                doubting.add(host)
        fewer = set(range(jumped)) if 2 * jumped < hosts else set(range(jumped, hosts))
        assert doubting == (set(range(hosts)) if 2 * jumped == hosts else fewer), (hosts, jumped)
