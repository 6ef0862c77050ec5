"""The mixin and what it renders to: one source, both engines, the house rules of alerts."""

import json
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.rules.compiled import ALERTS, MIXIN, RECORDS, dashboard_queries, selectors
from tests.unit.rules.linked_panels import opened
from tests.unit.rules.mutation import seconds

from fabricpulse.core.metrics.catalogue import MetricSpec, load_catalogue
from fabricpulse.mesh.alerts import DEFAULT_LABELS, DISCONNECTED
from fabricpulse.mesh.config import NicAlerting
from fabricpulse.rules.files import differences, rendered_files
from fabricpulse.rules.formats import Placement, prometheus_rule
from fabricpulse.rules.mixin import Mixin, compile_mixin, knobs, mixin_dir

ROOT = Path(__file__).parents[3]
# Series of Prometheus itself.
FOREIGN = {"up", "ALERTS", "ALERTS_FOR_STATE"}
# libyaml's: ten times as fast.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
RUNBOOK_HEADINGS = (
    "What it means",
    "What it does to jobs",
    "How to find the cause",
    "What to do",
    "How to tune it",
)


def test_rendered_is_committed() -> None:
    """rules/ is what mixins/ renders to; `make rules` mends it."""
    assert differences(ROOT / "rules", rendered_files(MIXIN)) == []


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["_gojsonnet", pytest.param("_jsonnet", marks=pytest.mark.slow)])
def test_other_engines_agree(engine: str) -> None:
    """The engines that our users run, in Go and in C++, evaluate the mixin as the one in Rust that we run does."""
    snippet = """
    local m = import 'mixin.libsonnet';
    { alerts: m.prometheusAlerts, rules: m.prometheusRules, dashboards: m.grafanaDashboards }
    """
    value = json.loads(import_module(engine).evaluate_snippet("mixin", snippet, jpathdir=[str(mixin_dir())]))

    assert value["alerts"]["groups"] == MIXIN.alerts
    assert value["rules"]["groups"] == MIXIN.rules
    assert value["dashboards"] == MIXIN.dashboards


@pytest.mark.parametrize("name", ALERTS)
def test_alert_style(name: str) -> None:
    """Each alert has what the mixin conventions ask for, in their form."""
    alert = ALERTS[name]
    annotations = alert["annotations"]

    assert re.fullmatch(r"Fabric([A-Z][a-z0-9]+)+", name)
    assert len(name) <= 40
    assert alert["labels"]["severity"] in {"critical", "warning", "info", "none"}
    assert re.fullmatch(r"[A-Z][^{}]+\.", annotations["summary"])
    assert "{{" in annotations["description"]
    assert annotations["runbook_url"].endswith(f"/docs/runbooks/{name}.md")
    # A value in a label makes a new alert with each evaluation.
    assert not any("$value" in value for value in alert["labels"].values())


def test_group_style() -> None:
    """Groups have distinct short names and at most twenty rules; alerts are named once."""
    groups = MIXIN.alerts + MIXIN.rules
    names = [group["name"] for group in groups]

    assert len(set(names)) == len(names)
    assert all(len(name) <= 40 and name.startswith("fabricpulse-") for name in names)
    assert all(0 < len(group["rules"]) <= 20 for group in groups)
    # Keys that Prometheus 2.42 does not know would make it refuse the whole file.
    assert all(set(group) <= {"name", "rules", "interval"} for group in groups)
    assert sum(len(group["rules"]) for group in MIXIN.alerts) == len(ALERTS)


def test_what_pages_is_evaluated_with_each_scrape() -> None:
    """Groups that are evaluated less often hold no alert that must page at once; the rendered files say how often."""
    slow = [group for group in MIXIN.alerts + MIXIN.rules if "interval" in group]
    assert {group["interval"] for group in slow} == {"30s", "1m", "2m", "4m"}
    for group in slow:
        for rule in group["rules"]:
            if "alert" in rule and rule["labels"]["severity"] == "critical":
                # It comes later by no more than what it waits for anyway.
                assert seconds(rule.get("for", "0s")) >= seconds(group["interval"]), rule["alert"]
    rendered = "".join(rendered_files(MIXIN).values())
    for group in slow:
        assert f"- name: {group['name']}\n  interval: {group['interval']}\n  rules:" in rendered


def test_slow_groups_follow_their_knob() -> None:
    """Each knob of an interval reaches every group that has it, and the Kubernetes object as well."""
    asked = {"slowInterval": "41s", "seldomInterval": "42s", "flowInterval": "43s", "rareInterval": "44s"}
    groups = prometheus_rule(compile_mixin(settings=asked), Placement())["spec"]["groups"]

    usual = {"1m": "41s", "2m": "42s", "30s": "43s", "4m": "44s", None: None}
    assert {group["name"]: group.get("interval") for group in groups} == {
        group["name"]: usual[group.get("interval")] for group in MIXIN.alerts + MIXIN.rules
    }


