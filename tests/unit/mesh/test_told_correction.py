"""Packets tell what turns the sender's stamps into fleet time: at each of them, however fast that changes."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fabricpulse.mesh._probe_engine import told_correction

MS = 1_000_000
SENT_NS, CORRECTION_NS = 1_800_000_000_000_000_000, -37_000_000_123


@pytest.mark.parametrize("ppm", [-1_000, -340, -3, 0, 0.2, 50, 500, 1_600])
@pytest.mark.parametrize("after_ns", [-95 * MS, -21 * MS, 1 * MS, 19 * MS, 38 * MS])
def test_a_correction_holds_at_stamps_of_another_train(ppm: float, after_ns: int) -> None:
    """What a host that turned is corrected by leaves its last train by 7 us at 340 ppm until the next."""

    def correction_ns(later_ns: int) -> int:
        return CORRECTION_NS + round(later_ns * ppm * 1e-6)

    rx_ns = SENT_NS + after_ns
    for later_ns in 0, 20_000, 40_000:  # packets of that train
        told_ns = told_correction(SENT_NS, CORRECTION_NS, rx_ns, correction_ns(after_ns), rx_ns + later_ns)
        assert abs(told_ns - correction_ns(after_ns + later_ns)) <= 1 + abs(after_ns) * 50e-9


@pytest.mark.parametrize(
    ("rx_ns", "then_ns"), [(SENT_NS, CORRECTION_NS), (SENT_NS + 20 * MS, 10**18), (0, -(10**18))]
)
def test_stamps_and_corrections_that_are_no_line_do_no_harm(rx_ns: int, then_ns: int) -> None:
    """A clock that was set anew between them, a broken stamp: nothing overflows, and no slope is without limits."""
    for at_ns in 0, SENT_NS - 20 * MS, SENT_NS, SENT_NS + 20 * MS, 2**63 - 1, -(2**63):
        told_ns = told_correction(SENT_NS, CORRECTION_NS, rx_ns, then_ns, at_ns)
        near = abs(at_ns - SENT_NS) <= 10**10
        assert abs(told_ns - CORRECTION_NS) <= (abs(at_ns - SENT_NS) * 1_700e-6 if near else 0)


@given(
    sent_ns=st.integers(-(2**62), 2**62),
    correction_ns=st.integers(-(2**62), 2**62),
    after_ns=st.integers(-(2**62), 2**62),
    change_ns=st.integers(-(2**62), 2**62),
    at_ns=st.integers(-(2**63), 2**63 - 1),
)
def test_no_stamp_and_no_correction_makes_a_steep_slope(
    sent_ns: int, correction_ns: int, after_ns: int, change_ns: int, at_ns: int
) -> None:
    """A peer's correction leaves what it said by 0.16 % of the time between stamps at most, and not at all where they
    are 10 s apart, whatever its page and stamps say.
    """
    rx_ns, then_ns = (max(-(2**62), min(2**62, ns)) for ns in (sent_ns + after_ns, correction_ns + change_ns))
    assume(abs(rx_ns - sent_ns) < 2**62 and abs(then_ns - correction_ns) < 2**62)
    told_ns = told_correction(sent_ns, correction_ns, rx_ns, then_ns, at_ns)
    near = abs(at_ns - sent_ns) <= 10**10
    assert abs(told_ns - correction_ns) <= (abs(at_ns - sent_ns) * 1_640e-6 if near else 0)
