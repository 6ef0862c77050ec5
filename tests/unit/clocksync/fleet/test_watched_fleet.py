"""Oscillators that turn while all engines watch, in virtual time."""

import pytest
from tests.bench.clocksync.turns import play


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "victims"), [(1, 1), (1, 2), (0, 2)])
def test_no_bound_is_false_for_longer_than_delays_take_to_be_known(seed: int, victims: int) -> None:
    """Six turns by 5 to 500 ppm, each as the ones before have just been corrected: not beyond two intervals, as what a
    packet shows is known an interval after it, and engines look each 2 ms here. And all are synchronized again once
    what was measured before is forgotten: no clock that is right is contradicted.
    """
    rows = play(seed, victims)
    assert max(row.back_s for row in rows) < 12, rows
    assert sum(row.reads for row in rows) > 12_000
    assert sum(row.false for row in rows) == 0, rows
