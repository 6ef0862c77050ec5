"""Leaves with fewer live paths than their siblings, as JSON and as metrics. Pure."""

from typing import Any

from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.rfc3339 import rfc3339
from fabricpulse.diagnosis.daemon import metrics as m
from fabricpulse.diagnosis.leaf_paths.found import LeafPaths


def leaf_paths_document(found: LeafPaths, now_s: float, utc_ns: int) -> dict[str, Any]:
    """`leaf_paths` of `/api/v1/suspects`. now_s : monotonic, as in LeafPaths. utc_ns : the same moment since 1970."""

    def moment(at_s: float | None) -> str | None:
        return None if at_s is None else rfc3339(utc_ns - round((now_s - at_s) * 1e9), 0)

    return {
        "whole": found.whole,
        "fewer": found.fewer,
        "unknown": found.unknown,
        "leaves": [
            {
                "leaf": one.leaf,
                "network": one.network,
                "live": one.live,
                "expected": one.expected,
                "siblings": one.siblings,
                "missing": one.missing,
                "since": moment(one.since_s),
                "watched_since": moment(one.watched_s),
            }
            for one in found.leaves
        ],
    }


def expose_leaf_paths(out: Exposition, found: LeafPaths, now_s: float, utc_s: float) -> None:
    """Adds what is known. now_s, utc_s : as in `leaf_paths_document`, seconds."""
    out.add(m.LEAVES, ("whole",), found.whole)
    out.add(m.LEAVES, ("fewer",), found.fewer)
    out.add(m.LEAVES, ("unknown",), found.unknown)
    for one in found.leaves:
        out.add(m.LEAF_PATHS_MISSING, (one.leaf, one.network), one.expected - one.live)
        if one.since_s is not None:
            out.add(m.LEAF_PATHS_SINCE, (one.leaf, one.network), utc_s - (now_s - one.since_s))
