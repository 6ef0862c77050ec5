"""SIGHUP and POST /-/reload apply the policy, or say what was refused."""

import signal

import pytest
import yaml
from tests.fixtures.remediation.stack import Stack, alert, request, webhook
from tests.fixtures.waiting import wait_for

GAUGE = "fabricpulse_config_last_reload_successful "


@pytest.fixture
def receiver(stack: Stack) -> Stack:
    """A receiver that acts, with an agent and a process."""
    stack.start_all()
    return stack


def edit(stack: Stack, **settings: object) -> None:
    path = stack.folder / "receiver.yml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | settings))


def test_auto_to_observe_stops_acting(receiver):
    """The receiver said "reloaded" and acted on."""
    assert receiver.metric(GAUGE) == 1
    edit(receiver, rules=[{"alert": "FabricNicFlapping", "mode": "observe"}])
    assert request(f"{receiver.url}/-/reload", b"") == (200, "reloaded\n")
    receiver.post(webhook(alert()))
    wait_for(lambda: receiver.get("/api/v1/episodes"), 10, "episode")
    assert receiver.actions() == []
    (line,) = [line for line in receiver.get("/api/v1/events") if line["event"] == "policy_reloaded"]
    assert list(line["detail"]["changes"]) == ["rules.FabricNicFlapping"]
    assert receiver.get("/api/v1/status")["rules"][0]["mode"] == "observe"
    # Read again without a change it writes nothing: who may reload must not fill the journal.
    assert request(f"{receiver.url}/-/reload", b"") == (200, "reloaded\n")
    assert [line["event"] for line in receiver.get("/api/v1/events")].count("policy_reloaded") == 1
    # ... and back, by signal: what fires is decided on at once.
    edit(receiver, rules=[{"alert": "FabricNicFlapping", "mode": "auto"}])
    assert receiver.receiver is not None
    receiver.receiver.send_signal(signal.SIGHUP)
    receiver.wait_phase("avoided")


def test_a_broken_file_keeps_the_old_policy_and_says_so(receiver):
    """500 with the reason, the metric at 0, and the old rules in force; a good file mends it."""
    path = receiver.folder / "receiver.yml"
    good = path.read_text()
    for text, sentence in (("rules: [", "not valid YAML"), (good + "gaurds: {}\n", "did you mean 'guards'?")):
        path.write_text(text)
        status, answer = request(f"{receiver.url}/-/reload", b"")
        assert status == 500
        assert sentence in answer
        assert receiver.metric(GAUGE) == 0
    receiver.post(webhook(alert()))
    receiver.wait_phase("avoided")
    path.write_text(good)
    assert request(f"{receiver.url}/-/reload", b"")[0] == 200
    assert receiver.metric(GAUGE) == 1


def test_a_journal_cannot_move_while_it_is_in_use(receiver):
    """Refused as a whole, also what could have been applied."""
    edit(receiver, journal="/tmp/elsewhere.db", rules=[{"alert": "FabricNicFlapping", "mode": "observe"}])  # noqa: S108
    status, answer = request(f"{receiver.url}/-/reload", b"")
    assert (status, "journal cannot change without a restart; nothing was applied" in answer) == (500, True)
    assert receiver.get("/api/v1/status")["rules"][0]["mode"] == "auto"
