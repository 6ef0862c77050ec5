"""The coordinator's table of channels under libFuzzer (or a mutator of our own), with AddressSanitizer and
UndefinedBehaviorSanitizer; tests/fixtures/native/fuzzing.py says how to search for long."""

import struct
from pathlib import Path

import pytest
from tests.fixtures.native.fuzzing import SECONDS, run_target
from tests.fixtures.native.programs import native

from fabricpulse.clocksync.wire.datagram import pack_request
from fabricpulse.clocksync.wire.messages import (
    PROTOCOL,
    Channel,
    EdgeReport,
    Line,
    Quorum,
    RoundReport,
    pack_edges,
)

RUNS = 6_000
LONGEST = 16_384


def step(what: int, which: int = 0, data: bytes = b"") -> bytes:
    """One step of the harness."""
    return struct.pack("<BBH", what, which, len(data)) + data


def parts(sequence: int, edges: int) -> list[bytes]:
    """What a sidecar sends; the harness signs it."""
    block = pack_edges([EdgeReport(10**18, 5, 0, 500_000, 20, 5_000, 2_000, k, 0) for k in range(edges)])
    report = RoundReport(
        PROTOCOL, "a", 1, 1, 10**18, block, Line(10**18, 0, 0, 1_000), None, "", 0, None,
        quorum=Quorum(10**9, 3, "a", anchored=False),
    )  # fmt: skip
    return pack_request(Channel(0, bytes(range(16))), sequence, report)


def request(sequence: int, edges: int) -> bytes:
    """A report of one datagram."""
    (data,) = parts(sequence, edges)
    return data


def seeds() -> dict[str, bytes]:
    """Steps of a fleet: hosts come, report, are answered, repeat themselves, leave and come again."""
    last, *others = reversed(parts(0, 132))
    opened = b"".join(step(2, key) for key in range(1, 5))
    reports = b"".join(step(1, which, request(7, edges)) for which, edges in enumerate((0, 1, 5, 33)))
    solve = step(4, 12, bytes(5 * 8))
    closed = step(3, 1)
    in_parts = step(9, 2, last) + b"".join(step(17, 2, part) for part in others)
    return {
        "parts": opened + in_parts * 5 + step(17, 2, last) + step(4, 12, bytes(132 * 8)) + in_parts,
        "overtaken": opened
        + in_parts[: -len(step(17, 2, others[-1]))]
        + step(9, 2, request(0, 3))
        + in_parts,
        "steps": opened + reports + solve + reports + solve,
        "many_at_once": opened + b"".join(step(9, 2, request(0, 3)) for _ in range(7)) + solve,
        "leases_end": opened
        + reports
        + closed
        + step(2, 9)
        + solve
        + step(2, 10)
        + step(9, 1, request(0, 2)),
        # A number that is free is given out again, also when fewer channels than that are open by now.
        "numbers_come_back": opened + closed * 2 + step(2, 5) + step(3, 2) + step(3, 4) + solve + step(2, 6),
        "strangers": opened + step(0, 1, request(1, 2)) + step(0, 1, request(1, 2)[:100]),
        "resets": step(5, 3, request(1, 2)) * 20 + step(13, 3, request(1, 2)),
    }


@pytest.mark.build
@pytest.mark.timeout(900 + SECONDS)  # a sanitized build on a busy machine, and the search
def test_no_input_breaks_the_table(tmp_path: Path) -> None:
    """Strangers are never believed, nothing counts twice, no answer is longer than what it answers, resets are few."""
    tried = run_target(native("report_fuzz", "fuzz"), seeds(), tmp_path, RUNS, longest=LONGEST)
    assert tried >= RUNS or SECONDS
