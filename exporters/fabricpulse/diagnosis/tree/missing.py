"""What is missing for the fabric's tree, in sentences. Pure."""

from typing import Any

from fabricpulse.diagnosis.tree.coverage import LEAST_SLOTS, MOST_PAIRS, Coverage

# Fewer NICs have no tree.
LEAST_NICS = 3


NOT_YET = "nothing has been computed yet: that takes a minute from the first report of a mesh exporter"


def too_old(age_s: float, keep_s: float) -> str:
    """Why a tree that was computed is served no more. keep_s : how long a delay counts."""
    return (
        f"the last tree is of delays {age_s:.0f} s ago, and delays count for {keep_s:g} s: the coordinator's diagnosis "
        "process is stopped, or has no time"
    )


def nothing_learned(reason: str = NOT_YET) -> dict[str, Any]:
    """As topology_document, where there is no tree. reason : why."""
    lists: dict[str, Any] = {"nics": [], "groups": [], "miscabled": []}
    numbers = dict.fromkeys(
        ("hosts", "edges", "unseparated", "pairs", "temporary_pairs", "wanted_pairs", "sigma_ns", "placed"), 0
    )
    return {**numbers, "missing": [reason], **lists, "computed": None, "age_s": None}


def missing(coverage: Coverage, nics: int, slot_s: float) -> list[str]:
    """Sentences: what keeps pairs, or all, from being known, and what to do."""
    c, found = coverage, []
    if not c.hosts:
        return [
            "no mesh exporter reports here: is evidence.url, or membership.url, of the exporters this coordinator?"
        ]
    if nics < LEAST_NICS:
        found.append(f"{nics} NICs have no tree; {LEAST_NICS} are needed")
    if c.silent:
        found.append(
            f"{c.silent} of {c.hosts} hosts report no one-way delays: they need a mesh exporter of this version, and "
            "fleet time from a clocksync sidecar"
        )
    if c.without_delays:
        found.append(f"of {c.without_delays} of {c.pairs} edges no end reports a delay any more, or yet")
    if c.one_way:
        found.append(f"of {c.one_way} of {c.pairs} edges one end alone reports a delay; both are needed")
    if c.young:
        found.append(
            f"{c.young} of {c.pairs} edges have been measured for less than {LEAST_SLOTS * slot_s:g} s, with pauses, "
            "or by too few probes: wait"
        )
    if c.refused:
        found.append(f"{c.refused} edges are beyond the {MOST_PAIRS} that are kept")
    return found
