"""How much a sender gives to one lane (nccl_plugin/src/core/lane_flow.h)."""

import subprocess
from typing import NamedTuple

import pytest
from tests.fixtures.native.programs import native

pytestmark = pytest.mark.build

KIB, MIB = 1 << 10, 1 << 20
LEAST_CHUNK, LEAST_WINDOW, LARGEST_WINDOW = 32 * KIB, 64 * KIB, 8 * MIB
FIRST_WINDOW = 128 * KIB
LARGEST_CHUNK = 1 * MIB  # kMaxChunkBytes of core/wire.h


class After(NamedTuple):
    """What a call returned, and the lane after it."""

    result: int
    in_flight: int
    rate: int
    window: int
    slow_start: bool
    posted: int
    delivered: int
    took_ns: int


def ask(*lines: str) -> list[After]:
    done = subprocess.run(
        [native("plugin_lane_flow", "address")],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    rows = ([int(word) for word in line.split()] for line in done.stdout.splitlines())
    return [After(r, f, rate, w, bool(s), *rest) for r, f, rate, w, s, *rest in rows]


def measured(rate: int, times: int = 40) -> list[str]:
    """Lines after which the lane's rate is within 1 % of `rate` bytes per second."""
    return [f"measure {LEAST_CHUNK} {rate // 100} 10000000 {1 << 40} 1000"] * times


def test_what_is_in_flight_never_goes_below_nothing() -> None:
    """A chunk that is settled twice, by its fence and by a late word, is counted once."""
    after = ask("sent 1000", "sent 500", "settled 1000", "settled 1000")
    assert [row.in_flight for row in after] == [1000, 1500, 500, 0]
    assert [after[0].result, after[1].result] == [0, 1], "its place among those of the incarnation"
    assert after[-1].delivered == 2000


def test_only_what_this_path_has_shown_is_shown() -> None:
    """Where a lane begins is a guess, also when it was raised or is another lane's; short chunks measure nothing."""
    short = f"measure {LEAST_CHUNK - 1} 1000000 10000000 {1 << 40} 1000"
    after = ask(
        "fade 64000000 1", short, "shown",
        *measured(50_000), "shown", "fade 64000000 2", "shown",
        "join", "shown", *measured(800_000, 1), "shown",
    )  # fmt: skip
    assert after[2].result == 0
    assert after[43].result == pytest.approx(50_000, rel=0.01)
    assert after[45].result == after[43].result < after[45].rate, "raised, not measured"
    assert after[47].result == 0, "another path"
    assert after[-1].result == 800_000, "the first measurement, whatever the guess was"


def test_a_new_incarnation_starts_with_nothing_in_flight_and_a_small_window() -> None:
    after = ask(*measured(1_000_000_000), "sent 4096", f"widen {MIB} 0 1", "join")
    assert after[-2].window > FIRST_WINDOW
    assert after[-1]._replace(rate=0, delivered=0) == After(0, 0, 0, FIRST_WINDOW, True, 0, 0, 0)


def test_after_an_incarnation_that_was_given_up_little_is_at_stake() -> None:
    """Once: the path may have become slow, and the rate measured before is none of it."""
    fast = measured(1_000_000_000)
    assert ask(*fast, "cautious")[-1][2:4] == (16_000_000, LEAST_CHUNK)
    assert ask(*fast, "cautious", *fast, "join")[-1].window == FIRST_WINDOW


def test_a_chunk_takes_some_milliseconds_within_its_limits() -> None:
    """Whole pages; the least before anything is known, and the largest on a lane as fast as memory."""
    assert ask("chunk 1")[0].result == LEAST_CHUNK
    middle = ask("join", *measured(20_000_000), "chunk 1")[-1].result
    assert middle == pytest.approx(0.004 * 20_000_000, rel=0.1)
    assert middle % 4096 == 0
    assert ask(*measured(10_000_000_000), *[f"widen {MIB} 0 1"], "chunk 1")[-1].result == LARGEST_CHUNK


def test_a_chunk_is_no_longer_than_the_window_unless_the_lane_is_alone() -> None:
    fast = ["join", *measured(500_000_000)]
    assert ask(*fast, "chunk 1")[-1].result == FIRST_WINDOW
    assert ask(*fast, "chunk 4")[-1].result == LARGEST_CHUNK


def test_slow_start_doubles_each_round_trip_and_ends_at_the_rate() -> None:
    """A window full of chunks that are held doubles it; then it is what the lane delivers in 25 ms."""
    rate = 40_000_000
    steps = [f"widen {FIRST_WINDOW // 4} 0 0"] * 4
    assert ask("join", *measured(400_000_000), *steps)[-1].window == 2 * FIRST_WINDOW
    done = ask("join", *measured(rate), *[f"widen {FIRST_WINDOW} 0 1"] * 8)[-8:]
    assert [row.result for row in done].count(1) == 1, "the end of slow start is reported once"
    assert not done[-1].slow_start
    assert done[-1].window == pytest.approx(0.025 * rate, rel=0.02)


def test_the_window_covers_the_way_back_of_the_words() -> None:
    rate = 40_000_000
    end = ask("join", *measured(rate), *[f"widen {MIB} 50000000 1"] * 8)[-1]
    assert end.window == pytest.approx(0.075 * rate, rel=0.02)


@pytest.mark.parametrize(("rate", "window"), [(1000, LEAST_WINDOW), (10_000_000_000, LARGEST_WINDOW)])
def test_the_window_has_limits(rate: int, window: int) -> None:
    """However slow or fast a lane was measured to be, also beside one that is as wide as may be."""
    assert ask("join", *measured(rate), *[f"widen {LARGEST_WINDOW} 0 1"] * 2)[-1].window == window


def test_small_chunks_say_nothing_of_the_rate() -> None:
    """They measure latency."""
    after = ask(f"measure {LEAST_CHUNK - 1} 1000000 10000000 {1 << 40} 5")[0]
    assert (after.result, after.rate) == (0, 0)


def test_a_measured_rate_is_not_believed_above_its_limit() -> None:
    """A clock that stood still would make a lane infinitely fast: a quarter of `most` at the first sample."""
    assert ask(f"measure {LEAST_CHUNK} {LARGEST_WINDOW} 1 1000000 5")[0].rate == 250_000
    assert ask(f"measure {LEAST_CHUNK} {LARGEST_WINDOW} 0 1000000 5")[0].rate == 250_000


def test_an_old_rate_fades_upwards_with_little_at_stake() -> None:
    """After 200 ms without a sample a slow lane is tried again: half as much again at most, within the ceiling."""
    slow = [*measured(1_000_000), f"widen {LARGEST_WINDOW} 0 1"]
    before, after = ask(*slow, "fade 1000000000 9000")[-2:]
    assert after.rate == pytest.approx(before.rate * 1.5, rel=0.01)
    assert after.window <= LEAST_WINDOW
    assert ask(*slow, "fade 1100000 9000")[-1].rate == 1_100_000
    unchanged = ask(*slow, "fade 10 9000")
    assert unchanged[-1].rate == unchanged[-2].rate, "fading never makes a lane slower"


def test_a_rate_is_stale_after_200_ms() -> None:
    at = 1000
    fresh, old = ask(*measured(1_000_000, 1), f"stale {at + 200_000_000}", f"stale {at + 200_000_001}")[1:]
    assert (fresh.result, old.result) == (0, 1)


def test_the_time_of_chunks_is_smoothed() -> None:
    """The first as it is, then an eighth of each."""
    assert [row.took_ns for row in ask("took 8000", "took 16000")] == [8000, 9000]
