"""The state machines behind nic_connected and edge_up: what they must never say, whatever happens."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fabricpulse.exporters._probe_engine import (
    NEVER_HEARD,
    AttendedClock,
    LatencyVerdict,
    NicVerdict,
    PathVerdict,
    Presence,
)
from fabricpulse.exporters.mesh.snapshot import Cause, State

MS = 1_000_000
INTERVAL = 1000 * MS
GRACE = 10_000 * MS
NOTHING, DISCONNECTED, CONNECTED = 0, 1, 2


@given(
    st.lists(st.tuples(st.integers(0, 60_000 * MS), st.integers(0, 40 * MS)), min_size=1, max_size=200),
    st.integers(1 * MS, 50 * MS),
)
def test_attended_time_leaves_stalls_out(gaps, max_step):
    """Attended time never runs backwards, never faster than the monotonic clock, never by more than a step a turn."""
    clock = AttendedClock(max_step)
    now = last = 0
    clock.advance(now)
    for gap, more in gaps:
        now += gap + more
        attended, stall = clock.advance(now)
        assert 0 <= attended - last <= min(max_step, gap + more)
        assert attended - last + stall == gap + more
        last = attended


@given(st.integers(0, 2_000 * MS))
def test_a_stalled_host_hears_nothing_and_says_nothing(length):
    """SIGSTOP of any length: the silence of that time is not the silence of peers."""
    clock = AttendedClock(30 * MS)
    verdict = NicVerdict(INTERVAL, GRACE, 0)
    now = 0
    attended = 0
    for _ in range(200):
        now += 10 * MS
        attended, _ = clock.advance(now)
        assert verdict.step(attended, 5, attended, attended) == NOTHING
    heard = attended
    now += length
    attended, _ = clock.advance(now)
    assert verdict.step(attended, 5, heard, heard) == NOTHING
    assert verdict.state == State.UP


turns = st.lists(
    st.tuples(
        st.integers(1 * MS, 30 * MS),  # attended time since the last turn
        st.booleans(),  # heard in both directions in this turn
        st.booleans(),  # carrier lost
        st.booleans(),  # the only witness is gone
    ),
    min_size=1,
    max_size=400,
)


@given(turns)
@settings(max_examples=200)
def test_nic_verdict_holds_for_any_history(history):
    """Down only after a whole interval of silence, up only by being heard; events are exactly the changes of state."""
    verdict = NicVerdict(INTERVAL, GRACE, 0)
    now = 0
    heard = NEVER_HEARD
    disconnects = connects = 0
    for step, hears, link_down, witness_gone in history:
        now += step
        if hears:
            heard = now
        before = verdict.state
        event = verdict.step(now, 3, heard, heard, link_down=link_down, sole_witness_gone=witness_gone)
        after = verdict.state
        silent = heard == NEVER_HEARD or now - heard >= INTERVAL
        assert (after == State.UP) == (not silent)
        assert (event == DISCONNECTED) == (before != State.DOWN and after == State.DOWN)
        assert (event == CONNECTED) == (before == State.DOWN and after == State.UP)
        if before == State.DOWN:
            assert after in (State.DOWN, State.UP)
        disconnects += event == DISCONNECTED
        connects += event == CONNECTED
        assert connects <= disconnects <= connects + 1


def test_every_long_silence_is_one_disconnect():
    """Flaps longer than the interval are counted one by one; shorter ones are not counted."""
    verdict = NicVerdict(INTERVAL, GRACE, 0)
    now, disconnects = 0, 0
    for flap in range(500):
        for _ in range(20):
            now += 10 * MS
            verdict.step(now, 3, now, now)
        heard = now
        outage = INTERVAL + (flap % 7) * 100 * MS if flap % 2 else INTERVAL // 2
        while now - heard < outage:
            now += 10 * MS
            disconnects += verdict.step(now, 3, heard, heard) == DISCONNECTED
    assert disconnects == 250


def test_a_nic_that_was_never_seen_is_unknown_until_something_else_speaks():
    """Nobody has started yet: unknown. The rest of the host works: disconnected, after the grace."""
    alone = NicVerdict(INTERVAL, GRACE, 0)
    assert alone.step(20_000 * MS, 3, NEVER_HEARD, NEVER_HEARD) == NOTHING
    assert alone.state == State.UNKNOWN
    beside = NicVerdict(INTERVAL, GRACE, 0)
    assert beside.step(GRACE - 1, 3, NEVER_HEARD, NEVER_HEARD, others_connected=True) == NOTHING
    assert beside.step(GRACE, 3, NEVER_HEARD, NEVER_HEARD, others_connected=True) == DISCONNECTED
    assert (beside.state, beside.cause, beside.seen) == (State.DOWN, Cause.NEVER_SEEN, False)


def test_causes():
    """What is known of the reason: the link, one direction, the only witness, or nothing."""

    def cause(**evidence):
        verdict = NicVerdict(INTERVAL, GRACE, 0)
        verdict.step(MS, 3, MS, MS)
        heard = evidence.pop("heard", MS)
        verdict.step(2 * INTERVAL, 3, heard, MS, **evidence)
        return State(verdict.state), Cause(verdict.cause)

    assert cause() == (State.DOWN, Cause.SILENT)
    assert cause(link_down=True) == (State.DOWN, Cause.LINK)
    assert cause(heard=2 * INTERVAL - MS) == (State.DOWN, Cause.ONE_WAY)
    assert cause(sole_witness_gone=True) == (State.UNKNOWN, Cause.PEER_GONE)
    assert cause(sole_witness_gone=True, link_down=True) == (State.DOWN, Cause.LINK)


@given(
    st.lists(
        st.tuples(st.sampled_from(["heard", "heard_by", "wait"]), st.integers(0, 400 * MS)), max_size=100
    )
)
def test_edge_states_are_consistent(history):
    """An edge is up exactly if both directions are; a direction that cannot be measured is unknown, not down."""
    presence = Presence()
    now = 0
    for what, step in history:
        now += step
        if what == "heard":
            presence.heard(now)
        elif what == "heard_by" and presence.heard_at != NEVER_HEARD:
            presence.heard_by(presence.heard_at)
        edge, inbound, outbound = presence.judge(now, INTERVAL)
        if inbound != State.UP:
            assert outbound == State.UNKNOWN
        if State.UNKNOWN not in (edge, inbound, outbound):
            assert (edge == State.UP) == (inbound == outbound == State.UP)
        if edge == State.UNKNOWN:
            assert NEVER_HEARD in (presence.heard_at, presence.heard_by_at)


def test_one_dead_direction():
    """We hear the peer, the peer does not hear us: outbound is down, inbound is up."""
    presence = Presence()
    presence.heard(0)
    presence.heard_by(0)
    for now in range(0, 3 * INTERVAL, 20 * MS):
        presence.heard(now)
    assert presence.judge(3 * INTERVAL, INTERVAL) == (State.DOWN, State.UP, State.DOWN)


def test_an_old_report_does_not_undo_what_is_known():
    """After a stall of ours the peer's first report is old; it was heard by later than that."""
    presence = Presence()
    presence.heard(5_000 * MS)
    presence.heard_by(5_000 * MS)
    presence.heard_by(3_000 * MS)
    assert presence.heard_by_at == 5_000 * MS


