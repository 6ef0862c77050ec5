"""32-bit counters: a wrap goes on, a reset falls."""

import random

import pytest

from fabricpulse.nic.counter_wrap import WRAP, WrappingCounter


def run(values: list[int]) -> list[int]:
    counter = WrappingCounter()
    return [counter.update(value) for value in values]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5, 10, 10], [5, 10, 10]),
        ([WRAP - 10, 5], [WRAP - 10, WRAP + 5]),
        ([WRAP - 10, 5, WRAP - 3, 1], [WRAP - 10, WRAP + 5, 2 * WRAP - 3, 2 * WRAP + 1]),
        ([1000, 3], [1000, 3]),
        ([WRAP // 2, 3, 9], [WRAP // 2, 3, 9]),
    ],
    ids=["grows", "wraps", "wraps twice", "reset from a small value", "reset from half of the range"],
)
def test_wrap_or_reset(values, expected):
    """A counter of 32 bits that falls from near its end has wrapped; from lower it was reset, and is exported so."""
    assert run(values) == expected


def test_a_known_reset_is_never_a_wrap():
    """The port flapped in between: the driver began anew, however near the old value was to 2^32."""
    counter = WrappingCounter()
    counter.update(WRAP - 2)
    assert counter.update(1, reset_likely=True) == 1


def test_a_counter_on_a_new_kernel_may_pass_32_bits():
    assert run([WRAP + 5, WRAP + 9, 3]) == [WRAP + 5, WRAP + 9, 3]


@pytest.mark.parametrize("seed", range(10))
def test_increments_below_half_a_wrap_per_reading_are_followed_exactly(seed):
    """Random increments, many wraps: the widened value is the truth throughout."""
    rng = random.Random(seed)
    counter, truth = WrappingCounter(), rng.randrange(WRAP)
    first = truth
    counter.update(truth)
    # The load is known by a first step before anything wraps.
    step = rng.randrange(1 << 20, 1 << 28)
    for _ in range(200):
        truth += rng.randrange(step // 8, step)
        assert counter.update(truth % WRAP) == truth
    assert truth - first > WRAP // 16
