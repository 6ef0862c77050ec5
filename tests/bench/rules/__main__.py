"""`make bench NAME=rules`: what the rules hold, and what they cost a real Prometheus.

Prints one JSON object a line and exits with 1 if a gate is missed. `ARGS="--only evaluation"` chooses parts. Needs
Prometheus and promtool (scripts/fetch_tools.sh).

coverage : shares of alerts that have a promtool case that fires and a runbook. mutations : share of changes to rules
that a case notices (tests/unit/rules/surviving_mutants.txt has the others). evaluation : time that all rule groups take
on fleets on paper (tests/bench/rules/fleet.py), eight NICs a host, scraped each 15 s; `--hosts 100,300,1000`. The gate
is on `rule_eval_ms_per_scrape`: the CPU time of Prometheus for what it evaluates in 15 s, on the mean, as groups with
an interval of their own are evaluated less often; Prometheus spreads groups over their intervals, by their names and
files, so that the fullest of sixteen such 15 s had 1.7 times the mean. `rule_eval_ms` is one evaluation of every group,
the most that 15 s can hold, which has no gate. Both are with the garbage collection that they cause, which is more than
half of it; beside the former is what it is without most of that, and what it takes to read each series once an interval
and do nothing with it, and `selected`, how many series the selectors of the rules find in 15 s: the same on every
machine, whatever else it does. What that time is, and what it is not: tests/bench/rules/evaluation.py. A thousand
hosts take about 5 GB of memory. pages : from a NIC's fault until Alertmanager has the alert, and until on-call has the
page (tests/bench/rules/pages.py); the longest of three rounds of three faults. Needs root. A machine with other work
delays all of it: each row has the load.

metrics : those that no rule, panel or runbook reads and of which nobody says why they are exported. panels : queries of
panels that find data (tests/integration/rules/test_panels.py). replay : a public trace of faults on the rules
(tests/bench/rules/replay/), some minutes. Only where they are named: replay_lab : a fault of each of its kinds on real
links, ten minutes. pages_per_fault : pages of a dead host, coordinator, leaf, rail and NIC, by a real Prometheus and
Alertmanager as shipped (tests/integration/rules/one_page.py), two minutes. scenarios : each scenario of the demo
(`--scenarios gray-loss,hang`, `--seeds 5`), up to three minutes a run. live_panels : panels that have data after one of
these scenarios, and queries that fail (tests/bench/rules/live_panels.py), likewise. Panels of what its machine does not
have (RDMA devices, optics, a PCIe bus) no scenario fills: they are not in the gate, but named, with the metrics.
"""

import argparse
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

import yaml
from tests.bench.rows import Rows
from tests.bench.rules.evaluation import SCRAPE_S, evaluate, interval_s
from tests.bench.rules.fleet import RAILS, Faults, PaperFleet
from tests.bench.rules.live_panels import after
from tests.bench.rules.pages import VICTIMS, Times, stand
from tests.bench.rules.replay.judgement import by_kind
from tests.bench.rules.replay.lab import sample
from tests.bench.rules.replay.run import replay
from tests.bench.rules.scenarios import play
from tests.integration.rules.one_page import PAGES, outcome
from tests.unit.rules.mutant_trial import Trial
from tests.unit.rules.mutation import groups, mutants
from tests.unit.rules.needed_rules import name_of
from tests.unit.rules.used_metrics import unused, without_reason

from fabricpulse.lab.demo.scenarios import SCENARIOS
from fabricpulse.lab.tools import command_line, find_tool

ROOT = Path(__file__).parents[3]
rows = Rows("rules")


def _tool(name: str) -> list[str]:
    place = find_tool(name)
    if place is None:
        sys.exit(f"bench rules: {name} is not installed; scripts/fetch_tools.sh gets it")
    return [str(part) for part in command_line(place)]


