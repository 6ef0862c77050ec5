"""What bounds the cost of the control socket (nccl_plugin/src/control/token_bucket.h), in simulated time."""

import random
import subprocess
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
from tests.fixtures.native.programs import native

ROOT = Path(__file__).parents[3]
MS = 1_000_000
START = 1000 * MS
Play = Callable[..., list[tuple[int, int]]]


@pytest.fixture
def play() -> Play:
    """Plays commands to a bucket of 2000 tokens a second and 64 at once; (tokens, ns until the next) of each `a`, and
    (tokens a second, whether it was time) of each `s`."""
    program = native("plugin_token_bucket", "address")

    def run(*commands: str) -> list[tuple[int, int]]:
        said = subprocess.run(
            [program, "2000", "64"], input="\n".join(commands), capture_output=True, text=True, check=True
        )
        return [(int(a), int(b)) for a, b in (line.split() for line in said.stdout.splitlines())]

    return run


def test_a_burst_and_then_the_rate(play: Play) -> None:
    """64 at once; of an hour's pause no more are left over."""
    assert play(f"a {START}", *["t"] * 64, f"a {START + 10 * MS}", f"a {START + 3_600_000 * MS}") == [
        (64, 0),
        (20, 0),
        (64, 0),
    ]


def test_the_next_token_is_half_a_millisecond_away_and_is_there_then(play: Play) -> None:
    """Who waits as long as it says finds one, and waits no longer than a token's time."""
    script, now = [f"a {START}", *["t"] * 64, f"a {START}"], START
    ((_, _), (none, wait)) = play(*script)
    assert none == 0
    for _ in range(20):
        assert 0 < wait <= MS // 2 + 2
        now += wait
        *_, (there, _) = play(*script, f"a {now}")
        assert there == 1
        script += [f"a {now}", "t", f"a {now}"]
        *_, (there, wait) = play(*script)
        assert there == 0


def test_emptied_it_fills_again(play: Play) -> None:
    """From the moment at which it was emptied, a token each half millisecond."""
    assert play(f"a {START}", "e", f"a {START}", f"a {START + MS}") == [
        (64, 0),
        (0, MS // 2 + 1),
        (2, 0),
    ]


def test_what_costs_more_than_there_is_is_paid_later(play: Play) -> None:
    """An answer that took as long as 104 small ones, with 64 at hand: none for the 20 ms of the debt, then one."""
    assert play(
        f"a {START}", "c 103.5", "t", f"a {START}", f"a {START + 20 * MS}", f"a {START + 22 * MS}"
    ) == [
        (64, 0),
        (0, 20_750_001),
        (0, 750_001),
        (3, 0),
    ]


def test_a_debt_is_a_whole_bucket_at_most(play: Play) -> None:
    """However long one answer took, the next waits as long as it takes to earn 64 tokens and one."""
    assert play(f"a {START}", "c 1000000", f"a {START}", f"a {START + 33 * MS}") == [
        (64, 0),
        (0, 32_500_001),
        (2, 0),
    ]


def test_however_many_ask_no_more_is_answered(play: Play) -> None:
    """Greedy clients that take whatever is there, at random times for three seconds: 64 and 2,000 a second, no more,
    and never more than one less."""
    dice = random.Random(7)
    at = [START]
    while at[-1] < START + 3_000 * MS:
        at.append(at[-1] + dice.randrange(1, 5 * MS))
    played = play(*chain.from_iterable((f"a {now}", "g") for now in at))
    taken = 0
    for now, (there, _) in zip(at, played, strict=True):
        taken += there
        most = 64 + (now - START) * 2000 / 1e9
        assert most - 1 - 1e-6 <= taken <= most + 1e-6


def test_a_clock_that_goes_back_gives_nothing(play: Play) -> None:
    assert play(f"a {START}", "e", f"a {START - 500 * MS}", f"a {START}") == [
        (64, 0),
        (0, MS // 2 + 1),
        (0, MS // 2 + 1),
    ]


def test_another_rate_counts_from_the_last_look_on(play: Play) -> None:
    """What was earned before is of the old rate, and there is no more than that."""
    assert play(f"a {START}", "e", f"a {START + 10 * MS}", "r 100", f"a {START + 20 * MS}") == [
        (64, 0),
        (20, 0),
        (21, 0),
    ]


def test_the_rate_is_a_share_of_what_the_process_uses(play: Play) -> None:
    """A hundredth of a processor is 500 tokens a second of 20 us: of a process that uses a tenth, 50. The least where
    it uses nothing, and before anything is known; the most where it uses whole processors; asked ten times a second."""
    second = 1000 * MS
    assert play(
        f"s {START} {5 * second}",
        f"s {START + second} {5 * second + 100 * MS}",
        f"s {START + second + 99 * MS} {5 * second + 100 * MS}",
        f"s {START + 2 * second} {7 * second}",
        f"s {START + second} {6 * second}",
    ) == [(10, 1), (50, 1), (10, 0), (100, 1), (10, 0)]
