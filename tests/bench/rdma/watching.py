"""What watching costs a job on queue pairs: telemetry, a client that asks all the time, the profiler.

In the guest whose clock counts instructions, so that a hundredth is more than noise: processor time is work.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.bench.plugin.rows import in_turn
from tests.bench.plugin.speed import NAP, Askers, Pairs, ask_until, control_s, profiler_s
from tests.bench.rows import Rows

from fabricpulse.plugin.locate import library

SIZE, CASE = 65536, "64 KiB"
PAUSE_S = 0.01
# Of a run whose ends are asked, at least: what may be answered at once is much of a shorter one.
ASKED_S = 3.0

# With more environment of both ends, one run of so many seconds: what both have measured. Clients, if any.
Run = Callable[[str, dict[str, str], float, Askers | None], dict[str, dict[str, Any]]]


def watching(measure: Run, rows: Rows, peer: bool, rounds: int, seconds: float) -> None:
    """Rows as those of `make bench NAME=plugin`, of queue pairs. peer : NCCL's own transport is there."""
    # Of TCP lanes, too: by the clock of the machine itself, rounds of one run differed twofold.
    for lanes, case in (("verbs", CASE), ("tcp", f"{CASE}, TCP")):
        pairs = Pairs(rows.report)
        for number in range(rounds):
            for name in in_turn(["on", "off"], number):
                env = {} if name == "on" else {"FABRICPULSE_TELEMETRY": "0"}
                pairs.add(name, measure(lanes, {**NAP, **env}, seconds, None))
        pairs.report(case, "telemetry", "<= 1.02")

    for case, askers in (
        ("asked 100 a second", Askers(pause_s=PAUSE_S)),
        ("asked without pause", Askers()),
    ):
        pairs = Pairs(rows.report)
        answers = 0
        for number in range(rounds):
            for name in in_turn(["on", "off"], number):
                found = measure("verbs", NAP, max(seconds, ASKED_S), askers if name == "on" else None)
                pairs.add(name, found)
                if name == "on":
                    pairs.add_share(found, control_s)
                    answers += found["send"]["answers"]
        pairs.report(f"{CASE}, {case}", "control", share="<= 0.02", answers_per_run=round(answers / rounds))

    if not peer:
        return
    pairs = Pairs(rows.report)
    env = {"NET_BENCH_PROFILER": str(library()), "FABRICPULSE_NICS": "rail*", "FABRICPULSE_DETAIL": "1"}
    for number in range(rounds):
        for name in in_turn(["on", "off"], number):
            found = measure("nccl_ib", {**NAP, **(env if name == "on" else {})}, seconds, None)
            pairs.add(name, found)
            if name == "on":
                pairs.add_share(found, profiler_s)
    pairs.report(CASE, "profiler", share="<= 0.01", transport="nccl_ib")


def asked(
    folders: list[Path], askers: Askers | None, run: Callable[[], dict[str, bytes]]
) -> tuple[dict[str, bytes], int]:
    """What run() returns while clients ask the newest process below each folder, and how many answers they got."""
    if askers is None:
        return run(), 0
    over = threading.Event()
    with ThreadPoolExecutor(askers.count * len(folders)) as pool:
        asking = [pool.submit(ask_until, over, folder, askers) for folder in folders * askers.count]
        try:
            found = run()
        finally:
            over.set()
    return found, sum(each.result() for each in asking)