def bench_coverage() -> None:
    """Alerts with a case that fires, and with a runbook."""
    alerts = {rule["alert"] for group in groups() for rule in group["rules"] if "alert" in rule}
    tested = set()
    for path in (ROOT / "rules" / "tests").rglob("*.yaml"):
        for test in yaml.safe_load(path.read_text())["tests"]:
            tested |= {
                case["alertname"] for case in test.get("alert_rule_test", []) if case.get("exp_alerts")
            }
    runbooks = {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    case = f"{len(alerts)} alerts"
    for metric, having in (("alerts_with_tests_percent", tested), ("alerts_with_runbook_percent", runbooks)):
        missing = sorted(alerts - having)
        rows.report(case, metric, 100 * (1 - len(missing) / len(alerts)), "%", "== 100", missing=missing)


def bench_mutations() -> None:
    """Changes to rules that a case notices."""
    rules = [rule for group in groups() for rule in group["rules"] if name_of(rule) != "FabricWatchdog"]
    changed = [mutant for rule in rules for mutant in mutants(rule)]
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(_tool("promtool")[-1], groups(), ROOT / "rules" / "tests", Path(folder))
        surviving = len(trial.survivors(changed))
    caught = 100 * (1 - surviving / len(changed))
    case = f"{len(changed)} changes to {len(rules)} rules"
    rows.report(case, "mutations_caught_percent", caught, "%", "== 100", surviving=surviving)


def bench_evaluation(sizes: list[int]) -> None:
    """The CPU time of all groups on growing fleets, and how it grows."""
    taken = [(hosts, _evaluation_ms(hosts)) for hosts in sizes]
    (fewest, least), (most, longest) = taken[0], taken[-1]
    if most > fewest:
        slope = math.log(longest / least) / math.log(most / fewest)
        rows.report(f"{fewest} to {most} hosts", "rule_eval_slope", slope, "exponent", "<= 1.2")


def _evaluation_ms(hosts: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        found = evaluate(_tool("prometheus"), PaperFleet(hosts, Faults()), groups(), Path(folder))
    case = f"{hosts} hosts x {RAILS} NICs"
    intervals = {group["name"]: interval_s(group) for group in groups()}
    shares = {name: cost * SCRAPE_S / intervals[name] for name, cost in found.group_ms.items()}
    rows.report(
        case,
        "rule_eval_ms_per_scrape",
        found.per_scrape_ms,
        "ms",
        "<= 1000" if hosts <= 1000 else None,
        scrape_s=SCRAPE_S,
        without_collection_ms=round(sum(shares.values()), 1),
        read_once_ms=round(found.read_ms, 1),
        groups={name: round(shares[name], 1) for name in _dearest(shares)},
        series=found.series,
        selected=found.selected,
        failing=found.failing,
        load=round(os.getloadavg()[0], 1),
    )
    rows.report(
        case,
        "rule_eval_ms",
        found.all_ms,
        "ms",
        rules={name: round(found.rule_ms[name], 1) for name in _dearest(found.rule_ms)},
        groups={name: round(cost, 1) for name, cost in found.group_ms.items()},
    )
    return found.per_scrape_ms


def _dearest(costs: Mapping[str, float], most: int = 12) -> list[str]:
    return sorted(costs, key=lambda name: costs[name], reverse=True)[:most]


def bench_pages(rounds: int) -> None:
    """From a fault to Alertmanager and to on-call: by rules at two scrape intervals, and by push."""
    rng = random.Random(1)
    for scrape_s, push, to_alertmanager, to_page in (
        (1.0, False, "<= 4", None),
        (15.0, False, "<= 35", None),
        (15.0, True, "<= 1", "<= 12"),
    ):
        times, flaps = Times(), Times()
        # Each of a fleet of its own: a NIC that flaps mutes the single disconnects of it, which make it flap sooner.
        with stand(scrape_s, push=push) as fleet:
            for nth, nic in enumerate(VICTIMS[0]):
                # The page of a second NIC comes with its group's next one.
                fleet.flap(nic, flaps, pages=push and nth == 0)
        with stand(scrape_s, push=push) as fleet:
            for victims in VICTIMS[:rounds]:
                fleet.disconnect(victims, rng, scrape_s, times, pages=push)
        way = "by push" if push else f"by rules, scraped each {scrape_s:g} s"
        for case, metric, values, must in (
            (f"disconnect {way}", "fault_to_alertmanager_s", times.notified, to_alertmanager),
            (f"disconnect {way}", "fault_to_page_s", times.paged, to_page),
            (f"flap {way}", "fault_to_alertmanager_s", flaps.notified, to_alertmanager),
            (f"flap {way}", "fault_to_page_s", flaps.paged, to_page),
        ):
            if values:
                each = [round(value, 2) for value in values]
                rows.report(
                    case, metric, max(values), "s", must, each=each, load=round(os.getloadavg()[0], 1)
                )


def bench_pages_per_fault() -> None:
    """Pages that on-call has of one fault each."""
    with tempfile.TemporaryDirectory() as folder:
        found = outcome(Path(folder))
    for name in PAGES:
        pages = {tuple(sorted(page.items())): page["alertname"] for page in found.pages[name]}
        share = len(pages) / len(PAGES[name])
        rows.report(name, "pages_per_fault", share, "pages", "== 1", pages=sorted(pages.values()))
    others = [page["alertname"] for name in set(found.pages) - set(PAGES) for page in found.pages[name]]
    rows.report("a fleet that is well", "pages_per_fault", len(others), "pages", "== 0", pages=others)


def bench_metrics() -> None:
    """Metrics that nothing reads."""
    missing = without_reason()
    rows.report(
        f"{len(unused())} that no rule, panel or runbook reads",
        "metrics_unused_without_reason",
        len(missing),
        "metrics",
        "== 0",
        missing=missing,
    )


def bench_panels() -> None:
    """Panels, variables and records that find data in a real Prometheus with every metric."""
    argv = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*argv, str(ROOT / "tests/integration/rules/test_panels.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    good, all_ = counts.get("passed", 0), sum(counts.values())
    share = 100 * good / all_ if all_ else math.nan
    failing = re.findall(r"^FAILED \S+::(\S.*?)(?: - |$)", done.stdout, re.M)
    rows.report(f"{all_} queries", "panels_nonempty_percent", share, "%", "== 100", failing=failing)


def bench_live_panels(names: list[str]) -> None:
    """Panels that have data in the demo, after each scenario and after any."""
    having, empty = set[str](), set[str]()
    needing = dict[str, Mapping[str, str]]()
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            found = after(name, Path(folder))
            having |= found.having
            empty |= found.empty
            needing |= found.needing
            rows.report(
                name,
                "panel_queries_failing",
                len(found.failing),
                "queries",
                "== 0",
                failing=list(found.failing),
                panels_nonempty_percent=round(_share(found.having, found.empty), 1),
            )
    empty -= having
    hardware = {panel: needing[panel] for panel in sorted(empty & needing.keys())}
    missing = sorted(empty - hardware.keys())
    rows.report(
        f"{len(having) + len(missing)} panels, {len(names)} scenarios",
        "panels_nonempty_live_percent",
        _share(having, missing),
        "%",
        "== 100",
        missing=missing,
        needing_hardware=hardware,
        of_all_percent=round(_share(having, empty), 1),
    )


def _share(good: Collection[str], bad: Collection[str]) -> float:
    return 100 * len(good) / (len(good) + len(bad)) if good or bad else math.nan


def bench_replay() -> None:
    """The faults of a public trace."""
    with tempfile.TemporaryDirectory() as folder:
        found, false, minutes = replay(_tool("promtool")[-1], _tool("alertmanager"), groups(), Path(folder))
    for kind, some in by_kind(found):
        detected = [each for each in some if each.notifications]
        delays = [each.notifications[0].minute - each.fault.start_min for each in detected]
        rows.report(
            kind,
            "replay_detected_percent",
            100 * len(detected) / len(some),
            "%",
            faults=len(some),
            cause_right_percent=round(100 * sum(each.right for each in some) / len(some), 1),
            notifications=sum(len(each.notifications) for each in some),
            alerts=sorted({each.name for one in some for each in one.notifications}),
            delay_median_min=statistics.median(delays) if delays else None,
            delay_longest_min=max(delays, default=None),
            not_right=[str(each.notifications[0]) for each in detected if not each.right][:3],
        )
    case = f"{len(found)} faults, {minutes} minutes"
    share = 100 / len(found)
    rows.report(
        case,
        "replay_detected_percent",
        share * sum(bool(each.notifications) for each in found),
        "%",
        "== 100",
    )
    rows.report(case, "replay_cause_right_percent", share * sum(each.right for each in found), "%", ">= 95")
    pages = [each for each in false if each.critical]
    rows.report(case, "replay_false_pages", len(pages), "pages", "== 0", pages=[str(each) for each in pages])
    tickets = [str(each) for each in false if not each.critical]
    rows.report(case, "replay_false_tickets", len(tickets), "tickets", tickets=tickets[:20])


def bench_replay_lab() -> None:
    """A fault of each kind of the trace on real links."""
    for run in sample():
        rows.report(
            run.kind,
            "replay_lab_right",
            int(run.right),
            "runs",
            "== 1",
            alerts=sorted(run.alerts),
            others=sorted(run.others),
            first_s=None if run.first_s is None else round(run.first_s, 1),
            load=round(os.getloadavg()[0], 1),
        )


def bench_scenarios(names: list[str], seeds: int) -> None:
    """The pages of all scenarios, `seeds` runs each."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names * seeds:
            run = play(name, Path(folder))
            runs.append(run)
            rows.report(
                name,
                "scenario_right",
                int(run.complete and run.paged and not run.others),
                "runs",
                paged=run.paged,
                other_pages=run.others,
                alert_s=run.alert_s,
                page_s=run.page_s,
                failures=list(run.failures),
                load=round(os.getloadavg()[0], 1),
            )
    paged, others = sum(run.paged for run in runs), sum(run.others for run in runs)
    case = f"{len(names)} scenarios x {seeds}"
    precision = 100 * paged / (paged + others) if paged + others else math.nan
    rows.report(case, "scenario_precision_percent", precision, "%", "== 100")
    rows.report(case, "scenario_recall_percent", 100 * paged / len(runs), "%", "== 100")


def main() -> None:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="comma separated parts; default: all")
    parser.add_argument("--hosts", default="100,300,1000", help="sizes of the fleets of `evaluation`")
    parser.add_argument("--rounds", type=int, default=len(VICTIMS), help="rounds of three faults of `pages`")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="those of `scenarios`")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each scenario")
    options = parser.parse_args()
    all_parts = {
        "coverage": bench_coverage,
        "mutations": bench_mutations,
        "evaluation": lambda: bench_evaluation([int(size) for size in options.hosts.split(",")]),
        "pages": lambda: bench_pages(options.rounds),
        "metrics": bench_metrics,
        "panels": bench_panels,
        "live_panels": lambda: bench_live_panels(options.scenarios.split(",")),
        "replay": bench_replay,
        "replay_lab": bench_replay_lab,
        "pages_per_fault": bench_pages_per_fault,
        "scenarios": lambda: bench_scenarios(options.scenarios.split(","), options.seeds),
    }
    by_itself = {"replay_lab", "pages_per_fault", "scenarios", "live_panels"}
    wanted = set(filter(None, options.only.split(","))) or set(all_parts) - by_itself
    if unknown := wanted - set(all_parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(all_parts)}")
    for name, part in all_parts.items():
        if name in wanted:
            part()
    sys.exit(rows.exit_code())


if __name__ == "__main__":
    main()
