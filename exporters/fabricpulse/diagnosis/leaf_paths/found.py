"""What is found of the paths of leaves, as it goes from process to process. Pure; without numpy, for the daemon."""

from enum import StrEnum

import msgspec

# Leaves that are reported by name, at most, and next hops of each: all are counted.
MOST_LEAVES, MOST_HOPS = 256, 64


class State(StrEnum):
    """Of a leaf. UNKNOWN : too few of its paths are traced to tell, or it has no two siblings."""

    WHOLE = "whole"
    FEWER = "fewer"
    UNKNOWN = "unknown"


class FewerPaths(msgspec.Struct, frozen=True):
    """A leaf with fewer next hops than most of its siblings. live : that it has; expected : that most siblings have.
    missing : those that are known by name. since_s : when it last had as many; None: not since watched_s. Moments are
    monotonic seconds.
    """

    leaf: str
    network: str
    live: int
    expected: int
    siblings: int
    missing: tuple[str, ...]
    since_s: float | None
    watched_s: float


class LeafPaths(msgspec.Struct, frozen=True):
    """All leaves: how many are whole, have fewer, are unknown; those that have fewer, the most affected first."""

    whole: int = 0
    fewer: int = 0
    unknown: int = 0
    leaves: tuple[FewerPaths, ...] = ()
