"""Replay: deliveries of the past through a policy, with nothing but the deliveries known."""

import json

import pytest
from tests.fixtures.remediation.stack import alert as document
from tests.fixtures.remediation.stack import webhook
from tests.unit.remediation.world import START, alert, config

from fabricpulse.remediation.receiver.replay import Replay, past_of

DAY = 86_400.0


def events(run):
    return [(round(line.at - START), line.subject, line.event) for line in run.lines]


def flap(run, at, host="h0"):
    run.deliver(at, [alert(host, starts_at=at)])
    run.deliver(at + 60, [alert(host, starts_at=at, firing=False)])


def test_out_and_back_at_the_times_of_the_policy():
    """Settle window and hold of the policy, not of the journal."""
    text = "rules: [{alert: FabricNicFlapping, mode: auto}]\nhold: {initial_s: 600, jitter: 0}\nguards: {settle_s: 5}"
    run = Replay(config(text), {})
    flap(run, START)
    run.advance(START + DAY)
    assert [e[1:] for e in events(run)] == [("h0/rail0", "nic.avoid"), ("h0/rail0", "nic.restore")]
    out, back = (e[0] for e in events(run))
    assert 5 <= out <= 7
    assert 660 <= back <= 690


@pytest.mark.parametrize(
    ("mode", "expected"), [("observe", []), ("dry_run", ["would_avoid"]), ("approve", ["awaiting_approval"])]
)
def test_modes_that_do_not_act(mode, expected):
    """Say what they would."""
    run = Replay(config(f"rules: [{{alert: FabricNicFlapping, mode: {mode}}}]"), {})
    run.deliver(START, [alert()])
    run.advance(START + 100)
    assert [line.event for line in run.lines] == expected


def test_a_leaf_that_fails_takes_out_nothing():
    """Sixteen hosts of a rail at once, days later a single NIC: one action."""
    inventory = {f"h{i}": frozenset({"rail0", "rail1"}) for i in range(40)}
    text = "rules: [{alert: FabricNicFlapping, mode: auto}]\nguards: {settle_s: 5}"
    run = Replay(config(text), inventory)
    run.deliver(START, [alert(f"h{i}") for i in range(16)])
    run.deliver(START + 100, [alert(f"h{i}", firing=False) for i in range(16)])
    run.deliver(START + 3 * DAY, [alert("h3", starts_at=START + 3 * DAY)])
    run.advance(START + 3 * DAY + 60)
    blocked = [line for line in run.lines if line.event == "blocked"]
    assert {line.detail["reason"] for line in blocked} == {"shared_cause"}
    assert [line.subject for line in run.lines if line.event == "nic.avoid"] == ["h3/rail0"]


def test_what_an_export_holds():
    """Decisions since the first delivery, and deliveries in their order; nonsense is named with its line."""
    body = json.dumps(webhook(document()))
    lines = [
        {"kind": "transition", "at": 5.0, "subject": "h0/rail0", "event": "nic.avoid", "detail": {}},
        {"kind": "transition", "at": 50.0, "subject": "h0/rail0", "event": "nic.avoid", "detail": {}},
        {"kind": "transition", "at": 51.0, "subject": "h0/rail0", "event": "sent", "detail": {}},
        {"kind": "delivery", "received_at": 60.0, "body": body},
        {"kind": "delivery", "received_at": 40.0, "body": body},
        {"kind": "delivery", "received_at": 41.0, "body": "nonsense"},
    ]
    decided, deliveries = past_of(json.dumps(line) for line in lines)
    assert [line.at for line in decided] == [50.0]
    assert [at for at, _ in deliveries] == [40.0, 60.0]
    for text in ("nonsense", "[]", '{"kind": "transition"}', '{"kind": "delivery", "body": 3}'):
        with pytest.raises(ValueError, match="line 1 is not one of an export"):
            past_of([text])
