"""Who may report for a host where agents have no identity of their own."""

from fabricpulse.remediation.receiver.web import reporters as module
from fabricpulse.remediation.receiver.web.reporters import Reporters

OWN, STRANGER, THIRD = "10.0.0.1", "10.0.0.66", "10.0.0.67"
LOST_S = 15.0


def admits(reporters: Reporters, address: str, now: float, host: str = "h0") -> bool:
    return reporters.admits(host, address, now, LOST_S)


def established(reporters: Reporters, address: str = OWN, since: int = -700, until: int = 0) -> None:
    for now in range(since, until + 1, 5):
        assert admits(reporters, address, now)


def test_a_stranger_does_not_report_for_a_host_that_does():
    """Nor once it has stopped for a moment."""
    reporters = Reporters()
    established(reporters)
    assert not admits(reporters, STRANGER, 5)
    assert admits(reporters, OWN, 10)
    assert not admits(reporters, STRANGER, 21)


def test_who_is_first_does_not_keep_the_agent_out():
    """A stranger who reports once the receiver has started, or before an agent has. Nor as the second one of a host
    that is silent for ever."""
    reporters = Reporters()
    for now in range(0, 86_400, 10):
        assert admits(reporters, STRANGER, now)
        assert admits(reporters, OWN, now + 1)
    reporters = Reporters()
    established(reporters, THIRD)
    for now in range(20, 86_400, 10):
        assert admits(reporters, STRANGER, now)
        assert admits(reporters, OWN, now + 1)


def test_who_is_first_by_ten_minutes_has_the_host_until_he_stops_or_the_receiver_does():
    """No address says which of two is the agent's; the runbook names what does."""
    reporters = Reporters()
    established(reporters, STRANGER)
    for now in range(5, 3_600, 5):
        assert not admits(reporters, OWN, now)
        assert admits(reporters, STRANGER, now)
    assert admits(reporters, OWN, 3_600 + LOST_S)
    assert admits(Reporters(), OWN, 5)


def test_two_reports_with_a_long_pause_shut_nobody_out():
    """Ten minutes without any report are not ten minutes alone; of one that was there for long a pause is a restart."""
    reporters = Reporters()
    assert admits(reporters, STRANGER, 0)
    assert admits(reporters, STRANGER, 650)
    assert admits(reporters, OWN, 651)
    reporters = Reporters()
    established(reporters)
    assert admits(reporters, OWN, 100)
    assert not admits(reporters, STRANGER, 101)


def test_a_host_whose_address_has_changed_is_not_lost():
    """Its new one counts before its agent counts as lost."""
    reporters = Reporters()
    established(reporters)
    assert not admits(reporters, STRANGER, 11)
    assert admits(reporters, STRANGER, 12)
    assert admits(reporters, STRANGER, 14)


def test_who_has_reported_for_longer_has_the_host_back():
    """A stranger who began while an agent was started anew does not keep it out; one that reports for longer than the
    host did, does: that is its new address."""
    reporters = Reporters()
    established(reporters)
    established(reporters, STRANGER, 15, 650)
    assert not admits(reporters, THIRD, 651)
    assert admits(reporters, OWN, 655)
    assert not admits(reporters, STRANGER, 656)
    established(reporters, STRANGER, 700, 2100)
    assert not admits(reporters, OWN, 2101)


def test_an_address_of_several_hosts_says_nothing():
    """A proxy, of which there may be two, or address translation."""
    reporters = Reporters()
    assert admits(reporters, OWN, 0)
    assert admits(reporters, OWN, 0, "h1")
    for now in range(1, 1000):
        for host in ("h0", "h1"):
            assert admits(reporters, OWN, now, host)
    assert admits(reporters, STRANGER, 1000)
    assert admits(reporters, OWN, 1001)


def test_an_address_that_is_used_again_is_that_of_one_host():
    """A host that is no more had it before."""
    reporters = Reporters()
    assert admits(reporters, OWN, -5000, "retired")
    established(reporters)
    assert not admits(reporters, STRANGER, 1)


def test_who_is_silent_for_a_day_is_forgotten():
    """The next one is the first."""
    reporters = Reporters()
    assert admits(reporters, OWN, 0)
    assert admits(reporters, STRANGER, 86_401)
    assert reporters._first["h0"].address == STRANGER


def test_made_up_hosts_push_out_none_that_was_there(monkeypatch):
    """They push out one another."""
    monkeypatch.setattr(module, "MAX_HOSTS", 3)
    reporters = Reporters()
    established(reporters)
    for number in range(10):
        assert admits(reporters, STRANGER, 1, f"made-up{number}")
    assert len(reporters._first) == 3
    assert not admits(reporters, STRANGER, 2)
    assert sum(map(len, reporters._hosts_of.values())) == 3
