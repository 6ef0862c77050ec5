"""Patience: seconds on an idle machine, more on one that does other work too."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import count

import pytest
from tests.fixtures import waiting
from tests.fixtures.waiting import Patience, runnable_threads, wait_for


def spent_after(seconds: int, shares: Iterator[float]) -> float:
    """What of a patience is spent when it was asked once a second."""
    clock = count()
    patience = Patience(1e9, now=lambda: float(next(clock)), share=lambda: next(shares))
    for _ in range(seconds):
        patience.left()
    return patience.spent_s


def test_on_an_idle_machine_it_is_seconds() -> None:
    """With a core for everybody a second is a second."""
    assert spent_after(10, iter([1.0] * 11)) == 10.0


def test_a_fifth_of_a_core_makes_it_five_times_as_long() -> None:
    """Ten threads on two cores."""
    assert spent_after(10, iter([0.2] * 11)) == pytest.approx(2.0)


def test_a_load_that_begins_or_ends_between_two_calls_counts() -> None:
    """The smaller share of both ends of the time."""
    assert spent_after(3, iter([1.0, 0.1, 0.1, 1.0])) == pytest.approx(0.3)


def test_it_ends() -> None:
    """Also on a machine that is never idle: patience is longer there, not endless."""
    clock = count()
    patience = Patience(1.0, now=lambda: float(next(clock)), share=lambda: 0.125)
    assert [patience.left() for _ in range(8)] == [True] * 7 + [False]


def test_threads_that_run_are_counted() -> None:
    """Four busy loops are four more."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        wait_for(lambda: runnable_threads() >= 5, 30, "four busy loops and this thread")
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def test_wait_for_returns_the_value_or_names_the_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not there yet is waited for; the last error is reported; failed assertions fail at once."""
    answers: Iterator[object] = iter([OSError("refused"), ValueError("half"), 0, "", "here"])

    def ask() -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert wait_for(ask, 60, "an answer", poll_s=0) == "here"

    def refused() -> bool:
        raise OSError("refused")

    monkeypatch.setattr(waiting, "runnable_threads", lambda: 1)
    with pytest.raises(AssertionError, match=r"not within 0\.01 s .*: a server; OSError\('refused'\)"):
        wait_for(refused, 0.01, "a server", poll_s=0.001)

    def wrong() -> bool:
        raise AssertionError("two hosts disagree")

    with pytest.raises(AssertionError, match="two hosts disagree"):
        wait_for(wrong, 60, "nothing")
