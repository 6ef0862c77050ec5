"""The rules behave as their promtool tests say."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.rules.compiled import MIXIN
from tests.unit.rules.linked_panels import shows_something
from tests.unit.rules.needed_rules import name_of, split

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.prometheus
TESTS = sorted((ROOT / "rules" / "tests").glob("*.yaml"))
EDGES = sorted((ROOT / "rules" / "tests" / "edges").glob("*.yaml"))


def find_promtools() -> list[str]:
    """Each promtool that there is: .tools/ (Debian's), .tools/newer (the newest), PATH."""
    folders = [ROOT / ".tools" / "usr" / "bin", ROOT / ".tools" / "newer" / "usr" / "bin"]
    found = [str(folder / "promtool") for folder in folders if (folder / "promtool").is_file()]
    on_path = shutil.which("promtool")
    return found or ([on_path] if on_path else [])


PROMTOOLS: list[str | None] = [*find_promtools()] or [None]


@pytest.fixture(
    params=PROMTOOLS, ids=lambda path: "promtool" if path is None else path.removeprefix(f"{ROOT}/")
)
def promtool(request: pytest.FixtureRequest) -> str:
    """Path of a promtool."""
    if request.param is None:
        pytest.skip("promtool is not installed; scripts/fetch_tools.sh gets it")
    return str(request.param)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        # It lives for seconds: to collect garbage less often saves a quarter of its processor time.
        env=os.environ | {"GOGC": "400"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


# What exporters give beside a series of which a test of rules may give that alone: metric, samples, label.
BESIDE = {
    "fabricpulse_nic_disconnected": (
        ("fabricpulse_nic_connected", "0x300", ""),
        ("fabricpulse_nic_disconnects_total", "0+1x300", ""),
    ),
    "fabricpulse_nic_connected": (("fabricpulse_nic_disconnects_total", "0+1x300", ""),),
    "fabricpulse_nic_recent_disconnect_age_seconds": (("fabricpulse_nic_disconnects_total", "0+1x300", ""),),
    "fabricpulse_nic_port_recent_down_age_seconds": (
        ("fabricpulse_nic_port_down_transitions_total", "0+1x300", ""),
    ),
    "fabricpulse_edge_latency_elevated": (("fabricpulse_edge_owd_seconds", "0.01x300", 'quantile="0.5"'),),
}


def panels_shown(test: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Where a test expects alerts: that each panel draws something that their links open, with what they select."""
    asked = [
        {
            "expr": shows_something(case["alertname"], fires["exp_labels"]),
            "eval_time": case["eval_time"],
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for case in test.get("alert_rule_test", [])
        for fires in case["exp_alerts"]
        # What is absent and what always fires has no series.
        if case["alertname"] not in ("FabricNoData", "FabricWatchdog")
    ]
    if asked:
        kept = {key: value for key, value in test.items() if not key.endswith("_test")}
        yield kept | {"input_series": completed(test["input_series"]), "promql_expr_test": asked}


def completed(input_series: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With what an exporter gives beside."""
    given = [
        re.sub(r', nth="\w+"|nth="\w+", |quantile="[\d.]+", |, quantile="[\d.]+"', "", each["series"])
        for each in input_series
    ]
    names = {re.split(r"[{ ]", series)[0] for series in given}
    added: dict[str, str] = {}
    for series in given:
        name, _, labels = series.partition("{")
        for other, values, label in BESIDE.get(name, ()):
            if other not in names:
                added.setdefault(f"{other}{{{label}{', ' if label else ''}{labels}", values)
    return input_series + [{"series": series, "values": values} for series, values in added.items()]


def test_there_are_tests() -> None:
    """An empty folder would pass everything below."""
    assert len(TESTS) >= 5


def test_check(promtool: str) -> None:
    """promtool accepts every rule file, with all its lints."""
    files = sorted((ROOT / "rules" / "alerts").glob("*.yaml")) + sorted(
        (ROOT / "rules" / "recording").glob("*.yaml")
    )

    result = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", *files)

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("promtool", "path"),
    [(tool, path) for tool in PROMTOOLS for path in TESTS + (EDGES if tool != PROMTOOLS[0] else [])],
    ids=lambda part: str(part).removeprefix(f"{ROOT}/").removeprefix("rules/tests/").removesuffix(".yaml"),
    indirect=["promtool"],
)
def test_unit(promtool: str, path: Path, tmp_path: Path) -> None:
    """The unit tests of a group pass, those at the edges of windows also where these have no left end (Prometheus 3).

    test_mutation.py runs the latter with the first promtool. Where an alert fires, the panel that it opens shows it.
    """
    shown = (panels_shown, MIXIN.rules) if promtool == PROMTOOLS[0] else ()
    files = split(path, tmp_path, *shown)
    result = run(promtool, "test", "rules", *files)

    assert result.returncode == 0, result.stdout + result.stderr


def test_what_a_test_reads_is_kept(tmp_path: Path) -> None:
    """What the rules asked for read, also of alerts, in their groups; the rest is left out."""
    (tmp_path / "rules.yaml").write_text(
        """groups:
- {name: one, rules: [{record: "a:b:c", expr: up}, {alert: Read, expr: up}, {alert: Other, expr: up}]}
- {name: two, interval: 1m, rules: [{alert: Asked, expr: 'a:b:c unless ALERTS{alertname=~"Re.+"}'}]}
"""
    )
    (tmp_path / "t.yaml").write_text(
        """{rule_files: [rules.yaml], evaluation_interval: 15s, tests: [
{name: of one, alert_rule_test: [{eval_time: 1m, alertname: Asked, exp_alerts: []}]},
{name: of a record, promql_expr_test: [{expr: "sum(a:b:c)", eval_time: 1m, exp_samples: []}]},
{name: of all, promql_expr_test: [{expr: "count({__name__=~'.+'})", eval_time: 1m, exp_samples: []}]}]}
"""
    )
    (tmp_path / "out").mkdir()
    kept = []
    for path in split(tmp_path / "t.yaml", tmp_path / "out"):
        (rule_file,) = yaml.safe_load(path.read_text())["rule_files"]
        groups = yaml.safe_load((path.parent / rule_file).read_text())["groups"]
        kept.append([(group["name"], [name_of(rule) for rule in group["rules"]]) for group in groups])
    assert kept == [
        [("one", ["a:b:c", "Read"]), ("two", ["Asked"])],
        [("one", ["a:b:c"])],
        [("one", ["a:b:c", "Read", "Other"]), ("two", ["Asked"])],
    ]


def test_a_test_of_an_alert_that_is_not_loaded_is_refused(tmp_path: Path) -> None:
    """It would expect nothing of it, and pass."""
    (tmp_path / "rules.yaml").write_text("groups: [{name: one, rules: [{alert: A, expr: up}]}]")
    (tmp_path / "t.yaml").write_text(
        "{rule_files: [rules.yaml], tests: [{name: x, alert_rule_test: [{alertname: B, exp_alerts: []}]}]}"
    )
    with pytest.raises(ValueError, match=r"t\.yaml: x: no rule B"):
        split(tmp_path / "t.yaml", tmp_path)


@pytest.mark.parametrize(
    ("file", "title"),
    [("now", "What is wrong, worst first"), ("fleet", "Alerts firing"), ("now", "Critical alerts begin")],
)
def test_an_alert_of_no_cluster_is_shown_for_each(
    promtool: str, file: str, title: str, tmp_path: Path
) -> None:
    """FabricNoData where no series is left to name one: a page of one cluster said that nothing else fires."""
    dashboard = MIXIN.dashboards[f"fabricpulse-{file}.json"]
    asked = {
        panel["title"]: panel["targets"][0]["expr"] for panel in dashboard["panels"] if "targets" in panel
    }
    asked |= {each["name"]: each["expr"] for each in dashboard["annotations"]["list"]}
    firing = [
        f'{name}{{alertname="{alert}", severity="{severity}"{state}}}'
        for alert, severity in (("FabricNoData", "critical"), ("FabricWatchdog", "none"))
        for name, state in (("ALERTS", ', alertstate="firing"'), ("ALERTS_FOR_STATE", ""))
    ]
    for cluster in ("a", "(a|b)", ".*"):
        shown = asked[title].replace("$cluster", cluster)
        if title != "Alerts firing":
            shown = f'count(({shown}) and on (alertname) ALERTS{{alertname="FabricNoData"}})'
        test = {
            "interval": "1m",
            "input_series": [{"series": series, "values": "_ _ 1 1 1"} for series in firing],
            "promql_expr_test": [
                {"expr": shown, "eval_time": "2m", "exp_samples": [{"labels": "{}", "value": 1}]}
            ],
        }
        path = tmp_path / "test.yaml"
        path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
        result = run(promtool, "test", "rules", path)
        assert result.returncode == 0, result.stdout + result.stderr


def test_a_fleet_without_a_quorum_is_not_hidden_by_another(promtool: str, tmp_path: Path) -> None:
    """Both are shown where no cluster was chosen; of two coordinators of one fleet one may be cut off."""
    panels = MIXIN.dashboards["fabricpulse-clock.json"]["panels"]
    (asked,) = (panel["targets"][0]["expr"] for panel in panels if panel["title"] == "Without a quorum")
    quorums = {"a": (1, 0), "b": (0, 0)}
    test = {
        "interval": "1m",
        "input_series": [
            {
                "series": f'fabricpulse_clocksync_quorum{{cluster="{cluster}", instance="m{host}"}}',
                "values": f"{has}x3",
            }
            for cluster, hosts in quorums.items()
            for host, has in enumerate(hosts)
        ],
        "promql_expr_test": [
            {
                "expr": asked.replace("$cluster", chosen),
                "eval_time": "2m",
                "exp_samples": [] if without is None else [{"labels": "{}", "value": without}],
            }
            for chosen, without in ((".*", 1), ("a", 0), ("b", 1), ("none", None))
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    result = run(promtool, "test", "rules", path)
    assert result.returncode == 0, result.stdout + result.stderr
