"""The engine's wake-ups: a whole number of them makes a train period, and each one serves every peer that is due."""

import math

import pytest
from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import wait_for

from fabricpulse.mesh import _probe_engine as native
from fabricpulse.mesh.snapshot import parse_snapshot

PEERS = 4


def engine_to_nobody(**settings):
    """An engine with peers on the loopback device that nobody plays."""
    own = native.Settings()
    own.host, own.port, own.bind_device = "h0", reserved_port(), False
    for name, value in settings.items():
        setattr(own, name, value)
    engine = native.ProbeEngine(own)
    engine.set_keys([bytes(16)])
    engine.configure(
        [("lo", "rail0", "127.0.0.1")],
        [(0, f"h{1 + peer}", "rail0", "rail0", f"127.0.0.{2 + peer}") for peer in range(PEERS)],
    )
    return engine


def after(engine, ticks):
    """A snapshot once the engine has woken `ticks` times."""
    wait_for(lambda: parse_snapshot(engine.snapshot()).ticks >= ticks, 20, f"{ticks} wake-ups")
    return parse_snapshot(engine.snapshot())


# Trains a second, longest tick in ms: how many wake-ups make a period.
@pytest.mark.parametrize(
    ("rate", "tick_ms", "period_ticks"),
    [(50, 20, 1), (500, 20, 1), (50, 16, 2), (60, 20, 1), (49, 20, 2), (100, 3, 4)],
)
def test_each_edge_sends_once_a_period_of_whole_ticks(rate, tick_ms, period_ticks):
    engine = engine_to_nobody(rate=rate, tick_ns=tick_ms * 1_000_000)
    engine.start()
    try:
        snapshot = after(engine, 40)
    finally:
        engine.stop()
    for edge in snapshot.edges:
        trains, rest = divmod(edge.sent, 3)
        assert rest == 0
        # Which of its ticks is the first, and by how many it may be late, is drawn by lot.
        most = math.ceil(snapshot.ticks / period_ticks)
        assert most - (0 if period_ticks == 1 else 2) <= trains <= most


def test_a_tick_too_short_is_refused():
    with pytest.raises(ValueError, match="tick"):
        engine_to_nobody(tick_ns=0)
