"""Lines that strangers can cause are bounded."""

from fabricpulse.core.log_limit import LogLimit


def test_one_line_per_key_and_interval() -> None:
    """The same thing is logged once a minute, with how much was left out."""
    now = [0.0]
    limit = LogLimit(60.0, burst=100, clock=lambda: now[0])
    logged = 0
    for second in range(180):
        now[0] = float(second)
        logged += limit.allows("401 a")
    assert logged == 3
    assert limit.take_suppressed() == 177
    assert limit.take_suppressed() == 0


def test_many_keys() -> None:
    """A thousand clients are not a thousand lines, nor a growing table."""
    now = [0.0]
    limit = LogLimit(60.0, burst=20, clock=lambda: now[0])
    assert sum(limit.allows(f"401 {n}") for n in range(10_000)) == 20
    now[0] = 61.0
    assert limit.allows("401 new")
    for minute in range(100):
        now[0] += 60.0
        for n in range(20):
            limit.allows(f"{minute} {n}")
    assert len(limit._last) <= 256
