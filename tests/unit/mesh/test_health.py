"""The state machine behind nic_connected: what it must never say, whatever happens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabricpulse.mesh._probe_engine import (
    NEVER_RECEIVED,
    EdgeHealth,
    NicHealth,
    Presence,
    UnstalledClock,
    nic_transitions,
    peer_loss,
)
from fabricpulse.mesh.snapshot import Cause, HealthState

MS = 1_000_000
INTERVAL = 1000 * MS
GRACE = 10_000 * MS
NOTHING, DISCONNECTED, CONNECTED, INTERRUPTED = 0, 1, 2, 3
SEVERAL, PEER_GONE, RECEIVED_ELSEWHERE, ONE_WITNESS = 0, 1, 2, 3  # enum PeerLoss


@given(
    st.lists(st.tuples(st.integers(0, 60_000 * MS), st.integers(0, 40 * MS)), min_size=1, max_size=200),
    st.integers(1 * MS, 50 * MS),
)
def test_unstalled_time_leaves_stalls_out(gaps, max_step):
    """Unstalled time never runs backwards, never faster than the monotonic clock, never by more than a step a tick."""
    clock = UnstalledClock(max_step)
    now = last = 0
    clock.advance(now)
    for gap, more in gaps:
        now += gap + more
        unstalled, stall = clock.advance(now)
        assert 0 <= unstalled - last <= min(max_step, gap + more)
        assert unstalled - last + stall == gap + more
        last = unstalled


@given(st.integers(0, 2_000 * MS))
def test_a_stalled_host_hears_nothing_and_says_nothing(length):
    """SIGSTOP of any length: the silence of that time is not the silence of peers."""
    clock = UnstalledClock(30 * MS)
    health = NicHealth(INTERVAL, GRACE, 0)
    now = 0
    unstalled = 0
    for _ in range(200):
        now += 10 * MS
        unstalled, _ = clock.advance(now)
        assert health.update(unstalled, 5, unstalled, unstalled) == NOTHING
    received = unstalled
    now += length
    unstalled, _ = clock.advance(now)
    assert health.update(unstalled, 5, received, received) == NOTHING
    assert health.state == HealthState.UP


ticks = st.lists(
    st.tuples(
        st.integers(1 * MS, 30 * MS),  # unstalled time since the last tick
        st.booleans(),  # received in both directions in this tick
        st.booleans(),  # carrier lost
        st.booleans(),  # the only witness is gone
    ),
    min_size=1,
    max_size=400,
)


@given(ticks)
@settings(max_examples=200)
def test_nic_health_holds_for_any_history(history):
    """Down only after a whole interval of silence, up only by packets; events are exactly the changes of state."""
    health = NicHealth(INTERVAL, GRACE, 0)
    now = 0
    received = NEVER_RECEIVED
    disconnects = connects = 0
    for step, receives, link_down, witness_gone in history:
        now += step
        if receives:
            received = now
        before = health.state
        event = health.update(
            now, 3, received, received, link_down=link_down, peers=PEER_GONE if witness_gone else SEVERAL
        )
        after = health.state
        silent = received == NEVER_RECEIVED or now - received >= INTERVAL
        assert (after == HealthState.UP) == (not silent)
        assert (event == DISCONNECTED) == (before != HealthState.DOWN and after == HealthState.DOWN)
        assert (event == CONNECTED) == (before == HealthState.DOWN and after == HealthState.UP)
        if before == HealthState.DOWN:
            assert after in (HealthState.DOWN, HealthState.UP)
        disconnects += event == DISCONNECTED
        connects += event == CONNECTED
        assert connects <= disconnects <= connects + 1


def test_every_long_silence_is_one_disconnect():
    """Flaps longer than the interval are counted one by one; shorter ones are not counted."""
    health = NicHealth(INTERVAL, GRACE, 0)
    now, disconnects = 0, 0
    for flap in range(500):
        for _ in range(20):
            now += 10 * MS
            health.update(now, 3, now, now)
        received = now
        outage = INTERVAL + (flap % 7) * 100 * MS if flap % 2 else INTERVAL // 2
        while now - received < outage:
            now += 10 * MS
            disconnects += health.update(now, 3, received, received) == DISCONNECTED
    assert disconnects == 250


class Link:
    """A NIC with peers, packet by packet: when the link is up, each end receives from the other once a period."""

    def __init__(self, peers, period, phases, interval, tick):
        self.presences = [Presence() for _ in range(peers)]
        self.period, self.interval, self.tick = period, interval, tick
        self.phases = phases
        self.health = NicHealth(interval, GRACE, 0)
        self.peer_received_us = [NEVER_RECEIVED] * peers
        self.counted = []  # when a disconnect was reported
        self.edges = [EdgeHealth() for _ in range(peers)]
        self.edge_state = [HealthState.UNKNOWN] * peers
        self.edge_downs = [[] for _ in range(peers)]

    def play(self, until, link_up):
        """link_up(ns) : (peer -> us works, us -> peer works)."""
        times = [
            (at, order, peer)
            for peer in range(len(self.presences))
            for order, phase in enumerate(self.phases[peer])
            for at in range(phase, until, self.period)
        ]
        times += [(at, 2, -1) for at in range(self.tick, until, self.tick)]
        for now, what, peer in sorted(times):
            inbound, outbound = link_up(now)
            if what == 0 and outbound:
                self.peer_received_us[peer] = now
            elif what == 1 and inbound:
                presence = self.presences[peer]
                presence.received(now)
                if self.peer_received_us[peer] != NEVER_RECEIVED:
                    presence.received_by_peer(self.peer_received_us[peer])
                    self.health.exchanged(presence.both(self.interval))
            elif what == 2:
                self.judge(now)
        return self.counted

    def judge(self, now):
        received = max(p.received_at for p in self.presences)
        both = max(p.both(self.interval) for p in self.presences)
        received_by_peer = max(p.received_by_peer_at for p in self.presences)
        event = self.health.update(
            now, len(self.presences), received, both, received_by_peer=received_by_peer
        )
        if event in (DISCONNECTED, INTERRUPTED):
            self.counted.append(now)
        for peer, edge in enumerate(self.edges):
            before, after = self.edge_state[peer], edge.update(self.presences[peer], now, self.interval)
            if before == HealthState.UP and after == HealthState.DOWN:
                self.edge_downs[peer].append(now)
            self.edge_state[peer] = after


@st.composite
def flapping_links(draw):
    """A link with flaps of any length around the interval; one direction may come back before the other."""
    period = draw(st.integers(10, 30)) * MS
    interval = 6 * period + draw(st.integers(0, 100)) * MS
    peers = draw(st.integers(1, 3))
    tick = draw(st.integers(5, 20)) * MS
    phases = [[draw(st.integers(1, period)) for _ in range(2)] for _ in range(peers)]
    flaps, now = [], 500 * MS
    for _ in range(draw(st.integers(1, 6))):
        now += 3 * period + 2 * tick + draw(st.integers(0, 300 * MS))
        length = draw(
            st.one_of(st.integers(interval - period, interval + period), st.integers(1, 3 * interval))
        )
        later = draw(st.sampled_from([0, 0, 1, interval // 3, interval]))  # the second direction
        first = draw(st.booleans())
        ends = (now + length, now + length + later) if first else (now + length + later, now + length)
        flaps.append((now, *ends))
        now = max(ends)
    return Link(peers, period, phases, interval, tick), flaps, now + 500 * MS


@pytest.mark.thorough
@given(flapping_links())
@settings(max_examples=300, deadline=None)
def test_a_flap_longer_than_the_interval_is_one_disconnect(case):
    """However packets and ticks fall: exactly one if the link was down for the interval, none if well below it."""
    link, flaps, until = case

    def link_up(now):
        down = [flap for flap in flaps if flap[0] <= now]
        return (now >= down[-1][1], now >= down[-1][2]) if down else (True, True)

    counted = link.play(until, link_up)
    slack = 3 * link.period + 2 * link.tick
    for began, inbound_back, outbound_back in flaps:
        ended = max(inbound_back, outbound_back)
        found = sum(began <= at <= ended + slack for at in counted)
        if min(inbound_back, outbound_back) - began >= link.interval:
            assert found == 1
        elif ended - began + slack < link.interval:
            assert found == 0
        else:
            assert found <= 1
        for downs in link.edge_downs:
            assert sum(began <= at <= ended + slack for at in downs) <= 1
    assert all(any(began <= at <= max(ends) + slack for began, *ends in flaps) for at in counted)


def test_a_silence_that_ends_just_before_the_tick_counts():
    """The interval passed between two ticks and a packet of a peer came before the second: no tick saw the silence."""
    health = NicHealth(INTERVAL, GRACE, 0)
    health.exchanged(1_000 * MS)
    assert health.update(1_990 * MS, 3, 1_000 * MS, 1_000 * MS) == NOTHING
    health.exchanged(2_001 * MS)
    assert health.update(2_006 * MS, 3, 2_001 * MS, 2_001 * MS) == INTERRUPTED
    assert health.lost_at == 1_000 * MS
    assert health.update(2_020 * MS, 3, 2_001 * MS, 2_001 * MS) == NOTHING


def test_a_socket_that_cannot_be_opened_is_no_fault_of_the_nic():
    """The port is in use, or a permission lacks: unknown, however long; then the grace of a start."""
    health = NicHealth(INTERVAL, GRACE, 0)
    now = 20_000 * MS
    health.update(now, 3, now, now)
    last = now
    for _ in range(10):
        now += GRACE
        assert health.update(now, 3, last, last, others_connected=True, cannot_probe=True) == NOTHING
        assert (health.state, health.cause) == (HealthState.UNKNOWN, Cause.NO_SOCKET)
    assert health.update(now + INTERVAL, 3, last, last, others_connected=True) == NOTHING
    assert health.update(now + 2 * INTERVAL, 3, now + 2 * INTERVAL, now + 2 * INTERVAL) == NOTHING
    assert health.state == HealthState.UP
    assert health.update(now + 4 * INTERVAL, 3, now, now, cannot_probe=True, link_down=True) == DISCONNECTED


def test_the_only_peer_comes_back_on_another_nic_first():
    """A host that restarts sends on one NIC before the other: the other has an interval of its own to follow."""
    health = NicHealth(INTERVAL, GRACE, 0)
    health.update(MS, 3, MS, MS)
    now = 5 * INTERVAL
    assert health.update(now, 3, MS, MS, peers=PEER_GONE) == NOTHING
    assert health.update(now + 16 * MS, 3, MS, MS) == NOTHING
    assert (health.state, health.cause) == (HealthState.UNKNOWN, Cause.PEER_GONE)
    back = now + 100 * MS
    health.exchanged(back)
    assert health.update(back, 3, back, back) == NOTHING
    assert health.state == HealthState.UP


def test_the_only_peer_comes_back_on_another_nic_alone():
    """Its packets come on the other NIC and it stays silent on this one: now this one is the fault."""
    health = NicHealth(INTERVAL, GRACE, 0)
    health.update(MS, 3, MS, MS)
    now = 5 * INTERVAL
    health.update(now, 3, MS, MS, peers=PEER_GONE)
    assert health.update(now + INTERVAL - 1, 3, MS, MS) == NOTHING
    assert health.update(now + INTERVAL, 3, MS, MS) == DISCONNECTED


def test_new_peers_get_the_grace_of_a_start():
    """The membership replaced all peers that had sent: silence of the new ones is unknown, then disconnected."""
    health = NicHealth(INTERVAL, GRACE, 0)
    now = 20_000 * MS
    health.update(now, 3, now, now, others_connected=True)
    health.restart(now)
    for after in (16 * MS, 2 * INTERVAL, GRACE - MS):
        assert health.update(now + after, 3, NEVER_RECEIVED, NEVER_RECEIVED, others_connected=True) == NOTHING
        assert health.state == HealthState.UNKNOWN
        # an edge that was kept, silent for long: it was no witness before either
        assert health.update(now + after, 3, MS, MS, others_connected=True) == NOTHING
    assert health.update(now + GRACE, 3, MS, MS, others_connected=True) == DISCONNECTED
    assert (health.cause, health.seen) == (Cause.NEVER_SEEN, True)


def test_a_nic_without_peers_is_unknown_and_starts_anew():
    health = NicHealth(INTERVAL, GRACE, 0)
    now = 20_000 * MS
    health.update(now, 3, now, now, others_connected=True)
    now += 30_000 * MS
    assert health.update(now, 0, NEVER_RECEIVED, NEVER_RECEIVED, others_connected=True) == NOTHING
    assert health.state == HealthState.UNKNOWN
    assert health.update(now + MS, 3, NEVER_RECEIVED, NEVER_RECEIVED, others_connected=True) == NOTHING


def test_a_nic_that_is_down_and_then_has_no_peers_is_unknown():
    """Nobody can say that it is still down; with new peers it gets the grace of a start."""
    health = NicHealth(INTERVAL, GRACE, 0)
    now = 20_000 * MS
    health.update(now, 3, now, now)
    now += 2 * INTERVAL
    assert health.update(now, 3, now - 2 * INTERVAL, now - 2 * INTERVAL) == DISCONNECTED
    assert health.update(now, 0, NEVER_RECEIVED, NEVER_RECEIVED, link_down=True) == NOTHING
    assert (health.state, health.cause) == (HealthState.UNKNOWN, Cause.NONE)
    assert (
        health.update(now + GRACE - MS, 3, NEVER_RECEIVED, NEVER_RECEIVED, others_connected=True) == NOTHING
    )
    assert health.state == HealthState.UNKNOWN
    now += GRACE
    assert health.update(now, 3, now, now) == NOTHING
    assert health.state == HealthState.UP


A, B = 1, 2  # hosts
LONG_AGO, NOW = 5 * MS, 60 * INTERVAL


@pytest.mark.parametrize(
    ("own", "others", "loss"),
    [
        pytest.param([(A, 2, 2)], [(A, 2, 2)], PEER_GONE, id="the one peer is silent everywhere"),
        pytest.param([(A, 2, 2)], [(A, NOW, NOW)], RECEIVED_ELSEWHERE, id="another NIC receives from it"),
        pytest.param(
            [(A, 2, 2)], [(A, NOW - INTERVAL // 2, 0)], PEER_GONE, id="another received half an interval ago"
        ),
        pytest.param([(A, 2, 2)], [], ONE_WITNESS, id="nobody can be asked"),
        pytest.param(
            [(A, 2, 2)], [(A, NEVER_RECEIVED, NEVER_RECEIVED)], ONE_WITNESS, id="never received elsewhere"
        ),
        pytest.param([(A, 2, 2)], [(B, 2, 2)], ONE_WITNESS, id="another host says nothing of this one"),
        pytest.param(
            [(A, 2, 2), (B, 2, 2)], [(A, 2, 2), (B, 2, 2)], SEVERAL, id="two hosts at once: it is us"
        ),
        pytest.param(
            [(A, LONG_AGO, LONG_AGO), (B, NOW - 2 * INTERVAL, NOW - 2 * INTERVAL)],
            [(A, LONG_AGO, LONG_AGO), (B, NOW - 2 * INTERVAL, NOW - 2 * INTERVAL)],
            PEER_GONE,
            id="the other host had died before",
        ),
        pytest.param(
            [(A, NEVER_RECEIVED, NEVER_RECEIVED)], [(A, 2, 2)], SEVERAL, id="nothing was ever received"
        ),
    ],
)
def test_what_other_nics_tell_of_the_lost_peers(own, others, loss):
    assert peer_loss(own, others, NOW, INTERVAL) == loss


@given(st.booleans(), st.integers(0, 24 * 3600 * 1000), st.integers(0, 20))
def test_a_paused_machine_accuses_nobody(monotonic_stands, pause_ms, late_ms):
    """A VM pause, whether CLOCK_MONOTONIC stands still in it or goes on (as CLOCK_BOOTTIME does): no disconnect.

    What peers say afterwards of how long they have not received us is measured by their clocks and undoes nothing.
    """
    clock = UnstalledClock(48 * MS)
    health = NicHealth(INTERVAL, GRACE, 0)
    presence = Presence()
    now = unstalled = 0
    for _ in range(100):
        now += 16 * MS
        unstalled, _ = clock.advance(now)
        presence.received(unstalled)
        presence.received_by_peer(unstalled - 5 * MS)
        assert health.update(unstalled, 1, presence.received_at, presence.both(INTERVAL)) == NOTHING
    now += 16 * MS + (0 if monotonic_stands else pause_ms * MS)
    unstalled, stall = clock.advance(now)
    assert stall == max(now - 100 * 16 * MS - 48 * MS, 0)
    presence.received(unstalled)
    presence.received_by_peer(unstalled - pause_ms * MS)  # the peer has not received us all the while
    health.exchanged(presence.both(INTERVAL))
    assert health.update(unstalled, 1, presence.received_at, presence.both(INTERVAL)) == NOTHING
    for _ in range(5):
        now += 16 * MS + late_ms * MS
        unstalled, _ = clock.advance(now)
        presence.received(unstalled)
        presence.received_by_peer(unstalled - 5 * MS)
        health.exchanged(presence.both(INTERVAL))
        assert health.update(unstalled, 1, presence.received_at, presence.both(INTERVAL)) == NOTHING
    assert health.state == HealthState.UP


def test_a_nic_that_was_never_seen_is_unknown_until_something_else_speaks():
    """Nobody has started yet: unknown. The rest of the host works: disconnected, after the grace."""
    alone = NicHealth(INTERVAL, GRACE, 0)
    assert alone.update(20_000 * MS, 3, NEVER_RECEIVED, NEVER_RECEIVED) == NOTHING
    assert alone.state == HealthState.UNKNOWN
    beside = NicHealth(INTERVAL, GRACE, 0)
    assert beside.update(GRACE - 1, 3, NEVER_RECEIVED, NEVER_RECEIVED, others_connected=True) == NOTHING
    assert beside.update(GRACE, 3, NEVER_RECEIVED, NEVER_RECEIVED, others_connected=True) == DISCONNECTED
    assert (beside.state, beside.cause, beside.seen) == (HealthState.DOWN, Cause.NEVER_SEEN, False)


def test_causes():
    """What is known of the reason: the link, one direction, the only witness, or nothing."""

    def cause(**evidence):
        health = NicHealth(INTERVAL, GRACE, 0)
        health.update(MS, 3, MS, MS)
        received = evidence.pop("received", MS)
        health.update(2 * INTERVAL, 3, received, MS, **evidence)
        return HealthState(health.state), Cause(health.cause)

    assert cause() == (HealthState.DOWN, Cause.SILENT)
    assert cause(link_down=True) == (HealthState.DOWN, Cause.LINK)
    assert cause(received=2 * INTERVAL - MS) == (HealthState.DOWN, Cause.ONE_WAY)
    assert cause(peers=PEER_GONE) == (HealthState.UNKNOWN, Cause.PEER_GONE)
    assert cause(peers=PEER_GONE, link_down=True) == (HealthState.DOWN, Cause.LINK)
    assert cause(peers=ONE_WITNESS) == (HealthState.UNKNOWN, Cause.ONE_PEER_ONLY)
    assert cause(peers=ONE_WITNESS, link_down=True) == (HealthState.DOWN, Cause.LINK)
    assert cause(peers=RECEIVED_ELSEWHERE) == (HealthState.DOWN, Cause.SILENT)


def test_the_table_of_nic_health():
    """Down is reported once, when it begins; probes that pass, or nobody left to ask, end it; unknown has a cause."""
    unknown, up, interrupted, down = nic_transitions()
    for row in (unknown, up, interrupted):
        for state, cause, event in row:
            assert (state == HealthState.DOWN) == (event == DISCONNECTED)
            if state == HealthState.DOWN:
                assert cause not in (None, Cause.NONE)
    assert [event for _, _, event in down].count(CONNECTED) == 1
    for state, _, event in down:
        assert event != DISCONNECTED
        assert state == HealthState.DOWN or event == CONNECTED or state == HealthState.UNKNOWN
    # What an update has not seen is reported by the next one; else an interrupted NIC is like one that is up.
    assert [cell for cell, same in zip(interrupted, up, strict=True) if cell != same] == [
        (HealthState.UP, Cause.NONE, INTERRUPTED),
        (HealthState.DOWN, Cause.ONE_WAY, DISCONNECTED),
    ]
