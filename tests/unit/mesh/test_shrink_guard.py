"""A membership that loses many hosts at once is held back, and never for ever."""

from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.mesh.shrink_guard import ShrinkGuard


def hosts(count):
    return frozenset(f"h{number}" for number in range(count))


@given(st.integers(1, 200), st.integers(0, 200), st.floats(0, 1))
def test_what_is_held_back(before, after, share):
    """Exactly what loses more than the share; what grows or stays never is."""
    guard = ShrinkGuard(share, 60)
    lost = max(before - after, 0)
    assert guard.admit(hosts(before), hosts(after), 0.0) == (lost <= share * before)
    assert guard.holds == (lost > share * before)


def test_a_smaller_membership_is_taken_when_it_lasts():
    guard = ShrinkGuard(0.5, 60)
    for now in range(0, 60, 2):
        assert not guard.admit(hosts(10), hosts(2), float(now))
    assert guard.admit(hosts(10), hosts(2), 60.0)
    assert not guard.holds


def test_another_small_one_begins_its_time_anew():
    """A source that changes its mind each time is not believed."""
    guard = ShrinkGuard(0.5, 60)
    for now in range(0, 600, 10):
        assert not guard.admit(hosts(10), hosts(2 + now // 10 % 2), float(now))


def test_the_fleet_is_back():
    """A membership that is whole again is taken at once, and nothing is held any more."""
    guard = ShrinkGuard(0.5, 60)
    guard.admit(hosts(10), hosts(2), 0.0)
    assert guard.admit(hosts(10), hosts(10), 1.0)
    assert not guard.holds


def test_a_person_may_confirm():
    """Once, for what is held then: a confirmation of nothing does not count for later."""
    guard = ShrinkGuard(0.5, 60)
    assert not guard.admit(hosts(10), hosts(2), 0.0)
    guard.confirm()
    assert guard.admit(hosts(10), hosts(2), 1.0)
    guard.confirm()  # of nothing
    assert not guard.admit(hosts(10), hosts(2), 2.0)


def test_the_first_membership_is_whole():
    assert ShrinkGuard(0.0, 60).admit(frozenset(), hosts(3), 0.0)