@given(st.lists(st.booleans(), max_size=60))
def test_a_path_is_dead_after_three_misses_in_a_row(arrivals):
    path = PathVerdict()
    run = 0
    for arrived in arrivals:
        if arrived:
            path.heard()
            run = 0
        else:
            path.missed()
            run += 1
        assert (path.state == State.DOWN) == (run >= 3)
    path.reset()
    assert path.state != State.DOWN


@given(st.lists(st.integers(1_000, 9_000), min_size=10, max_size=200))
def test_a_long_incident_does_not_become_the_habit(noise):
    """The baseline follows what is normal, and stays while the delay is elevated, however long that lasts."""
    verdict = LatencyVerdict(10 * MS, 3.0, 20_000)
    for median in noise:
        verdict.window(median)
    baseline = verdict.baseline_ns
    for _ in range(1000):
        verdict.window(500_000)
        assert verdict.state == State.DOWN
    assert verdict.baseline_ns == baseline
    verdict.window(noise[0])
    assert verdict.state == State.UP


def test_the_ceiling_holds_before_anything_is_learned():
    verdict = LatencyVerdict(10 * MS, 3.0, 20_000)
    verdict.window(5_000)
    assert verdict.state == State.UNKNOWN
    verdict.window(11 * MS)
    assert verdict.state == State.DOWN
