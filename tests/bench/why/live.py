"""`fabricpulse why` about jobs that really run, on a fleet that stays up while faults are played on it (`plays.py`).

A cycle plays one fault on each of the two jobs at the same moment, waits until a window lies wholly within the fault,
asks the command about each job as a user does, mends, and waits until everything measured is well again. The baseline
is the last undisturbed window. What was known in each run can be kept, to be played again (`recorded.py`).
"""

import asyncio
import json
import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from click.testing import CliRunner
from tests.bench.why.plays import ONLY_ON, PLAYS, SHARED, STALLS, Play, healthy
from tests.fixtures.why.fleet import PATTERNS, Job, Stand, fleet
from tests.fixtures.why.trace import Order, order_of
from tests.fixtures.why.truth import Truth, top1, top2

from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.prometheus import PromQl
from fabricpulse.why.command import command
from fabricpulse.why.facts import Facts
from fabricpulse.why.gather import Times, gather
from fabricpulse.why.queries import Scope

# The shortest that the command takes.
WINDOW_S = 30
# What a fault takes to be seen, and the sample before the window.
ONSET_S = 4.0
# Of the command: a baseline is that much earlier at least.
_BASELINE_S = WINDOW_S + 60
_QUIET_EACH = 5


@dataclass(frozen=True)
class Live:
    """One run. pattern : of the job. alert_s : from the fault to FabricCollectiveStalled in Alertmanager, None where it
    never came. facts : what the command knew."""

    play: str
    job: str
    pattern: str
    truth: list[Truth]
    document: dict[str, Any]
    alert_s: float | None
    stalls: bool
    answer_s: float
    run_s: float
    facts: Facts

    @property
    def said(self) -> list[tuple[str, str, float]]:
        """Causes in order: name, place, confidence."""
        return [(c["cause"], c["where"], round(c["confidence"], 2)) for c in self.document["causes"]]

    def line(self) -> str:
        """For who reads along, and for tables."""
        shown = {
            "play": self.play,
            "job": self.job,
            "pattern": self.pattern,
            "truth": [t.any_of for t in self.truth],
            "state": self.document["state"],
            "said": self.said[:4],
            "top1": top1(self.truth, self.said),
            "top2": top2(self.truth, self.said),
            "alert_s": self.alert_s,
            "answer_s": round(self.answer_s, 2),
            "run_s": round(self.run_s, 1),
        }
        return json.dumps(shown)


def trace_order(stand: Stand) -> Order:
    """Of the timeline of the first job, as a person has it written."""
    job, file = stand.jobs[0], stand.lab.mgmt.directory / "trace.json"
    argv = ["fabricpulse", "why", job.name, "--prometheus", "http://127.0.0.1:9090", "--trace", str(file)]
    stand.lab.mgmt.run(argv)
    return order_of(json.loads(file.read_text()), len(job.hosts))


def live_runs(
    count: int,
    seed: int,
    scrape_s: float,
    only: tuple[str, ...] = (),
    patterns: tuple[str, ...] = (),
    at_end: Callable[[Stand], None] = lambda _: None,
) -> Iterator[Live]:
    """Plays faults in turn, with random places. only : names of faults; () for all. patterns : of the two jobs; () for
    two that the seed chooses. at_end : while all is well."""
    rng = random.Random(seed)
    plays = [play for play in (*PLAYS, *SHARED) if not only or play.__name__ in only]
    deck: list[Play] = []
    chosen = patterns or tuple(rng.sample(PATTERNS, 2))
    with fleet(seed, scrape_s, patterns=chosen) as stand:
        quiet = [_quiet(stand)]
        # The first faults must find it old enough to be a baseline.
        time.sleep(_BASELINE_S - WINDOW_S - ONSET_S)
        done = cycles = 0
        while done < count:
            begun = time.monotonic()
            if len(deck) < 2:
                deck += rng.sample(plays, len(plays))
            pair = [_next(deck, stand.jobs[0]) or healthy]
            if cycles % _QUIET_EACH == _QUIET_EACH - 1:
                pair, deck = [healthy, healthy], [*pair, *deck]
            elif pair[0] in SHARED:
                pair = [pair[0], pair[0]]
            else:
                pair.append(_next(deck, stand.jobs[1], SHARED) or healthy)
            cycles += 1
            runs = _cycle(stand, pair, quiet)
            took = time.monotonic() - begun
            for run in runs:
                done += 1
                yield Live(**{**run, "run_s": took / len(runs)})
        at_end(stand)