@pytest.mark.parametrize("name", RECORDS)
def test_record_style(name: str) -> None:
    """Recorded series are named level:metric:operations and say what they keep: under Kubernetes the targets have
    labels (pod, node) that nobody listed who wrote what to sum away.
    """
    assert re.fullmatch(r"[a-z_]+:fabricpulse_[a-z0-9_]+:[a-z0-9_]+", name)
    assert not re.search(r"\bwithout\b", RECORDS[name]["expr"])


@pytest.mark.parametrize("name", ALERTS)
def test_runbook(name: str) -> None:
    """Each alert has a page with all its headings, and each heading something below it."""
    text = (ROOT / "docs" / "runbooks" / f"{name}.md").read_text()

    assert text.startswith(f"# {name}\n")
    sections = dict(re.findall(r"^## (.+)\n\n([^#]+)", text, re.M))
    assert tuple(sections) == RUNBOOK_HEADINGS
    assert all(len(section.split()) >= 1 for section in sections.values())


@pytest.mark.parametrize("name", ALERTS)
def test_a_runbook_begins_with_what_its_alert_opens(name: str) -> None:
    """The search for the cause begins with the panel to which `dashboard_url` leads, and a picture of its page."""
    page, panel, _ = opened(name, {})
    (file,) = [file for file, other in MIXIN.dashboards.items() if other["uid"] == page["uid"]]
    text = (ROOT / "docs" / "runbooks" / f"{name}.md").read_text()
    search = text.partition("## How to find the cause\n")[2].strip()
    assert search.startswith("`dashboard_url` of the alert (where `grafanaURL` is set) opens the panel ")
    title = page["title"].removeprefix("Fabricpulse / ")
    assert f" opens the panel *{panel['title']}* of *{title}*" in search.partition("\n")[0]
    (shown,) = re.findall(r"\(\.\./(pictures/\w+\.webp)\)", search)
    assert shown == f"pictures/{file.removeprefix('fabricpulse-').removesuffix('.json')}.webp"
    assert (ROOT / "docs" / shown).is_file()


