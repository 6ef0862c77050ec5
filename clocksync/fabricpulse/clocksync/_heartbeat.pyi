"""Types of the native module built from clocksync/native/heartbeat."""

import numpy as np
from numpy.typing import NDArray

class Heartbeat:
    """Keeps `word` of a clock page (ClockPageWriter.watched_until_ns) ahead of CLOCK_MONOTONIC_RAW, from a thread: by
    40 ms at most, by 100 ms where no real-time priority is permitted.
    """

    def __init__(self, word: memoryview) -> None:
        """Raises OSError when there can be no other thread."""

    def go_on_until(self, raw_ns: int, contradictions: int = 0) -> None:
        """And no further than this; nowhere at first, and nowhere if the contradictions of what is followed are not as
        many as the caller has handled.
        """

    def follow(self, counts: NDArray[np.uint64], interval_ns: int) -> None:
        """And only while the first of the `counts` (SampleReader.counts) goes up: samples of an engine whose trains on
        one edge are `interval_ns` apart. It may stand still for `silence_ns`. No further once the second, its
        contradictions, is another, until `go_on_until`; nor for 0.3 s after the fifth, its doubts.
        """

    def silence_ns(self) -> int:
        """Ten intervals between trains of what is followed; no more than a second, or three intervals."""

    def longest_silence_ns(self) -> int:
        """For how long samples stood still, at most, since the last call; 0: no longer than it may."""

    def stop(self) -> None:
        """Leaves the word as it is."""
