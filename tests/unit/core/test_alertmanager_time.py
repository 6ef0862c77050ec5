"""What an answer's Date says of the other clock."""

from email.utils import formatdate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fabricpulse.core.alerting.alertmanager_time import TOLERATED_S, AlertmanagerTime

NOW = 1_700_000_000.0


@given(st.floats(-1e6, 1e6), st.floats(0, 2), st.floats(0, 1))
@example(ahead=2.75, took=0.0, when=0.0)
def test_the_error_is_bounded(ahead, took, when):
    """Whatever the difference and the way: what is tolerated, and what one answer leaves open."""
    clock = AlertmanagerTime()
    written = NOW + took * when + ahead
    changed = clock.learn(formatdate(written, usegmt=True), NOW, NOW + took)
    assert abs(clock.ahead_s - ahead) <= TOLERATED_S + 1 + took
    assert clock.min_ahead_s <= ahead + 1e-6
    assert changed == (clock.ahead_s != 0)
    # The same response again changes nothing.
    before = clock.ahead_s
    assert not clock.learn(formatdate(written, usegmt=True), NOW, NOW + took)
    assert clock.ahead_s == before


def test_a_clock_that_is_corrected():
    clock = AlertmanagerTime()
    assert clock.learn(formatdate(NOW - 120, usegmt=True), NOW, NOW)
    assert clock.ahead_s == pytest.approx(-120, abs=1)
    assert not clock.learn(formatdate(NOW, usegmt=True), NOW, NOW)
    assert clock.ahead_s == 0


@pytest.mark.parametrize(
    "date",
    [
        "",
        "soon",
        "Tue, 99 Nov 2023 22:13:20 GMT",
        "\x00",
        "1700000000",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Fri, 31 Dec 99999999999999999999 23:59:59 GMT",
    ],
)
def test_an_invalid_date_is_ignored(date):
    clock = AlertmanagerTime()
    assert not clock.learn(date, NOW, NOW)
    assert clock.ahead_s == 0