def test_no_stray_runbook() -> None:
    """No page is left of an alert that is gone."""
    assert {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")} - {"README"} == set(ALERTS)


def test_alerts_are_tested() -> None:
    """Each alert has a promtool test in which it fires; each but the watchdog has one in which it does not."""
    expected: dict[str, list[list[Any]]] = {name: [] for name in ALERTS}
    for path in (ROOT / "rules" / "tests").glob("*.yaml"):
        for test in yaml.load(path.read_text(), LOADER)["tests"]:  # noqa: S506 (a safe one)
            for case in test.get("alert_rule_test", []):
                expected[case["alertname"]].append(case["exp_alerts"])

    assert [name for name, cases in expected.items() if not any(cases)] == [], "no test in which it fires"
    never_quiet = [name for name, cases in expected.items() if all(cases)]
    assert never_quiet == ["FabricWatchdog"], "no test in which it does not fire"


EXPRESSIONS = [
    *((name, rule["expr"]) for name, rule in (ALERTS | RECORDS).items()),
    *((file, query) for file, d in MIXIN.dashboards.items() for query in dashboard_queries(d)),
]


# The count is the number of the collective that a rank is in: those of ranks are compared with one another.
NUMBERS = {"fabricpulse_rank_operations_total"}
LAGS_UNNOTICED = {
    # How many NICs a network has does not change with a fault.
    "network:fabricpulse_nic_connected:count",
    # It ends an alert, of what a replaced pod said last, and raises none.
    "device:fabricpulse_nic_connected:outdated_zero",
    # What the gauge of each NIC tells, where nobody says which are disconnected.
    "device:fabricpulse_nic_connected:zero",
    "device:fabricpulse_nic_connected:all_zero",
    # Has been so for a minute.
    "daemon:fabricpulse_up:down",
    "host:fabricpulse_up:max",
    # Whoever is named has been silent for longer than this lags.
    "cluster:fabricpulse_up:max",
    # Labels, no values: in which networks NICs are does not change with a fault.
    "device:fabricpulse_nic_network:alike",
    "device:fabricpulse_nic_network:other",
    # How many there are, which does not change with a fault.
    "host:fabricpulse_up:count",
    "host:fabricpulse_nic_network:count",
    # It keeps what processesWindow tells at once.
    "host:fabricpulse_qp_processes:lost",
}


def test_metrics_exist() -> None:
    """Each metric in a rule or panel is exported or recorded, has the labels asked for, and the fitting function."""
    catalogue = load_catalogue()
    for where, expression in EXPRESSIONS:
        check_metrics(where, expression, catalogue)


def check_metrics(where: str, expression: str, catalogue: Mapping[str, MetricSpec]) -> None:
    target = {"job", "instance", "cluster"}
    for name, labels in selectors(expression):
        if name in FOREIGN:
            continue
        if name in RECORDS:
            lag = "a rule that needs a recorded series lags by an evaluation"
            assert (
                where in MIXIN.dashboards
                or where in RECORDS
                or "for" in ALERTS[where]
                or "[1h]" in expression
                # Labels, no values: where a NIC is does not change with a fault.
                or name.endswith(":info")
                or name in LAGS_UNNOTICED
                # It looks back over minutes: beside that one evaluation does not count.
                or "keep_firing_for" in ALERTS[where]
            ), lag
            continue
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        spec = catalogue.get(name) or catalogue.get(family)
        assert spec, f"{where}: no metric {name}"
        extra = {"histogram": {"le"}, "summary": {"quantile"}}.get(spec.type, set())
        assert set(labels) <= {*spec.labels, *target, *extra}, f"{where}: {name} has no such label"
        if spec.type in {"counter", "histogram"} and name not in NUMBERS:
            assert re.search(rf"(rate|increase|present_over_time)\({name}\b", expression), (
                f"{where}: bare counter {name}"
            )
        else:
            assert not re.search(rf"(rate|increase)\({name}\b", expression), f"{where}: rate of gauge {name}"


def test_pushed_alert_is_the_rules_alert() -> None:
    """What the mesh exporter pushes has the labels of the rule: Alertmanager takes both for one."""
    rule = ALERTS["FabricNicDisconnected"]

    target = {"job"}
    pushed = {"alertname": DISCONNECTED, "severity": NicAlerting().severity, **DEFAULT_LABELS}
    assert rule["labels"] | {"alertname": rule["alert"]} == {
        k: v for k, v in pushed.items() if k not in target
    }


@pytest.fixture(scope="module")
def configured() -> Mixin:
    """The mixin with knobs of each kind set."""
    return compile_mixin(
        settings={
            "selector": 'cluster="a"',
            "flapThreshold": 7,
            "severities": {"FabricNicFlapping": "critical"},
            "disabledAlerts": ["FabricWatchdog"],
            "extraLabels": {"team": "net"},
        }
    )


def test_knobs_reach_the_rules(configured: Mixin) -> None:
    """Selector, threshold, severity, disabled alerts and extra labels arrive where they belong."""
    mixin = configured
    alerts = {rule["alert"]: rule for group in mixin.alerts for rule in group["rules"]}

    assert "FabricWatchdog" not in alerts
    flapping = alerts["FabricNicFlapping"]
    assert 'recent_disconnect_age_seconds{cluster="a"})[5m:15s])) < 300) >= 7' in flapping["expr"]
    expected = {"severity": "critical", "component": "mesh", "team": "net", "remediate": "nccl"}
    assert flapping["labels"] == expected
    for group in mixin.alerts + mixin.rules:
        for rule in group["rules"]:
            for name, labels in selectors(rule["expr"]):
                assert "cluster" in labels, f"{rule} reads {name} of all fleets"


def shipped_route(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """The route of deploy/alertmanager.yml by which an alert is paged."""
    shipped = yaml.safe_load((ROOT / "deploy" / "alertmanager.yml").read_text())

    def matches(route: dict[str, Any]) -> bool:
        parts = [re.fullmatch(r'(\w+)(=~?)"(.*)"', text) for text in route.get("matchers", [])]
        own = {"alertname": name, **labels}
        return all(
            part and re.fullmatch(part[3] if part[2] == "=~" else re.escape(part[3]), own.get(part[1], ""))
            for part in parts
        )

    routes: list[dict[str, Any]] = shipped["route"]["routes"]
    return next(route for route in routes if matches(route) and not route.get("continue"))


@pytest.mark.parametrize("name", ["FabricNicDisconnected", "FabricNicFlapping"])
def test_a_pushed_alert_is_paged_within_seconds(name: str) -> None:
    """Not after Alertmanager's half a minute; with time for a leaf's alert to mute those of its NICs."""
    route = shipped_route(name, ALERTS[name]["labels"])

    assert route["receiver"] == "on-call"
    assert 5 <= seconds(route["group_wait"]) <= 10


@pytest.mark.parametrize("flows", [None, "measured"])
def test_a_slow_network_is_reported_once_its_flow_can_be_named(flows: str | None) -> None:
    """Its route waits for as long as FabricPathContended, which mutes it, may take; not where no flow is
    measured, of which that could come.
    """
    labels = {"severity": "warning", "network": "rail0", "flows": flows or ""}

    route = shipped_route("FabricNetworkSlow", labels)
    known = knobs(mixin_dir())
    alerted = seconds(known["rateWindow"]) + seconds(known["contentionFor"])
    if flows:
        assert seconds(route["group_wait"]) >= alerted
        assert route["group_by"] == ["alertname", "cluster", "network"]
    else:
        assert "group_wait" not in route
    assert route["receiver"] == "on-call"


def test_every_knob_is_used() -> None:
    """A knob that changes nothing is a lie."""
    sources = "".join(
        path.read_text() for path in mixin_dir().rglob("*.libsonnet") if path.name != "config.libsonnet"
    )
    assert [name for name in knobs(mixin_dir()) if f"config.{name}" not in sources] == []
