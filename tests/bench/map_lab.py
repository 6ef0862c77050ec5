"""Gray loss on real links: until when one of three uplinks of a leaf is named, and whether anything else is."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

from tests.bench.rows import Rows, quantile
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.diagnosed_fleet import DiagnosedFleet

from fabricpulse.lab import Lab

# Seconds after which a loss counts as not found.
_PATIENCE_S = {60.0: 60, 20.0: 60, 5.0: 60, 1.5: 120, 0.5: 240, 0.1: 300}
_STAYS_S = 3.0


@contextmanager
def diagnosed_fleet() -> Iterator[DiagnosedFleet]:
    """Nine hosts, three leaves, three spines, all paths known."""
    with Lab(hosts=9, rails=1, spines=3, pods=3) as lab:
        yield DiagnosedFleet(lab)


def bench_gray(rows: Rows, percents: list[float], times: int) -> None:
    """The gray-loss table: each loss so often, on one link after the other, in turns up and down."""
    with diagnosed_fleet() as fleet:
        number = 0
        for percent in percents:
            took: list[float] = []
            named = others = 0
            for _ in range(times):
                leaf = fleet.lab.fabric.leaf_names[number % 3]
                spine = fleet.lab.fabric.spine_names[number // 3 % 3]
                up = number % 2 == 0
                number += 1
                wanted = ("link", leaf, spine) if up else ("link", spine, leaf)
                seconds, found = _played(fleet, leaf, spine, "out" if up else "in", percent)
                took += [seconds] if seconds is not None else []
                named += wanted in found
                others += len(found - {wanted})
                for wrong in found - {wanted}:
                    print(
                        f"bench map: {percent:g} % on {' '.join(wanted)}: {' '.join(wrong)}", file=sys.stderr
                    )
            case = f"one-way loss of {percent:g} % on one of three uplinks, {times} times"
            rows.report(case, "found_percent", 100 * len(took) / times, "%")
            rows.report(
                case,
                "suspect_s",
                quantile(took, 0.5) if took else float("nan"),
                "s",
                most=max(took, default=0),
            )
            rows.report(case, "named_right_percent", 100 * named / times, "%", wrong_names=others)


def _played(
    fleet: DiagnosedFleet, leaf: str, spine: str, way: Literal["in", "out"], percent: float
) -> tuple[float | None, set[tuple[str, str, str]]]:
    """Seconds until something is suspect, None if nothing is; and all that is named then and shortly after."""
    with ExitStack() as stack:
        stack.enter_context(fleet.lab.port(leaf, spine).loss(percent, way))
        began = time.monotonic()
        end = began + _PATIENCE_S.get(percent, 300)
        while not (found := fleet.suspects()) and time.monotonic() < end:
            time.sleep(0.1)
        seconds = time.monotonic() - began if found else None
        if found:
            time.sleep(_STAYS_S)  # what is measured is whether the name stays
            found = fleet.suspects() or found
    wait_for(lambda: not fleet.suspects(), 300, "no suspect is left")
    return seconds, found
