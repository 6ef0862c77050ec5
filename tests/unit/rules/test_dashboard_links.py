"""`dashboard_url` of each alert opens the panel that draws the series of its expression, at its time."""

import re
from pathlib import Path

import promql_parser
import pytest
import yaml
from tests.unit.rules.compiled import ALERTS
from tests.unit.rules.linked_panels import (
    ELSEWHERE,
    GRAFANA,
    LINKED,
    URLS,
    beside,
    branches,
    drawn_by,
    opened,
    rendered,
    selectors_of,
)
from tests.unit.rules.test_promtool import PROMTOOLS, run

from fabricpulse.rules.mixin import compile_mixin

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", sorted(set(ALERTS) - {"FabricWatchdog"}))
def test_the_panel_draws_what_the_alert_fires_of(name: str) -> None:
    """Each way in which an alert can fire has a series that the panel asks for, through what is recorded."""
    _, panel, _ = opened(name, {})
    drawn = 0
    for branch in branches(promql_parser.parse(ALERTS[name]["expr"])):
        own = list(selectors_of(branch, own=True))
        if any(drawn_by(panel, selector) for selector in own):
            drawn += 1
            continue
        (other,) = {ELSEWHERE[name, metric] for metric, _ in own}
        if other.startswith("= "):
            assert drawn_by(panel, (other.removeprefix("= "), {}))
            drawn += 1
        elif not other.startswith("("):
            assert any(drawn_by(each, selector) for each in beside(name) for selector in own)
    assert drawn


def test_the_watchdog_opens_what_it_is_part_of() -> None:
    """It has no series but itself."""
    _, panel, _ = opened("FabricWatchdog", {})
    assert 'ALERTS{alertname="FabricWatchdog"' in panel["targets"][0]["expr"]


def test_a_panel_that_does_not_draw_it_is_found() -> None:
    """Another metric, another value of a label, and what is only recorded from something else are not it."""
    loss = {"targets": [{"expr": 'a{x="1|2"} or b{x=~"1|2"}', "legendFormat": ""}]}

    def drawn(expression: str) -> bool:
        return any(
            drawn_by(loss, selector) for selector in selectors_of(promql_parser.parse(expression), own=True)
        )

    assert drawn('b{x="1"}') and drawn('b{x=~"1|2"} unless c')
    assert not drawn('c unless b{x="1"}')
    assert not drawn('b{x="3"}') and not drawn('b{x=~"2|3"}') and not drawn("b")
    assert drawn_by(loss, ("b", {"x": frozenset("1")}))


def test_selection_follows_the_labels() -> None:
    """By variables that the page has; a NIC that is named for what it sends is selected as the sender."""
    for name, url in URLS.items():
        page, _, _ = opened(name, {})
        variables = {variable["name"] for variable in page["templating"]["list"]}
        assert set(re.findall(r"&var-(\w+)=", url)) <= variables, name
    labels = {"cluster": "a b", "instance": "h1", "device": "mlx5_0", "peer": "h2", "workload": "7"}
    assert opened("FabricNicGone", labels)[2] == {"cluster": "a b", "instance": "h1", "device": "mlx5_0"}
    # The sender is the peer of what is recorded of a flow.
    assert opened("FabricPathContended", labels)[2] == {"cluster": "a b", "instance": "h2", "workload": "7"}
    for direction, variable in (("receive", "instance"), ("transmit", "peer")):
        selected = opened("FabricNicLossy", labels | {"direction": direction})[2]
        assert selected == {"cluster": "a b", variable: "h1"}
    assert opened("FabricNicSlow", {})[2] == {}


def test_without_grafana_there_is_no_link() -> None:
    """A link to nowhere is worse than none."""
    assert not any("dashboard_url" in alert["annotations"] for alert in ALERTS.values())
    assert all(url.startswith(f"{GRAFANA}/d/") for url in URLS.values())


def test_the_time_is_that_of_the_alert() -> None:
    """From half an hour before the evaluation, or as far as the alert looks back, until now; a ruler without queries in
    templates gets none.
    """
    assert "&from=-1800000&to=now" in rendered(URLS["FabricNicGone"], {})
    assert "&from=-7200000&to=now" in rendered(URLS["FabricNicFlappingSlowly"], {})
    for period, lead in (("1h30m", "&from=-5400000&to=now"), ("", "")):
        settings = {"grafanaURL": GRAFANA, "alertLinkPeriod": period}
        rules = [rule for group in compile_mixin(settings=settings).alerts for rule in group["rules"]]
        (url,) = [rule["annotations"]["dashboard_url"] for rule in rules if rule["alert"] == "FabricNicGone"]
        assert re.fullmatch(rf"{re.escape(GRAFANA)}/d/\w+\?orgId=1&viewPanel=\d+{lead}", rendered(url, {}))


@pytest.mark.prometheus
@pytest.mark.parametrize("promtool", PROMTOOLS)
def test_prometheus_fills_the_link_in(promtool: str | None, tmp_path: Path) -> None:
    """Templates of every alert parse, and one of each form comes out as the tests here take them to."""
    if promtool is None:
        pytest.skip("promtool is not installed; scripts/fetch_tools.sh gets it")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": LINKED.rules + LINKED.alerts}))
    checked = run(promtool, "check", "rules", tmp_path / "rules.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    labels = {"cluster": "a b", "instance": "h1", "device": "e0", "network": "rail0"}
    forms = [
        {
            "alert": "FabricNicSlow",
            "expr": f'seen{{direction="{way}"}}',
            "annotations": {"dashboard_url": URLS["FabricNicSlow"]},
        }
        for way in ("receive", "transmit")
    ]
    (tmp_path / "forms.yaml").write_text(yaml.safe_dump({"groups": [{"name": "forms", "rules": forms}]}))
    expected = []
    for way in ("receive", "transmit"):
        named = labels | {"direction": way}
        url = re.sub(r"from=-1800000", "from=-1740000", rendered(URLS["FabricNicSlow"], named))
        expected.append({"exp_labels": named, "exp_annotations": {"dashboard_url": url}})
    series = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    test = {
        "rule_files": ["forms.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": f'seen{{{series}, direction="{way}"}}', "values": "1x5"}
                    for way in ("receive", "transmit")
                ],
                "alert_rule_test": [
                    {"eval_time": "1m", "alertname": "FabricNicSlow", "exp_alerts": expected}
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    tested = run(promtool, "test", "rules", tmp_path / "test.yaml")
    assert tested.returncode == 0, tested.stdout + tested.stderr
