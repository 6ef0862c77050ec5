"""Which connections may stay, in virtual time."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabricpulse.core.web.connection_table import ConnectionTable, Entry, Phase
from fabricpulse.core.web.limits import Limits, connections_for


class Client:
    """Records why its connection was ended."""

    def __init__(self) -> None:
        self.reason = ""
        self.left = 0

    def drop(self, reason: str) -> None:
        assert not self.reason, "dropped twice"
        self.reason = reason

    def unsent(self) -> int:
        return self.left


def connect(table: ConnectionTable, client: str, now: float = 0.0) -> tuple[Client, Entry]:
    closer = Client()
    entry = table.admit(client, closer, now)
    assert entry is not None
    return closer, entry


def test_the_largest_client_makes_room() -> None:
    """At the limit, one of many connections of one client goes, the oldest first; small clients keep theirs."""
    table = ConnectionTable(Limits(connections=10, per_client=10))
    small, _ = connect(table, "scraper")
    many = [connect(table, "greedy", n)[0] for n in range(9)]
    for n in range(5):
        connect(table, f"other {n}", 20.0)

    assert small.reason == ""
    assert [client.reason for client in many] == ["server_limit"] * 5 + [""] * 4
    assert len(table) == 10


def test_a_client_at_its_limit_drops_its_own() -> None:
    """And nobody else's; who has been answered goes last."""
    table = ConnectionTable(Limits(connections=100, per_client=3))
    other, _ = connect(table, "other")
    idle, entry = connect(table, "greedy")
    table.enter(entry, Phase.IDLE, 1.0)
    head, entry = connect(table, "greedy", 2.0)
    table.enter(entry, Phase.HEAD, 2.0)
    body, entry = connect(table, "greedy", 2.0)
    table.enter(entry, Phase.BODY, 2.0)
    for expected in (head, body, idle):
        assert expected.reason == ""
        _, entry = connect(table, "greedy", 3.0)
        table.enter(entry, Phase.ACTIVE, 3.0)
        assert expected.reason == "client_limit"
    assert table.admit("greedy", Client(), 4.0) is None  # all are being answered
    assert other.reason == ""


def test_what_is_being_answered_is_never_dropped() -> None:
    """A long poll, a scrape in work: the new connection is refused, not they."""
    table = ConnectionTable(Limits(connections=3, per_client=3, idle_s=1))
    entries = [connect(table, f"c{n}") for n in range(3)]
    for _, entry in entries:
        table.enter(entry, Phase.ACTIVE, 0.0)
    assert table.admit("new", Client(), 1.0) is None
    table.sweep(1e6)
    assert [client.reason for client, _ in entries] == [""] * 3


@pytest.mark.parametrize(
    ("phase", "seconds", "reason"),
    [
        (Phase.HANDSHAKE, 10, "handshake_timeout"),
        (Phase.HEAD, 20, "head_timeout"),
        (Phase.BODY, 30, "body_timeout"),
        (Phase.IDLE, 40, "idle_timeout"),
    ],
)
def test_time_of_each_phase(phase: Phase, seconds: float, reason: str) -> None:
    """Each phase has its own; time in which this process did not run is nobody's fault."""
    table = ConnectionTable(Limits(handshake_s=10, head_s=20, body_s=30, idle_s=40))
    client, entry = connect(table, "a", 100.0)
    table.enter(entry, phase, 100.0)
    table.sweep(100.0 + seconds - 0.1)
    assert client.reason == ""
    table.sweep(100.0 + seconds + 4.9, late_s=5.0)
    assert client.reason == ""
    table.sweep(100.0 + seconds + 5.2)
    assert client.reason == reason
    assert len(table) == 0


def test_a_body_must_keep_its_rate() -> None:
    """A large upload over a slow line has the time that it takes; a trickle has not."""
    table = ConnectionTable(Limits(body_s=10, min_rate=1000))
    steady, steady_entry = connect(table, "a")
    trickle, trickle_entry = connect(table, "b")
    for entry in (steady_entry, trickle_entry):
        table.enter(entry, Phase.BODY, 0.0)
    for second in range(1, 60):
        table.receive(steady_entry, 1200, second)
        table.receive(trickle_entry, 10, second)
        table.sweep(second)
    assert steady.reason == ""
    assert trickle.reason == "body_timeout"


def test_bytes_from_an_idle_client_begin_a_head() -> None:
    """One byte on a kept connection does not keep it for ever."""
    table = ConnectionTable(Limits(head_s=10, idle_s=1000))
    client, entry = connect(table, "a")
    table.enter(entry, Phase.IDLE, 0.0)
    table.receive(entry, 1, 500.0)
    table.receive(entry, 1, 505.0)
    table.sweep(511.0)
    assert client.reason == "head_timeout"


def test_a_client_that_does_not_read() -> None:
    """It must take a minimum of the answer in each interval."""
    table = ConnectionTable(Limits(write_s=10, min_rate=100))
    client, entry = connect(table, "a")
    table.enter(entry, Phase.IDLE, 0.0)
    client.left = 10_000
    table.stall(entry, 0.0)
    for now in (10.0, 20.0, 30.0):
        client.left -= 1000
        table.sweep(now)
        assert client.reason == ""
    client.left -= 999
    table.sweep(40.0)
    assert client.reason == "write_timeout"


