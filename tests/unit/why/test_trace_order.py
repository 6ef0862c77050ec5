"""The check that live traces are put to finds a clock that is wrong by more than an all-reduce takes."""

from typing import Any

import pytest
from tests.fixtures.why.trace import order_of


def trace(error_us: float, bound_us: float = 10.0) -> dict[str, Any]:
    """Two ranks, three all-reduces of 20 ms, the second rank 5 ms late; its clock errs."""
    return {
        "traceEvents": [
            {
                "ph": "X",
                "ts": number * 1e5 + rank * (5e3 + error_us),
                "dur": 2e4 - rank * 5e3,
                "args": {"number": number, "rank": rank, "bound_us": bound_us},
            }
            for number in range(3)
            for rank in range(2)
        ]
    }


@pytest.mark.parametrize("error_us", [-10.0, 0.0, 10.0, 14e3])
def test_cause_before_effect(error_us: float) -> None:
    """What an all-reduce has room for is no contradiction, and the margin that is left is reported."""
    order = order_of(trace(error_us), 2)
    assert (order.collectives, order.wrong, order.alone) == (3, 0, 0)
    assert order.room_us == pytest.approx(min(15e3 - error_us, 20e3 + error_us, 15e3) + 20)


@pytest.mark.parametrize("error_us", [16e3, 1e6, -25e3])
def test_a_wrong_clock_is_found(error_us: float) -> None:
    assert order_of(trace(error_us), 2).wrong == 3
    assert order_of(trace(error_us, bound_us=2e6), 2).wrong == 0


def test_a_rank_that_is_not_seen_judges_nothing() -> None:
    assert order_of(trace(0.0), 3).collectives == 0
