"""`make bench NAME=rules`: what the rules hold, and what they cost a real Prometheus.

Prints one JSON object a line and exits with 1 if a gate is missed. `ARGS="--only evaluation"` chooses parts. Needs
Prometheus and promtool (scripts/fetch_tools.sh).

coverage : shares of alerts that have a promtool case that fires and a runbook. mutations : share of changes to rules
that a case notices (tests/unit/rules/surviving_mutants.txt has the others). evaluation : time that all rule groups take
on fleets on paper (tests/bench/rules_fleet.py), eight NICs a host, scraped each 15 s; `--hosts 100,300,1000`. The time
of one evaluation of every group (`rule_eval_ms`), and what of it falls on each 15 s, as some groups are evaluated less
often (`rule_eval_ms_per_scrape`); both are wall clock, which other processes lengthen. `prometheus_cpu_cores` is the
CPU time of the whole server, scrapes included, by wall clock.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from tests.bench.rows import Rows
from tests.bench.rules_fleet import RAILS, Faults, PaperFleet, serve
from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import wait_for
from tests.unit.rules.mutation import Trial, mutants, name_of

from fabricpulse.lab.tools import command_line, find_tool

ROOT = Path(__file__).parents[2]
rows = Rows("rules")
_SCRAPE_S = 15
# Windows of five minutes are as full as they get by then.
_WARM_S = 330


def _groups() -> list[dict[str, Any]]:
    return [
        group
        for folder in ("recording", "alerts")
        for path in sorted((ROOT / "rules" / folder).glob("*.yaml"))
        for group in yaml.safe_load(path.read_text())["groups"]
    ]


def _tool(name: str) -> list[str]:
    place = find_tool(name)
    if place is None:
        sys.exit(f"bench rules: {name} is not installed; scripts/fetch_tools.sh gets it")
    return [str(part) for part in command_line(place)]


def bench_coverage() -> None:
    """Alerts with a case that fires, and with a runbook."""
    alerts = {rule["alert"] for group in _groups() for rule in group["rules"] if "alert" in rule}
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
    rules = [rule for group in _groups() for rule in group["rules"] if name_of(rule) != "FabricWatchdog"]
    changed = [mutant for rule in rules for mutant in mutants(rule)]
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(_tool("promtool")[0], _groups(), ROOT / "rules" / "tests", Path(folder))
        surviving = len(trial.survivors(changed))
    caught = 100 * (1 - surviving / len(changed))
    case = f"{len(changed)} changes to {len(rules)} rules"
    rows.report(case, "mutations_caught_percent", caught, "%", "== 100", surviving=surviving)


def bench_evaluation(sizes: list[int]) -> None:
    """The time of all groups on growing fleets, and how it grows."""
    taken = [(hosts, _evaluation_ms(hosts)) for hosts in sizes]
    (fewest, least), (most, longest) = taken[0], taken[-1]
    if most > fewest:
        slope = math.log(longest / least) / math.log(most / fewest)
        rows.report(f"{fewest} to {most} hosts", "rule_eval_slope", slope, "exponent", "<= 1.2")


def _evaluation_ms(hosts: int) -> float:
    fleet = PaperFleet(hosts, Faults())
    with tempfile.TemporaryDirectory() as name, serve(fleet) as server:
        folder = Path(name)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_config(fleet, server.address)))
        address = f"127.0.0.1:{reserved_port()}"
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    *_tool("prometheus"),
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={address}",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            return _watch(process, address, hosts, folder)
        finally:
            process.terminate()
            process.wait(120)


def _config(fleet: PaperFleet, server: str) -> dict[str, Any]:
    targets = [
        {"targets": [server], "labels": {"instance": host, "cluster": "a", "__metrics_path__": f"/{host}"}}
        for host in fleet.names
    ]
    return {
        "global": {"scrape_interval": f"{_SCRAPE_S}s", "evaluation_interval": f"{_SCRAPE_S}s"},
        "rule_files": [str(ROOT / "rules" / kind / "*.yaml") for kind in ("alerts", "recording")],
        "scrape_configs": [{"job_name": "fabricpulse-all", "static_configs": targets}],
    }


def _get(address: str, path: str, **parameters: str) -> Any:
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"http://{address}{path}?{query}", timeout=120) as answer:
        return json.load(answer)["data"]


def _watch(process: "subprocess.Popen[bytes]", address: str, hosts: int, folder: Path) -> float:
    """Waits until windows are full; the median of five evaluations of everything, in ms."""

    def scraped() -> bool:
        if process.poll() is not None:
            raise RuntimeError((folder / "log").read_text()[-2000:])
        try:
            result = _get(address, "/api/v1/query", query="sum(up)")["result"]
        except OSError:
            return False
        return bool(result) and float(result[0]["value"][1]) == hosts

    wait_for(scraped, 300, "all hosts are scraped", poll_s=1)
    full = time.monotonic() + _WARM_S
    wait_for(lambda: time.monotonic() > full, _WARM_S * 4, "windows are full", poll_s=1)
    sums: list[float] = []
    shares: list[float] = []
    groups: list[dict[str, Any]] = []
    began, used = time.monotonic(), _cpu_s(process.pid)
    while len(sums) < 5:
        groups = _get(address, "/api/v1/rules")["groups"]
        sums.append(1e3 * sum(group["evaluationTime"] for group in groups))
        shares.append(
            1e3 * sum(group["evaluationTime"] * _SCRAPE_S / float(group["interval"]) for group in groups)
        )
        due = time.monotonic() + _SCRAPE_S
        wait_for(lambda due=due: time.monotonic() > due, _SCRAPE_S * 8, "the next evaluation", poll_s=0.5)  # type: ignore[misc]
    cores = (_cpu_s(process.pid) - used) / (time.monotonic() - began)
    failing = [rule["name"] for group in groups for rule in group["rules"] if rule["health"] != "ok"]
    series = int(_get(address, "/api/v1/status/tsdb")["headStats"]["numSeries"])
    slowest = sorted(groups, key=lambda group: float(group["evaluationTime"]), reverse=True)[:3]
    rules = [rule for group in groups for rule in group["rules"]]
    rules.sort(key=lambda rule: float(rule["evaluationTime"]), reverse=True)
    rows.report(
        f"{hosts} hosts x {RAILS} NICs",
        "rule_eval_ms",
        sorted(sums)[2],
        "ms",
        "<= 1000" if hosts <= 1000 else None,
        series=series,
        groups={group["name"]: round(1e3 * group["evaluationTime"], 1) for group in slowest},
        rules={rule["name"]: round(1e3 * rule["evaluationTime"], 1) for rule in rules[:8]},
        failing=failing,
    )
    case = f"{hosts} hosts x {RAILS} NICs"
    rows.report(case, "rule_eval_ms_per_scrape", sorted(shares)[2], "ms", scrape_s=_SCRAPE_S)
    rows.report(case, "prometheus_cpu_cores", cores, "cores")
    return sorted(sums)[2]


def _cpu_s(pid: int) -> float:
    """CPU time that a process has used, user and system, s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="comma separated parts; default: all")
    parser.add_argument("--hosts", default="100,300,1000", help="sizes of the fleets of `evaluation`")
    options = parser.parse_args()
    all_parts = {
        "coverage": bench_coverage,
        "mutations": bench_mutations,
        "evaluation": lambda: bench_evaluation([int(size) for size in options.hosts.split(",")]),
    }
    wanted = set(filter(None, options.only.split(","))) or set(all_parts)
    if unknown := wanted - set(all_parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(all_parts)}")
    for name, part in all_parts.items():
        if name in wanted:
            part()
    sys.exit(rows.exit_code())


if __name__ == "__main__":
    main()
