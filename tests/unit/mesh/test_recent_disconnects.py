"""When NICs were disconnected lately, as the exposition says it."""

import math

from fabricpulse.mesh.recent_disconnects import KEPT_S, MOST, STATE_KEPT_S, RecentDisconnects

NIC = ("rail0", "rail0")
OTHER = ("rail1", "rail1")


def test_ages_are_the_last_first_and_end() -> None:
    """Each NIC has its own; what is older than the longest window is left out."""
    recent = RecentDisconnects(0.0)
    for time_s in (100.0, 200.0, 450.0):
        recent.disconnected(NIC, time_s)

    assert recent.ages(NIC, 500.0) == [50.0, 300.0, 400.0]
    assert recent.ages(OTHER, 500.0) == []
    assert recent.ages(NIC, 200.0 + KEPT_S) == [KEPT_S - 250.0]


def test_a_nic_that_flaps_for_days_keeps_few_times() -> None:
    """No more than the last twenty."""
    recent = RecentDisconnects(0.0)
    for number in range(1000):
        recent.disconnected(NIC, float(number))

    assert recent.ages(NIC, 1000.0) == [float(age) for age in range(1, MOST + 1)]


def test_a_state_is_recent_after_each_change_and_after_the_start() -> None:
    """A rule that looks back for the last value must find the recovery, also that of an exporter's restart."""
    recent = RecentDisconnects(1000.0)
    assert recent.is_recent(NIC, 1000.0 + STATE_KEPT_S - 1)
    assert not recent.is_recent(NIC, 1000.0 + STATE_KEPT_S)

    recent.disconnected(NIC, 5000.0)
    recent.connected(NIC, 90_000.0)
    assert recent.is_recent(NIC, 90_000.0 + STATE_KEPT_S - 1)
    assert not recent.is_recent(NIC, 90_000.0 + STATE_KEPT_S)
    assert not recent.is_recent(OTHER, 90_000.0)


def test_a_nic_flaps_until_too_few_times_are_within_the_window() -> None:
    """The third last time counts, of each NIC its own; fewer never flap."""
    recent = RecentDisconnects(0.0)
    for time_s in (100.0, 200.0, 450.0):
        assert recent.flapping_until(NIC, 300.0, 3) == -math.inf
        recent.disconnected(NIC, time_s)

    assert recent.flapping_until(NIC, 300.0, 3) == 400.0
    assert recent.flapping_until(NIC, 300.0, 2) == 500.0
    recent.disconnected(NIC, 460.0)
    assert recent.flapping_until(NIC, 300.0, 3) == 500.0
    assert recent.flapping_until(OTHER, 300.0, 1) == -math.inf
