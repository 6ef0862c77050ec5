"""A line says that nothing has happened only where all that was measured in the range still is: "no fault" of state
timelines, "none in the range" beside counters. Of state timelines another says where it is not.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.rules.compiled import MIXIN
from tests.unit.rules.test_promtool import PROMTOOLS

pytestmark = pytest.mark.prometheus


def lines(legend: str) -> dict[str, str]:
    """Panel -> query of its line, with a range of fifteen minutes over everything."""
    found = {}
    for name, dashboard in MIXIN.dashboards.items():
        for panel in dashboard["panels"]:
            for query in panel.get("targets", ()):
                if query["legendFormat"] == legend:
                    asked = query["expr"].replace("$__range", "15m")
                    found[f"{name}: {panel['title']}"] = re.sub(r"\$\w+", ".*", asked)
    return found


def test_no_fault_is_said_of_what_is_measured(tmp_path: Path) -> None:
    """Healthy: said, in the state of the gauge that is well. A fault anywhere in the range, a NIC whose exporter fell
    silent, or no data: not said; of the latter two another line says so.
    """
    queries, unknown = lines("no fault"), lines("not all measured")
    assert len(queries) > 15
    assert queries.keys() == unknown.keys()
    tests = []
    for panel, query in queries.items():
        (name,) = re.findall(r"^0 \* count\((\w+)", query)
        # Of some gauges 1 is the fault.
        well = 0 if f"topk(20, avg_over_time({name}" in query else 1
        bad = 1 - well
        cases = {
            "healthy": (f"{well}+0x80", 1),
            "silent": (f"{well}+0x30", 0),
            "fault": (f"{well}+0x40 {bad} {well}+0x39", 0),
            "fault, then silent": (f"{well}+0x30 {bad}x10", 0),
        }
        tests += [
            {
                "name": f"{panel}: {case}",
                "interval": "15s",
                "input_series": [
                    {
                        "series": f'{name}{{instance="{host}", device="e0", port="1", '
                        'job="fabricpulse", state="unknown"}',
                        "values": values,
                    }
                    for host, values in (("h0", f"{well}+0x80"), ("h1", other))
                ],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": "15m",
                        "exp_samples": [{"labels": "{}", "value": well}] if said else [],
                    },
                    {
                        "expr": unknown[panel],
                        "eval_time": "15m",
                        "exp_samples": [{"labels": "{}", "value": -1}] if case == "silent" else [],
                    },
                ],
            }
            for case, (other, said) in cases.items()
        ]
    tests += [
        {
            "name": f"{panel}: no data",
            "promql_expr_test": [
                {"expr": query, "eval_time": "15m", "exp_samples": []},
                {
                    "expr": unknown[panel],
                    "eval_time": "15m",
                    "exp_samples": [{"labels": "{}", "value": -1}],
                },
            ],
        }
        for panel, query in queries.items()
    ]
    run(tests, tmp_path)


def test_nothing_has_risen_is_said_of_what_is_measured(tmp_path: Path) -> None:
    """Each counter of a panel stands still: said. One of them rises, or falls silent, or there is no data: not said."""
    queries = lines("none in the range")
    assert len(queries) > 15
    tests = []
    for panel, query in queries.items():
        counters = re.findall(r"sum\(increase\((\w+)", query) or [
            "network:fabricpulse_edge_probes_lost:slo_ratio",
            "fabricpulse_nic_state",
        ]
        cases = {"still": ("7x80", 1), "silent": ("7x30", 0), "risen": ("7x40 9x40", 0)}
        if "fabricpulse_nic_state" in counters:
            del cases["risen"]
        tests += [
            {
                "name": f"{panel}: {counter} {case}",
                "interval": "15s",
                "input_series": [
                    {
                        "series": f'{name}{{instance="{host}", network="r", state="up"}}',
                        "values": values if (name, host) == (counter, "h1") else "7x80",
                    }
                    for name in counters
                    for host in ("h0", "h1")
                ],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": "15m",
                        "exp_samples": [{"labels": "{}", "value": 0}] if said else [],
                    }
                ],
            }
            for counter in counters
            for case, (values, said) in cases.items()
            if not (counter.startswith("network:") and case == "silent")
        ]
        tests.append(
            {
                "name": f"{panel}: no data",
                "promql_expr_test": [{"expr": query, "eval_time": "15m", "exp_samples": []}],
            }
        )
    run(tests, tmp_path)


def test_nothing_is_above_0_is_said_of_what_is_measured(tmp_path: Path) -> None:
    """All gauges of a panel are 0: said. One that falls silent, or no data: not said."""
    queries = lines("none above 0")
    assert queries
    tests = []
    for panel, query in queries.items():
        (name,) = set(re.findall(r"^0 \* count\((\w+)", query))
        for case, (other, said) in {"still": ("0+0x80", 1), "silent": ("0+0x30", 0)}.items():
            series = [
                (f'{name}{{instance="{host}", state="degraded"}}', values)
                for host, values in (("h0", "0+0x80"), ("h1", other))
            ]
            tests.append(
                {
                    "name": f"{panel}: {case}",
                    "interval": "15s",
                    "input_series": [{"series": one, "values": values} for one, values in series],
                    "promql_expr_test": [
                        {
                            "expr": query,
                            "eval_time": "15m",
                            "exp_samples": [{"labels": "{}", "value": 0}] if said else [],
                        }
                    ],
                }
            )
        tests.append({"promql_expr_test": [{"expr": query, "eval_time": "15m", "exp_samples": []}]})
    run(tests, tmp_path)


def test_the_list_of_alerts_says_that_none_fires(tmp_path: Path) -> None:
    """The most severe first, in the order of the query. Without one the watchdog, and without rules nothing at all."""
    (table,) = [
        panel
        for panel in MIXIN.dashboards["fabricpulse-now.json"]["panels"]
        if panel["title"] == "What is wrong, worst first"
    ]
    query = re.sub(r"\$\w+", ".*", table["targets"][0]["expr"])
    first = [query.index(f'severity{it}"') for it in ('="critical', '="warning', '!~"critical|warning')]
    assert first == sorted(first)
    assert "sortBy" not in table["options"]  # words: info comes before warning
    watchdog, fault = (
        f'alertname="{name}", severity="{severity}"'
        for name, severity in (("FabricWatchdog", "none"), ("FabricNicGone", "critical"))
    )
    tests = [
        {
            "interval": "15s",
            "input_series": [
                {"series": f"{metric}{{{labels}{more}}}", "values": values}
                for labels in firing
                for metric, more, values in (
                    ("ALERTS", ', alertstate="firing"', "1x80"),
                    ("ALERTS_FOR_STATE", "", "60x80"),
                )
            ],
            "promql_expr_test": [
                {
                    "expr": query,
                    "eval_time": "15m",
                    "exp_samples": [{"labels": f"{{{listed}}}", "value": 840}] if listed else [],
                }
            ],
        }
        for firing, listed in (((watchdog, fault), fault), ((watchdog,), watchdog), ((), ""))
    ]
    run(tests, tmp_path)


def run(tests: list[dict[str, Any]], folder: Path) -> None:
    """All tests in one process of promtool."""
    if PROMTOOLS[0] is None:
        pytest.skip("promtool is not installed; scripts/fetch_tools.sh gets it")
    file = folder / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "15s", "tests": tests}))
    done = subprocess.run([PROMTOOLS[0], "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_panel_is_not_green_of_what_is_dead_or_not_evaluated(tmp_path: Path) -> None:
    """A dead NIC beside one that is well, on one network or under one host name in two clusters, is what a cell shows;
    no alert fires only where rules are evaluated.
    """
    asked = {
        panel["title"].partition(",")[0]: re.sub(r"\$\w+", ".*", panel["targets"][0]["expr"])
        for dashboard in MIXIN.dashboards.values()
        for panel in dashboard["panels"]
        if panel["title"] in {"NICs of hosts with faults, $cluster", "Alerts firing"}
    }
    nics = (
        ('instance="one", cluster="a", device="e0"', "0x8"),
        ('instance="one", cluster="a", device="e1"', "1x8"),
        ('instance="two", cluster="a", device="e0"', "1x8"),
        ('instance="two", cluster="b", device="e0"', "0x8"),
        ('instance="well", cluster="a", device="e0"', "1x8"),
    )
    cell = {"eval_time": "2m", "expr": f"sum by (instance) ({asked['NICs of hosts with faults']})"}
    count = {"eval_time": "2m", "expr": asked["Alerts firing"]}
    watchdog = {"series": 'ALERTS{alertname="FabricWatchdog", alertstate="firing"}', "values": "1x8"}
    up = {"series": 'fabricpulse_build_info{instance="one"}', "values": "1x8"}
    tests: list[dict[str, Any]] = [
        {
            "name": "worst of a cell",
            "interval": "15s",
            "input_series": [
                {"series": f'{name}{{network="r0", {labels}}}', "values": values}
                for labels, connected in nics
                for name, values in (
                    ("fabricpulse_nic_connected", connected),
                    ("fabricpulse_nic_disconnects_total", "1x8"),
                )
            ],
            "promql_expr_test": [
                cell
                | {
                    "exp_samples": [
                        {"labels": f'{{instance="{name}"}}', "value": 0} for name in ("one", "two")
                    ]
                }
            ],
        },
        {
            "name": "evaluated",
            "interval": "15s",
            "input_series": [up, watchdog],
            "promql_expr_test": [count | {"exp_samples": [{"labels": "{}", "value": 0}]}],
        },
        {
            "name": "not evaluated",
            "interval": "15s",
            "input_series": [up],
            "promql_expr_test": [count | {"exp_samples": []}],
        },
    ]
    run(tests, tmp_path)
