"""Who may report for a host where agents have no identity of their own."""

from fabricpulse.remediation.receiver.web import reporters as module
from fabricpulse.remediation.receiver.web.reporters import Reporters

OWN, STRANGER, THIRD = "10.0.0.1", "10.0.0.66", "10.0.0.67"
LOST_S = 15.0


def admits(reporters: Reporters, address: str, now: float, host: str = "h0") -> bool:
    return reporters.admits(host, address, now, LOST_S)


def test_a_stranger_does_not_report_for_a_host_that_does():
    """Nor once it has stopped for a moment."""
    reporters = Reporters()
    assert admits(reporters, OWN, 0)
    assert not admits(reporters, STRANGER, 5)
    assert admits(reporters, OWN, 10)
    assert not admits(reporters, STRANGER, 21)


def test_a_host_whose_address_has_changed_is_not_lost():
    """Its new one counts before its agent counts as lost; a third one does not then."""
    reporters = Reporters()
    assert admits(reporters, OWN, 0)
    assert not admits(reporters, STRANGER, 11)
    assert admits(reporters, STRANGER, 12)
    assert not admits(reporters, THIRD, 13)
    assert admits(reporters, STRANGER, 14)


def test_who_has_reported_for_longer_has_the_host_back():
    """A stranger who began while an agent was started anew does not keep it out; one that reports for longer than the
    host did, does: that is its new address."""
    reporters = Reporters()
    for now in range(0, 100, 5):
        assert admits(reporters, OWN, now)
    for now in range(115, 200, 5):
        assert admits(reporters, STRANGER, now)
    assert admits(reporters, OWN, 200)
    assert not admits(reporters, STRANGER, 201)
    for now in range(300, 600, 5):
        assert admits(reporters, STRANGER, now)
    assert not admits(reporters, OWN, 601)


def test_an_address_of_several_hosts_says_nothing():
    """A proxy, of which there may be two, or address translation."""
    reporters = Reporters()
    assert admits(reporters, OWN, 0)
    assert admits(reporters, OWN, 0, "h1")
    assert admits(reporters, STRANGER, 1)
    assert admits(reporters, OWN, 2)


def test_who_is_silent_for_a_day_is_forgotten():
    """The next one is the first."""
    reporters = Reporters()
    assert admits(reporters, OWN, 0)
    assert admits(reporters, STRANGER, 86_401)
    assert not admits(reporters, OWN, 86_402)


def test_made_up_hosts_push_out_none_that_was_there(monkeypatch):
    """They push out one another."""
    monkeypatch.setattr(module, "MAX_HOSTS", 3)
    reporters = Reporters()
    assert admits(reporters, OWN, 0)
    for number in range(10):
        assert admits(reporters, STRANGER, 1, f"made-up{number}")
    assert len(reporters._first) == 3
    assert not admits(reporters, STRANGER, 2)
    assert sum(reporters._hosts_of.values()) == 3
