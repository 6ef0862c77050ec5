"""One reading of two clocks of a host at the same moment, which the kernel calls a cross-timestamp."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CrossTimestamp:
    """What both clocks showed at one moment, ns.

    host_ns : CLOCK_REALTIME, or the lab's virtual clock. raw_ns : CLOCK_MONOTONIC_RAW. error_ns : how far their
    difference may be off.
    """

    host_ns: int
    raw_ns: int
    error_ns: int = 0
