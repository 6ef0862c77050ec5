"""The webhook body: what is read, what is dead-lettered, what is refused, and nothing that breaks."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.remediation.fuzz import named_nics, nic_of
from tests.fixtures.remediation.stack import alert, webhook
from tests.fixtures.rules.mutants import mutant

from fabricpulse.remediation.receiver.payload import (
    PayloadError,
    TooManyAlertsError,
    parse_notification,
    parse_polled,
)


def body(*alerts, **fields) -> bytes:
    return json.dumps(webhook(*alerts, **fields)).encode()


def test_a_notification():
    """Labels, fingerprint, nanosecond start, status; what later versions add is passed over."""
    more = alert(status="resolved") | {"fingerprint": "other", "something_new": {"a": [1]}}
    found = parse_notification(
        body(alert(), more, notification_reason="new", routeLabels={}, truncatedAlerts=3)
    )
    first, second = found.alerts
    assert (first.firing, first.name, first.starts_at) == (True, "FabricNicFlapping", 1795240800.123457)
    assert (second.firing, second.fingerprint) == (False, "other")
    assert (found.truncated, found.dead_letters) == (3, ())


@pytest.mark.parametrize(
    ("ended", "seconds"),
    [
        ("2026-11-21T06:00:01.5Z", 1795240801.5),
        ("0001-01-01T00:00:00Z", 0.0),
        ("yesterday", 0.0),
        (7, 0.0),
        (None, 0.0),
    ],
)
def test_an_end_that_is_no_moment_costs_no_alert(ended, seconds):
    """An alert whose end was lost for it would fire for ever."""
    resolved = alert(status="resolved") | {"endsAt": ended}
    (found,) = parse_notification(body(resolved)).alerts
    assert (found.firing, found.ends_at) == (False, seconds)
    (without,) = parse_notification(body({k: v for k, v in resolved.items() if k != "endsAt"})).alerts
    assert without.ends_at == 0.0


@pytest.mark.parametrize(
    "broken",
    [
        {"labels": {"alertname": 7}},
        {"labels": None},
        {"status": "pending"},
        {"startsAt": "yesterday"},
        {"fingerprint": ""},
        {"fingerprint": "x" * 65},
        {"labels": {f"l{i}": "x" for i in range(300)}},
        {"labels": {"alertname": "x" * 5000}},
    ],
)
def test_one_bad_alert_does_not_cost_the_others(broken):
    """It is kept aside with a reason, and the rest of its group counts."""
    found = parse_notification(body(alert(), alert() | broken, alert(device="rail1")))
    assert [a.labels["device"] for a in found.alerts] == ["rail0", "rail1"]
    (letter,) = found.dead_letters
    assert letter.reason
    assert len(letter.body) <= 4096


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"version": "3", "alerts": []}',
        b'{"version": 4, "alerts": []}',
        b'{"version": "4"}',
        b'{"version": "4", "alerts": {}}',
        b'{"version": "4", "alerts": NaN}',
        b"[" * 100_000,
        b'{"version": "4", "alerts": [' + b"[" * 100_000,
        b'{"version": "4", "alerts": [], "truncatedAlerts": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_webhook_is_refused(text):
    """PayloadError, and nothing else: the only case that is answered 400."""
    with pytest.raises(PayloadError):
        parse_notification(text)


def test_fuzzed_bodies_never_break_the_parser():
    """20,000 mutants of a good body: each is read, partly dead-lettered, or refused; and what is read of a NIC to act
    on is what the body says, as the parser of the standard library reads it.
    """
    named = 0
    chance = random.Random(7)
    seed = body(alert(), alert(device="rail1", status="resolved"))
    for _ in range(20_000):
        try:
            text = mutant(seed, chance)
            found = parse_notification(text)
        except PayloadError:
            continue
        for one in found.alerts:
            assert all(isinstance(k, str) and isinstance(v, str) for k, v in one.labels.items())
            json.dumps(one.labels).encode()
        nics = {nic for one in found.alerts if (nic := nic_of(one.labels)) is not None}
        named += len(nics)
        if nics:
            assert nics <= named_nics(text), text
    assert named > 1000


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_any_json_in_the_place_of_an_alert(value):
    """An alert may be anything at all."""
    try:
        text = json.dumps(webhook(value), allow_nan=False).encode()
    except ValueError:
        return  # no JSON
    found = parse_notification(text)
    assert len(found.alerts) + len(found.dead_letters) == 1


def test_polled_alerts():
    """`GET /api/v2/alerts`: active and suppressed ones; what cannot be read is another's."""
    one = {
        "labels": alert()["labels"],
        "fingerprint": "f",
        "startsAt": "2026-11-21T06:00:00.000Z",
        "status": {"state": "active", "silencedBy": [], "inhibitedBy": []},
    }
    silenced = one | {"fingerprint": "s", "status": {"state": "suppressed"}}
    found = parse_polled(json.dumps([one, silenced, {"labels": 3}, 7]).encode())
    assert [(a.fingerprint, a.suppressed) for a in found] == [("f", False), ("s", True)]
    with pytest.raises(PayloadError):
        parse_polled(b"<html>")


def test_what_takes_a_multiple_of_its_size_is_refused_unread() -> None:
    """Two bytes a value, which makes 70 of it: 10 MiB of them took 370 MiB, and 64 MiB are allowed."""
    with pytest.raises(TooManyAlertsError, match="4000001 values in one body, 4000000 are taken"):
        parse_notification(b'{"version":"4","alerts":[' + b"0," * 4_000_000 + b"0]}", max_alerts=1)
