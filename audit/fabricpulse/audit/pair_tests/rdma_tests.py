"""What tests by RDMA WRITE mean: bandwidth as of TCP, and writes that do not come through. Pure.

Both ends have a RoCE v2 queue pair and talk over TCP between the same NICs. Where the other NIC answers no write all
the same, RoCE does not pass, and nothing needs to be compared.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from fabricpulse.audit.model import Measurement, clip
from fabricpulse.audit.node.rdma_wire import RdmaResult
from fabricpulse.audit.node.wire import TransferResult
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.path_tests import PathDirection, PathDirections, ends_of
from fabricpulse.audit.pair_tests.transfer_tests import (
    BUSY,
    LIMITED,
    UNJUDGED,
    UNSTATED,
    Speed,
    evaluate_speeds,
    fastest,
    limit_of,
    measured,
    unhindered,
)

# Soft-RoCE answers by its host's processors: from this share of the time on that it had none, that may be why a write
# was not answered, for a second and in four tries.
MOST_STARVED = 0.3


@dataclass(frozen=True)
class Written:
    """A way and what its test has measured. attempts : tests that this is the result of. states_limit : as in
    Transferred."""

    way: PathDirection
    result: RdmaResult
    attempts: int = 1
    states_limit: bool = True


def evaluate_rdma(done: Iterable[Written], rate_bps: float) -> tuple[list[Measurement], list[str]]:
    """A measurement a way, its best test, and notes about what could not be judged. Tests that did not come to an end
    say nothing."""
    by_way: dict[tuple[Nic, Nic], list[Written]] = defaultdict(list)
    for one in done:
        if one.result.bps is not None or one.result.failed:
            by_way[one.way.source, one.way.target].append(one)
    found: list[Measurement] = []
    notes: list[str] = []
    speeds: dict[str, list[Speed]] = defaultdict(list)
    for tries in by_way.values():
        way, count = tries[0].way, sum(one.attempts for one in tries)
        seen = max(one.result.bps or 0.0 for one in tries)
        if seen:
            could = max(unhindered(_as_transfer(one.result)) for one in tries)
            limit = limit_of(_as_transfer(one.result) for one in tries)
            states = all(one.states_limit for one in tries)
            speeds[way.network].append(Speed(way, seen, could, count, limit, states))
            continue
        busy = any(max(one.result.starved, one.result.stolen) >= MOST_STARVED for one in tries)
        found.append(measured("rdma", way, 0.0, None if busy else False, count, detail=BUSY if busy else ""))
    for network, ways in sorted(speeds.items()):
        found += evaluate_speeds("rdma", network, ways, rate_bps, notes, fastest(speeds.values()))
    for why, reason in UNJUDGED:
        if ways_of := sorted({f"{m.source_host} to {m.target_host}" for m in found if m.detail == why}):
            notes.append(
                clip(f"{len(ways_of)} ways are not judged by RDMA, {reason}: {', '.join(ways_of[:6])}")
            )
    return sorted(found), notes


def _as_transfer(result: RdmaResult) -> TransferResult:
    return TransferResult(
        bps=result.bps, starved=result.starved, stolen=result.stolen, limit_bps=result.limit_bps
    )


def recalled(before: Iterable[Measurement], ways: PathDirections) -> list[Written]:
    """Tests of an interrupted run, as if they had just been made."""
    found = []
    for m in before:
        if m.kind == "rdma" and ways.knows(*ends_of(m)):
            starved = 0.999 if m.detail == BUSY else 0.0
            limit = m.value if m.detail == LIMITED else None
            result = RdmaResult(bps=m.value or None, failed=not m.value, starved=starved, limit_bps=limit)
            found.append(Written(ways.way(*ends_of(m)), result, m.attempts, m.detail != UNSTATED))
    return found