def _next(deck: list[Play], job: Job, but: tuple[Play, ...] = ()) -> Play | None:
    """Takes the first play that can be played on this job. None: there is none."""
    for play in deck:
        if play not in but and job.pattern in ONLY_ON.get(play.__name__, PATTERNS):
            deck.remove(play)
            return play
    return None


def _quiet(stand: Stand) -> float:
    """Waits an undisturbed window; its end."""
    stand.heal()
    time.sleep(WINDOW_S + ONSET_S)  # what is measured is time: of rates without a fault
    return time.time()


def _cycle(stand: Stand, pair: list[Play], quiet: list[float]) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        if pair[0] in SHARED:
            truths = [pair[0](stand, stand.jobs[0], stack)] * 2
        else:
            truths = [play(stand, job, stack) for play, job in zip(pair, stand.jobs, strict=True)]
        begun, alerts = time.monotonic(), dict[str, float]()
        while (passed := time.monotonic() - begun) < ONSET_S + WINDOW_S:
            for job in stand.jobs:
                if job.name not in alerts and stand.stalled(job):
                    alerts[job.name] = round(passed, 1)
            time.sleep(0.3)
        at_s = time.time()
        # The newest undisturbed window that the command takes as a baseline.
        before_s = [q for q in quiet if at_s - q >= _BASELINE_S]
        baseline_s = round(at_s - (before_s[-1] if before_s else at_s - _BASELINE_S))
        runs = []
        for play, job, truth in zip(pair, stand.jobs, truths, strict=True):
            document, took, facts = _ask(stand, job, at_s, baseline_s)
            runs.append(
                {
                    "play": play.__name__,
                    "job": job.name,
                    "pattern": job.pattern,
                    "truth": truth,
                    "document": document,
                    "alert_s": alerts.get(job.name),
                    "stalls": play in STALLS,
                    "answer_s": took,
                    "run_s": 0.0,
                    "facts": facts,
                }
            )
    if all(play is healthy for play in pair):
        quiet.append(at_s)
    stand.heal()
    return runs


def _ask(stand: Stand, job: Job, at_s: float, baseline_s: int) -> tuple[dict[str, Any], float, Facts]:
    begun = time.monotonic()
    result = CliRunner().invoke(
        command,
        [
            *(job.name, "--prometheus", stand.url, "--output", "json", "--baseline", str(baseline_s)),
            *("--between", f"{at_s - WINDOW_S:.3f}", f"{at_s:.3f}"),
        ],
        catch_exceptions=False,
    )
    took = time.monotonic() - begun
    if not result.stdout:
        raise RuntimeError(f"no answer about {job.name} after {took:.1f} s: {result.output}")
    return json.loads(result.stdout), took, asyncio.run(_facts(stand.url, job.name, at_s, baseline_s))


async def _facts(url: str, workload: str, at_s: float, baseline_s: int) -> Facts:
    """What the command has asked for, to be kept."""
    async with PromQl(url, HttpClientConfig(timeout_s=30)) as prom:
        scope = Scope(workload, (), "", WINDOW_S, WINDOW_S)
        return (await gather(prom, scope, Times(at_s, at_s - baseline_s)))[0]


def recorded(run: Live) -> dict[str, Any]:
    """What is kept of a run."""
    return {
        "play": run.play,
        "pattern": run.pattern,
        "truth": [asdict(t) for t in run.truth],
        "facts": run.facts,
    }


def cpu_s() -> float:
    """CPU time of the children that have ended, and of this process."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)
