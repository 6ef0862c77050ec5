"""Types of the native module built from clocksync/native/heartbeat."""

class Heartbeat:
    """Keeps `word` of a clock page (ClockPageWriter.watched_until_ns) ahead of CLOCK_MONOTONIC_RAW, from a thread: by
    40 ms at most, by 100 ms where no real-time priority is permitted.
    """

    def __init__(self, word: memoryview) -> None:
        """Raises OSError when there can be no other thread."""

    def go_on_until(self, raw_ns: int) -> None:
        """And no further than this; nowhere at first."""

    def stop(self) -> None:
        """Leaves the word as it is."""
