"""Quantiles of the delays of flows over the last two minutes."""

import pytest

from fabricpulse.core.metrics.recent_delays import RecentDelays, quantile

BOUNDS = (1.0, 2.0, 5.0)


@pytest.mark.parametrize(
    ("q", "counts", "value"),
    [
        (0.5, [10, 0, 0, 0], 0.5),
        (0.5, [0, 10, 0, 0], 1.5),
        (0.1, [5, 5, 0, 0], 0.2),
        (0.5, [5, 0, 5, 0], 1.0),
        (0.75, [5, 0, 5, 0], 3.5),
        (0.5, [0, 0, 0, 3], 5.0),
        (0.5, [1, 0, 0, 3], 5.0),
    ],
)
def test_quantile_is_that_of_promql(q: float, counts: list[int], value: float) -> None:
    """Values as histogram_quantile gives them."""
    assert quantile(q, counts, BOUNDS) == pytest.approx(value)


def test_window_forgets_what_was_before() -> None:
    """Slow for a minute, then quick: half of it after a minute, nothing of it when two minutes are over."""
    delays = RecentDelays[str](BOUNDS, (0.1, 0.5))
    slow = quick = 0
    medians = {}
    for time in range(0, 400, 15):
        found = delays.take(time, {"flow": [quick, 0, slow, 0]})
        medians[time] = found["flow"][1] if found else None
        slow, quick = (slow + 10, quick) if time < 60 else (slow, quick + 10)
    assert medians[0] is None
    assert medians[60] == 3.5
    assert medians[120] == 1.0
    assert medians[180] == 0.5


def test_flow_without_chunks_has_no_delay() -> None:
    """However many it had: what was counted before the first look, or is older than the window."""
    delays = RecentDelays[str](BOUNDS, (0.1, 0.5))
    assert [delays.take(time, {"flow": [7, 0, 0, 0]}) for time in range(0, 60, 15)] == [{}] * 4
    assert delays.take(60, {"flow": [8, 0, 0, 0]}) != {}
    assert delays.take(165, {"flow": [8, 0, 0, 0]}) != {}
    assert delays.take(180, {"flow": [8, 0, 0, 0]}) == {}


def test_new_flow_is_known_at_once() -> None:
    """That of an exporter that starts is not: its chunks may be of hours ago. One that ends leaves nothing."""
    delays = RecentDelays[str](BOUNDS, (0.1, 0.5))
    assert delays.take(0, {"old": [9, 0, 0, 0]}) == {}
    assert delays.take(15, {"old": [9, 0, 0, 0], "new": [0, 9, 0, 0]}) == {"new": (1.1, 1.5)}
    assert delays.take(30, {"old": [9, 0, 0, 0]}) == {}
    assert list(delays._histograms) == ["old"]


def test_two_scrapers_change_nothing() -> None:
    """Each sees the last two minutes, whoever else asks how often."""
    delays = RecentDelays[str](BOUNDS, (0.1, 0.5))
    for tenth in range(6000):
        found = delays.take(tenth / 10, {"flow": [tenth, 0, 0, 0]})
    assert found == {"flow": (0.1, 0.5)}
    assert len(delays._histograms["flow"].times) <= 14


def test_window_is_what_was_asked_for() -> None:
    """Half a minute of slow chunks is over thirty seconds after the last one."""
    delays = RecentDelays[str](BOUNDS, window_s=30)
    delays.take(0, {"flow": [0, 0, 0, 0]})
    assert delays.take(15, {"flow": [0, 0, 9, 0]}) != {}
    assert delays.take(45, {"flow": [0, 0, 9, 0]}) == {}
