"""The state machines behind edge_up, its directions and paths, and the window of its delays."""

import math

from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.mesh._probe_engine import NEVER_RECEIVED, OwdWindow, PathHealth, Presence
from fabricpulse.mesh.snapshot import HealthState

MS = 1_000_000
INTERVAL = 1000 * MS


@given(
    st.lists(
        st.tuples(st.sampled_from(["received", "received_by_peer", "wait"]), st.integers(0, 400 * MS)),
        max_size=100,
    )
)
def test_edge_states_are_consistent(history):
    """An edge is up exactly if both directions are; a direction that cannot be measured is unknown, not down."""
    presence = Presence()
    now = 0
    for what, step in history:
        now += step
        if what == "received":
            presence.received(now)
        elif what == "received_by_peer" and presence.received_at != NEVER_RECEIVED:
            presence.received_by_peer(presence.received_at)
        edge, inbound, outbound = presence.states(now, INTERVAL)
        if inbound != HealthState.UP:
            assert outbound == HealthState.UNKNOWN
        if HealthState.UNKNOWN not in (edge, inbound, outbound):
            assert (edge == HealthState.UP) == (inbound == outbound == HealthState.UP)
        if edge == HealthState.UNKNOWN:
            assert NEVER_RECEIVED in (presence.received_at, presence.received_by_peer_at)


def test_one_dead_direction():
    """We receive from the peer, the peer not from us: outbound is down, inbound is up."""
    presence = Presence()
    presence.received(0)
    presence.received_by_peer(0)
    for now in range(0, 3 * INTERVAL, 20 * MS):
        presence.received(now)
    assert presence.states(3 * INTERVAL, INTERVAL) == (HealthState.DOWN, HealthState.UP, HealthState.DOWN)


def test_an_old_report_does_not_undo_what_is_known():
    """After a stall of ours the peer's first report is old; it received us later than that."""
    presence = Presence()
    presence.received(5_000 * MS)
    presence.received_by_peer(5_000 * MS)
    presence.received_by_peer(3_000 * MS)
    assert presence.received_by_peer_at == 5_000 * MS


@given(st.lists(st.booleans(), max_size=60))
def test_a_path_is_dead_after_three_misses_in_a_row(arrivals):
    path = PathHealth()
    run = 0
    for arrived in arrivals:
        if arrived:
            path.received()
            run = 0
        else:
            path.missed()
            run += 1
        assert (path.state == HealthState.DOWN) == (run >= 3)
    path.reset()
    assert path.state != HealthState.DOWN


@given(st.lists(st.integers(-(1 << 23), 1 << 30), min_size=1, max_size=200), st.floats(0, 1))
def test_quantiles_of_delays_keep_their_sign(delays, q):
    """A delay below zero is the error of two clocks: it is shown as measured, within 1.6 %, and never as 0."""
    window = OwdWindow()
    for delay in delays:
        window.add(delay)
    exact = sorted(delays)[max(math.ceil(q * len(delays)) - 1, 0)]
    assert abs(window.quantile(q) - exact) <= 0.016 * abs(exact) + 1
    assert (window.min, window.max) == (min(delays), max(delays))