def test_answers_in_memory_are_bounded() -> None:
    """Above the limit the oldest of the client with most goes, never the only one of a client."""
    table = ConnectionTable(Limits(unsent_bytes=100))

    def unread(name: str, size: int) -> Client:
        client, entry = connect(table, name)
        table.enter(entry, Phase.ACTIVE, 0.0)
        client.left = size
        table.stall(entry, 0.0)
        return client

    scraper, greedy = unread("scraper", 45), [unread("greedy", 15) for _ in range(5)]
    assert [client.reason for client in greedy] == ["unsent_limit", "unsent_limit", "", "", ""]
    assert unread("another", 400).reason == scraper.reason == ""
    assert [client.reason for client in greedy].count("unsent_limit") == 4


def test_requests_in_memory_are_bounded() -> None:
    """Above the limit the largest incomplete request of the client with most of them goes; complete ones stay."""
    table = ConnectionTable(Limits(buffered_bytes=100))
    honest, honest_entry = connect(table, "honest")
    table.enter(honest_entry, Phase.BODY, 0.0)
    table.receive(honest_entry, 45, 0.0)
    greedy = [connect(table, "greedy") for _ in range(4)]
    for _, entry in greedy:
        table.enter(entry, Phase.BODY, 0.0)
        table.receive(entry, 15, 0.0)
    assert [client.reason for client, _ in greedy].count("buffer_limit") == 1
    table.enter(honest_entry, Phase.ACTIVE, 0.0)
    assert table.buffered == 90
    table.enter(honest_entry, Phase.IDLE, 0.0)
    assert honest.reason == ""
    assert table.buffered == 45


def test_large_requests_leave_room_for_small_ones() -> None:
    """When all that waits and all that is answered is large, a scrape is not cut for it."""
    table = ConnectionTable(Limits(buffered_bytes=800, small_bytes=50))
    busy, busy_entry = connect(table, "busy")
    table.enter(busy_entry, Phase.BODY, 0.0)
    table.receive(busy_entry, 700, 0.0)
    table.enter(busy_entry, Phase.ACTIVE, 0.0)
    (scraper, scrape), (large, large_entry) = connect(table, "scraper"), connect(table, "large")
    for entry, size in ((scrape, 50), (large_entry, 49)):
        table.enter(entry, Phase.HEAD, 0.0)
        table.receive(entry, size, 0.0)
    assert (busy.reason, scraper.reason, large.reason, table.buffered) == ("", "", "", 799)
    table.receive(large_entry, 2, 0.0)
    assert (busy.reason, scraper.reason, large.reason, table.buffered) == ("", "", "buffer_limit", 750)


def test_a_head_without_an_end() -> None:
    """Nor may a client pipeline requests without end while one is processed; a large body is neither."""
    table = ConnectionTable(Limits(head_bytes=100))
    (head, head_entry), (body, body_entry) = connect(table, "a"), connect(table, "b")
    table.enter(head_entry, Phase.HEAD, 0.0)
    table.receive(head_entry, 101, 0.0)
    assert head.reason == "head_too_large"
    table.enter(body_entry, Phase.BODY, 0.0)
    table.receive(body_entry, 10_000, 0.0)
    table.enter(body_entry, Phase.ACTIVE, 0.0)
    table.receive(body_entry, 100, 0.0)
    assert body.reason == ""
    table.receive(body_entry, 1, 0.0)
    assert body.reason == "head_too_large"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_any_order_of_events(seed: int) -> None:
    """Whatever happens: limits hold, counts add up, nobody is dropped twice or while being answered."""
    rng = random.Random(seed)
    limits = Limits(
        connections=8, per_client=5, buffered_bytes=200, head_bytes=150, head_s=5, body_s=5, min_rate=10
    )
    table = ConnectionTable(limits)
    open_ones: list[tuple[Client, Entry]] = []
    now = 0.0
    for _ in range(200):
        now += rng.random()
        active_before = [c for c, e in open_ones if e.phase is Phase.ACTIVE and e.pipelined == 0]
        event = rng.randrange(6)
        if event <= 1:
            client = Client()
            entry = table.admit(rng.choice("abc"), client, now)
            if entry is not None:
                open_ones.append((client, entry))
        elif event == 2:
            table.sweep(now, rng.choice([0.0, 2.0]))
        elif open_ones:
            client, entry = rng.choice(open_ones)
            if event == 3:
                table.enter(entry, rng.choice(list(Phase)), now)
            elif event == 4 and entry.phase is not Phase.ACTIVE:
                table.receive(entry, rng.randrange(60), now)
            else:
                table.remove(entry)
                open_ones.remove((client, entry))
                active_before = [c for c in active_before if c is not client]
        open_ones = [(c, e) for c, e in open_ones if not c.reason]
        assert all(not c.reason for c in active_before)
        assert len(table) == len(open_ones) <= limits.connections
        assert table.buffered == sum(e.received for _, e in open_ones)
        assert sum(table.count(phase) for phase in Phase) == len(table)
        for name in "abc":
            assert sum(e.client == name for _, e in open_ones) <= limits.per_client


@pytest.mark.parametrize(
    ("files", "least", "most"), [(256, 100, 192), (1024, 600, 768), (65_536, 16_384, 16_384)]
)
def test_a_share_of_the_descriptors_stays(files: int, least: int, most: int) -> None:
    """For files and sockets of the daemon itself."""
    assert least <= connections_for(files, in_use=20) <= most
