"""Is the right cause named, how often, how sure; how long an answer takes over a large fleet; hangs over random graphs.

Causes are played as the series that exporters would show (tests/fixtures/why/causes.py), put into a real Prometheus and
asked about through its API, as the command does. What is simulated is the fabric and its sizes of effects, which are
ours: a share of right answers says how `why` tells causes apart, not how often it would be right in a data centre.

    make bench NAME=why ARGS="--seeds 5 --healthy 40 --hosts 0"     # a quick run
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from tests.bench.rows import Rows, cpu_seconds, quantile
from tests.bench.why.live import Live, cpu_s, live_runs, recorded, trace_order
from tests.bench.why.plays import PLAYS, SHARED, STALL_TOO
from tests.bench.why.recorded import runs as recorded_runs
from tests.fixtures.why.blocks import create_blocks, write_openmetrics
from tests.fixtures.why.causes import CAUSES, PAIRS, healthy
from tests.fixtures.why.fleet import PATTERNS, Stand
from tests.fixtures.why.server import prometheus_over, prometheus_process
from tests.fixtures.why.truth import Reported, Truth, top1, top2
from tests.fixtures.why.world import TOPOLOGIES, World, new_world
from tests.unit.why.test_hang import hang, mesh, ring, tree, wait

from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.prometheus import PromQl
from fabricpulse.lab.tools import find_tools
from fabricpulse.why.gather import Times, gather
from fabricpulse.why.hang import find_heads
from fabricpulse.why.infer import Answer, infer
from fabricpulse.why.queries import Scope

rows = Rows("why")
BATCH = 100


def play(seeds: int, quiet: int) -> list[World]:
    """Each cause and each pair of causes `seeds` times, and `quiet` healthy jobs; topologies in turn."""
    worlds = []
    for name, cause in CAUSES.items():
        for seed in range(seeds):
            world = new_world(f"{name}{seed}".replace("_", "-"), seed, TOPOLOGIES[seed % 3])
            cause(world)
            worlds.append(world)
    for seed in range(seeds):
        world = new_world(f"two{seed}", seed, TOPOLOGIES[seed % 3])
        for cause in PAIRS[seed % len(PAIRS)]:
            cause(world)
        worlds.append(world)
    for seed in range(quiet):
        worlds.append(new_world(f"healthy{seed}", seed, TOPOLOGIES[seed % 3]))
        healthy(worlds[-1])
    return worlds


async def ask(url: str, workload: str, cluster: str, at_s: float) -> Answer:
    async with PromQl(url, HttpClientConfig(timeout_s=60)) as prom:
        facts, _ = await gather(prom, Scope(workload, (), f'cluster="{cluster}"'), Times(at_s, at_s - 3600))
    return infer(facts)


def answers_of(worlds: list[World], at_s: int) -> list[tuple[World, Answer]]:
    """Through a real Prometheus, some worlds at a time."""
    tools, found = find_tools(), []
    for first in range(0, len(worlds), BATCH):
        batch = worlds[first : first + BATCH]
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            write_openmetrics(batch, at_s, place / "in.om")
            create_blocks(tools.promtool, place / "in.om", place / "data")
            (place / "in.om").unlink()
            with prometheus_over(tools.prometheus, place / "data") as url:
                found += [(w, asyncio.run(ask(url, w.name, w.name, at_s))) for w in batch]
    return found


def right(world: World, answer: Answer, number: int) -> bool:
    """Whether the cause of this rank is one that was played, at its place."""
    if number >= len(answer.causes):
        return False
    f = answer.causes[number].finding
    return any(f.cause == cause and place in f.where for cause, place in world.truth)


def judge(found: list[tuple[World, Answer]]) -> None:
    """Prints top1, top2, false alarms and calibration."""
    played = [(w, v) for w, v in found if w.truth]
    one = [right(w, v, 0) for w, v in played]
    # Of two causes at once both must be among the first two; of one, it must.
    two = [sum(right(w, v, n) for n in range(2)) >= len(w.truth) for w, v in played]
    rows.report(
        "played", "cause_top1", sum(one) / len(one), "ratio", ">= 0.97", runs=len(one), simulated=True
    )
    rows.report(
        "played", "cause_top2", sum(two) / len(two), "ratio", ">= 0.99", runs=len(two), simulated=True
    )
    for kind in sorted({w.name.rstrip("0123456789") for w, _ in played}):
        own = [ok for (w, _), ok in zip(played, one, strict=True) if w.name.rstrip("0123456789") == kind]
        rows.report(kind, "cause_top1", sum(own) / len(own), "ratio", runs=len(own), simulated=True)
    quiet = [v for w, v in found if not w.truth]
    blamed = [v for v in quiet if v.causes or v.state != "healthy"]
    rows.report("healthy", "false_alarm", len(blamed), "runs", "== 0", runs=len(quiet), simulated=True)
    said = [(v.causes[0].finding.confidence, ok) for (_, v), ok in zip(played, one, strict=True) if v.causes]
    sure = [ok for confidence, ok in said if confidence >= 0.9]
    # What is said of a healthy job is wrong, however sure.
    sure += [False for v in quiet if v.causes and v.causes[0].finding.confidence >= 0.9]
    rows.report(
        "played", "calibration_right", sum(sure) / max(len(sure), 1), "ratio", ">= 0.9", simulated=True
    )
    rows.report(
        "played",
        "calibration_share",
        sum(confidence >= 0.9 for confidence, _ in said) / max(len(played), 1),
        "ratio",
        ">= 0.7",
        simulated=True,
    )
    for low, high in ((0.0, 0.5), (0.5, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.0)):
        within = [ok for confidence, ok in said if low <= confidence < high]
        if within:
            case = f"confidence {low:.2f} to {high:.2f}"
            rows.report(case, "right", sum(within) / len(within), "ratio", runs=len(within), simulated=True)
    for (world, answer), ok in zip(played, one, strict=True):
        if not ok:
            got = [(r.finding.cause, r.finding.where) for r in answer.causes[:3]]
            print(f"wrong: {world.name} {world.topology} {world.truth}: {got}", file=sys.stderr)
    for answer in blamed:
        print(f"blamed: {answer.headline}", file=sys.stderr)


def hangs(count: int) -> None:
    """Random graphs of those who wait: is the head right?"""
    named = 0
    for seed in range(count):
        rng = random.Random(seed)
        size = rng.randint(3, 64)
        links = rng.choice([ring, tree, mesh])(size, rng)
        if seed % 2:
            late = rng.randrange(size)
            heads = find_heads(rng.sample(w := hang(links, {late}), len(w)))
            named += [(h.rank, h.network) for h in heads] == [(late, False)]
        else:
            sender, receiver = rng.choice(links)
            waits = [*(wait(b, a, "peer_send", 9.0) for a, b in links), wait(sender, receiver, "delivery")]
            named += [(h.rank, h.peer) for h in find_heads(rng.sample(waits, len(waits)))] == [
                (sender, receiver)
            ]
    rows.report("random graphs", "hang_named", named / count, "ratio", "== 1", runs=count, simulated=True)


def answers(hosts: int, jobs: int, at_s: int, rails: int) -> None:
    """How long an answer takes over a fleet of so many jobs, asked about one that is slow, and what it costs."""
    tools = find_tools()
    worlds = [new_world(f"job{i}", i, "ring", hosts // jobs, rails) for i in range(jobs)]
    CAUSES["slow_link"](worlds[0])
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        series = write_openmetrics(worlds, at_s, place / "in.om", "fleet")
        create_blocks(tools.promtool, place / "in.om", place / "data")
        (place / "in.om").unlink()
        with prometheus_process(tools.prometheus, place / "data") as (url, pid):
            took, own, theirs = [], [], []
            for _ in range(5):
                begun, used, serving = time.monotonic(), time.process_time(), cpu_seconds(pid)
                answer = asyncio.run(ask(url, "job0", "fleet", at_s))
                took.append(time.monotonic() - begun)
                own.append(time.process_time() - used)
                theirs.append(cpu_seconds(pid) - serving)
            named = float(right(worlds[0], answer, 0))
    case = f"{hosts} hosts, {rails} NICs each, {series} series, a job of {hosts // jobs}"
    more = {"cpu_s": quantile(own, 0.5), "prometheus_cpu_s": quantile(theirs, 0.5), "worst": max(took)}
    rows.report(
        case, "answer_s", quantile(took, 0.5), "s", "<= 3", **{k: round(v, 3) for k, v in more.items()}
    )
    rows.report(case, "cause_top1", named, "ratio", "== 1")


def live(
    count: int,
    scrape_s: float,
    seed: int,
    only: tuple[str, ...],
    patterns: tuple[str, ...],
    keep: Path | None,
) -> None:
    """Real jobs with real faults in the lab."""
    found: list[Live] = []
    begun, cpu = time.monotonic(), cpu_s()

    def trace(stand: Stand) -> None:
        order = trace_order(stand)
        more = {"room_us": order.room_us, "alone": order.alone}
        # Without any nothing is in order.
        rows.report("live", "trace_collectives", order.collectives, "collectives", ">= 10")
        rows.report("live", "trace_wrong_order", order.wrong, "pairs", "== 0", **more)
        rows.report("live", "trace_bound_us", order.largest_bound_us, "us", "<= 1000")

    for run in live_runs(count, seed, scrape_s, only, patterns, trace):
        found.append(run)
        print(run.line(), flush=True)
        if keep is not None:
            with keep.open("ab") as out:
                out.write(msgspec.json.encode(recorded(run)) + b"\n")
    took, used = time.monotonic() - begun, cpu_s() - cpu
    report_live("live", [(r.play, r.truth, r.said) for r in found])
    other = sum(r.alert_s is not None for r in found if not r.stalls and r.play not in STALL_TOO)
    rows.report("live", "stall_alerts_without_stall", other, "runs", "== 0", runs=len(found))
    times = [float("nan") if r.alert_s is None else r.alert_s for r in found if r.stalls]
    if times:
        rows.report("live", "stall_to_alert_s", max(times), "s", "<= 10", runs=len(times), all=times)
    rows.report("live", "answer_s", max(r.answer_s for r in found), "s", "<= 3", runs=len(found))
    rows.report("live", "run_s", took / len(found), "s", "<= 60", cpu_s=round(used / len(found), 1))


def again(seeds: int) -> None:
    """Recorded live runs, each perturbed by so many seeds."""
    found = []
    for _, run in recorded_runs(seeds):
        answer = infer(run.facts)
        said = [(c.finding.cause, c.finding.where, round(c.finding.confidence, 2)) for c in answer.causes]
        found.append((run.play, run.truth, said))
    report_live("recorded", found)


def report_live(case: str, found: list[tuple[str, list[Truth], Reported]]) -> None:
    """The rows of causes really played."""
    played = [(play, truth, said) for play, truth, said in found if truth]
    one = [top1(truth, said) for _, truth, said in played]
    two = [top2(truth, said) for _, truth, said in played]
    if played:
        kinds = len({play for play, _, _ in played})
        rows.report(
            case, f"cause_top1_{case}", sum(one) / len(one), "ratio", ">= 0.97", runs=len(one), kinds=kinds
        )
        rows.report(
            case, f"cause_top2_{case}", sum(two) / len(two), "ratio", ">= 0.99", runs=len(two), kinds=kinds
        )
    for kind in sorted({play for play, _, _ in found}):
        own = [top1(truth, said) for play, truth, said in found if play == kind]
        rows.report(f"{case} {kind}", "cause_top1", sum(own) / len(own), "ratio", runs=len(own))
    quiet = [said for _, truth, said in found if not truth]
    blamed = sum(not top1([], said) for said in quiet)
    rows.report(case, f"false_alarm_{case}", blamed, "runs", "== 0", runs=len(quiet))
    reported = [(said[0][2], ok) for (_, _, said), ok in zip(played, one, strict=True) if said]
    sure = [ok for confidence, ok in reported if confidence >= 0.9]
    sure += [False for said in quiet if said and said[0][2] >= 0.9]
    if played:
        rows.report(
            case, "calibration_right", sum(sure) / max(len(sure), 1), "ratio", ">= 0.9", runs=len(sure)
        )
        share = sum(confidence >= 0.9 for confidence, _ in reported) / len(played)
        rows.report(case, "calibration_share", share, "ratio", ">= 0.7")
    for low, high in ((0.0, 0.5), (0.5, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.0)):
        within = [ok for confidence, ok in reported if low <= confidence < high]
        if within:
            band = f"{case}, confidence {low:.2f} to {high:.2f}"
            rows.report(band, "right", sum(within) / len(within), "ratio", runs=len(within))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--hosts", type=int, default=1000, help="of the large fleet; 0: without")
    parser.add_argument("--rails", type=int, default=2, help="NICs of each host of the large fleet")
    parser.add_argument("--hangs", type=int, default=200)
    parser.add_argument(
        "--recorded", type=int, default=20, help="seeds by which each recorded live run is perturbed"
    )
    parser.add_argument(
        "--live", type=int, default=0, help="runs of real jobs in the lab (root), half a minute each"
    )
    parser.add_argument("--scrape", type=float, default=2.0, help="scrape interval of live runs, s")
    parser.add_argument("--seed", type=int, default=0, help="of the places of live faults")
    names = [play.__name__ for play in (*PLAYS, *SHARED)]
    parser.add_argument(
        "--only", nargs="*", choices=names, default=[], help="faults of live runs; default: all"
    )
    parser.add_argument(
        "--patterns", nargs=2, choices=PATTERNS, default=(), help="of the two jobs; default: by the seed"
    )
    parser.add_argument("--keep", type=Path, help="file to which what was known in live runs is added")
    options = parser.parse_args()
    at_s = int(time.time()) // 7200 * 7200 - 60
    if options.hangs:
        hangs(options.hangs)
    if options.seeds:
        judge(answers_of(play(options.seeds, options.healthy), at_s))
    if options.hosts:
        answers(options.hosts, 8, at_s, options.rails)
        answers(options.hosts, 1, at_s, options.rails)
    if options.recorded:
        again(options.recorded)
    if options.live:
        patterns = tuple(options.patterns)
        live(options.live, options.scrape, options.seed, tuple(options.only), patterns, options.keep)
    return rows.exit_code()


if __name__ == "__main__":
    sys.exit(main())
