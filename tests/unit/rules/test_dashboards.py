"""The dashboards: their style, what Grafana needs to draw them, and that they say nothing of what nobody knows."""

import re
from typing import Any

import promql_parser
import pytest
from tests.unit.rules.compiled import ALERTS, MIXIN, RECORDS, dashboard_queries, panels, selectors


@pytest.mark.parametrize("file", MIXIN.dashboards)
def test_dashboard_style(file: str) -> None:
    """Each dashboard takes its data source from a variable, each panel tells what it shows and in which unit."""
    dashboard = MIXIN.dashboards[file]

    assert dashboard["templating"]["list"][0]["name"] == "datasource"
    assert dashboard["editable"] is False
    seen_ids = [panel["id"] for panel in panels(dashboard)]
    assert len(set(seen_ids)) == len(seen_ids)
    cells: set[tuple[int, int]] = set()
    for panel in panels(dashboard):
        if panel["type"] == "row":
            continue
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEFGH"[: len(panel["targets"])])
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        area = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        if panel in dashboard["panels"]:
            assert not area & cells, f"{panel['title']} lies on another panel"
            cells |= area


@pytest.mark.parametrize("file", MIXIN.dashboards)
def test_what_grafana_needs_to_draw_a_panel(file: str) -> None:
    """What Grafana 12 was seen to draw wrongly without a word: scatter plots, legends of states, units of labels."""
    for panel in panels(MIXIN.dashboards[file]):
        if panel["type"] == "xychart":
            # Options without a version are read as those of Grafana < 11.1: the panel says "Err".
            assert panel["pluginVersion"] == "11.1.0"
            # Rows merge by all fields in common, and both frames have a __name__, each its own.
            steps = [step["id"] for step in panel["transformations"]]
            assert steps.index("filterFieldsByName") < steps.index("merge")
        elif panel["type"] == "state-timeline":
            # By default the legend shows thresholds, and nobody set any.
            assert panel["fieldConfig"]["defaults"]["color"]["mode"] == "palette-classic"
        elif panel["type"] == "timeseries":
            assert panel["options"]["legend"]["sortBy"] in ("Max", "Mean")
        elif panel["type"] == "table" and "groupingToMatrix" not in str(panel["transformations"]):
            # The default unit is put on labels, too: "rank 3" became "3 s".
            assert panel["fieldConfig"]["defaults"]["unit"] == "none"
        assert panel["type"] != "status-history"  # grid lines between equal states; a timeline merges them


@pytest.mark.parametrize("file", MIXIN.dashboards)
def test_a_blank_scatter_plot_has_its_reason_beside_it(file: str) -> None:
    """Without a dot Grafana draws no axes and no text: a number says whether nothing, or one of two alone, is known."""
    drawn = list(panels(MIXIN.dashboards[file]))
    for panel in drawn:
        if panel["type"] != "xychart":
            continue
        place = panel["gridPos"]
        beside = {"x": place["x"] + place["w"], "y": place["y"], "h": place["h"]}
        (count,) = [other for other in drawn if beside.items() <= other["gridPos"].items()]
        assert (count["type"], count["fieldConfig"]["defaults"]["noValue"]) == ("stat", "NO DATA")
        x, y = (target["expr"] for target in panel["targets"])
        (target,) = count["targets"]
        assert target["expr"].startswith(f"count({x} and on (cluster, ")
        assert target["expr"].endswith(f"{y}) or 0 * count({x})")


# Labels of which a fleet has so many values that a line for each cannot be read.
MANY = {"instance", "device", "peer", "peer_device", "rdma_device", "port", "lane", "rank", "collector"}
# One process a fleet: a line for each of its series is a line.
SINGLE = re.compile(r"fabricpulse_(clocksync|diagnosis|remediation(?!_agent_))_?")


def lines_are_bounded(node: Any) -> bool:
    """Whether an expression yields few series, however many NICs the fleet has."""
    match node:
        case promql_parser.AggregateExpr() if str(node.op) in ("topk", "bottomk"):
            return True
        case promql_parser.AggregateExpr():
            kept = set(node.modifier.labels) if node.modifier else set()
            return not kept & MANY or lines_are_bounded(node.expr)
        case promql_parser.BinaryExpr() if str(node.op) == "or":
            return lines_are_bounded(node.lhs) and lines_are_bounded(node.rhs)
        case promql_parser.BinaryExpr() if str(node.op) == "unless":
            return lines_are_bounded(node.lhs)
        case promql_parser.BinaryExpr():
            return any(
                lines_are_bounded(side)
                for side in (node.lhs, node.rhs)
                if not isinstance(side, promql_parser.NumberLiteral)
            )
        case promql_parser.Call() if node.func.name == "vector":
            return True
        case promql_parser.Call():
            return any(
                lines_are_bounded(argument)
                for argument in node.args
                if not isinstance(argument, promql_parser.NumberLiteral)
            )
        case promql_parser.ParenExpr() | promql_parser.SubqueryExpr() | promql_parser.UnaryExpr():
            return lines_are_bounded(node.expr)
        case promql_parser.MatrixSelector():
            return lines_are_bounded(node.vector_selector)
        case promql_parser.VectorSelector():
            name = node.name or ""
            return bool(SINGLE.match(name)) or name.startswith(("network:", "workload:"))
    raise AssertionError(f"unknown node {node!r}")


@pytest.mark.parametrize(
    ("expression", "bounded"),
    [
        ("rate(fabricpulse_lanes[5m]) > 0", False),
        ("sum by (instance) (fabricpulse_lanes)", False),
        ("sum by (reason) (fabricpulse_lanes)", True),
        ("fabricpulse_lanes and on (instance) topk(20, fabricpulse_lanes)", True),
        ("fabricpulse_lanes unless on (instance) topk(20, fabricpulse_lanes)", False),
        ("topk(20, fabricpulse_lanes) or fabricpulse_lanes", False),
        ("vector(-1) unless on () count(fabricpulse_lanes)", True),
        ("fabricpulse_remediation_paused", True),
        ("fabricpulse_remediation_agent_avoided", False),
    ],
)
def test_what_bounds_lines(expression: str, bounded: bool) -> None:
    """The check below tells a filter that keeps few series from one that may keep all."""
    assert lines_are_bounded(promql_parser.parse(expression)) is bounded


@pytest.mark.parametrize("file", MIXIN.dashboards)
def test_a_panel_over_time_draws_few_lines(file: str) -> None:
    """With 256 NICs, or all of them with faults, a panel draws those that matter most: chosen over the whole range, for
    topk at each moment draws whatever was among the first for once.
    """
    for panel in panels(MIXIN.dashboards[file]):
        if panel["type"] not in ("timeseries", "state-timeline"):
            continue
        for target in panel["targets"]:
            expression = re.sub(r"\$__\w+", "1m", target["expr"])
            assert lines_are_bounded(promql_parser.parse(expression)), f"{panel['title']}: {expression}"
            if re.search(r"\b(topk|bottomk)\(", expression):
                assert "@ end()" in expression, f"{panel['title']}: {expression}"


def test_the_network_chosen_reaches_every_path() -> None:
    """Series of pairs have no network label, so that the variable changed nothing there."""
    for panel in panels(MIXIN.dashboards["fabricpulse-paths.json"]):
        # Of one the network that the NIC is said to be in is what is in doubt.
        if panel["type"] != "row" and panel["title"] not in {"Clock error bound", "Cables at a wrong leaf"}:
            assert all('network=~"$network' in target["expr"] for target in panel["targets"]), panel["title"]


def test_the_estimated_error_is_beside_the_bound_and_not_taken_for_it() -> None:
    """One of them is a guarantee: each line says which it is, and no rule reads the other."""
    by_title = {panel["title"]: panel for panel in panels(MIXIN.dashboards["fabricpulse-clock.json"])}
    bound, estimate = by_title["Error bound"], by_title["Estimated error"]

    for panel, name, what in (
        (bound, "error_bound", "hard bound"),
        (estimate, "estimated_error", "estimated error"),
    ):
        (target,) = panel["targets"]
        assert {metric for metric, _ in selectors(re.sub(r"\$__\w+", "1m", target["expr"]))} == {
            f"fabricpulse_clock_{name}_seconds"
        }
        assert target["legendFormat"] == f"{{{{instance}}}} {what}"
        assert panel["fieldConfig"]["defaults"]["unit"] == "s"
    assert bound["gridPos"]["y"] == estimate["gridPos"]["y"]
    assert not any("estimated_error" in rule["expr"] for rule in (ALERTS | RECORDS).values())


def shown_without_data(panel: dict[str, Any], what: str) -> str:
    """The colour that Grafana gives to a value of a panel that is null or NaN: `what`."""
    defaults = panel["fieldConfig"]["defaults"]
    for mapping in defaults.get("mappings", []):
        if mapping["type"] == "special" and what in mapping["options"]["match"].split("+"):
            return str(mapping["options"]["result"]["color"])
    steps = defaults.get("thresholds", {"steps": [{"color": "green"}]})["steps"]
    return str(steps[0]["color"])


@pytest.mark.parametrize("file", MIXIN.dashboards)
def test_nothing_is_green_without_data(file: str) -> None:
    """No panel that colours by thresholds gives a value that is missing, or not a number, the colour of one that is
    well: Grafana takes the lowest step for it. A number counts nothing as 0 where nothing is known; -1 is the state of
    that.
    """
    coloured = [
        panel
        for panel in panels(MIXIN.dashboards[file])
        if panel["type"] == "stat"
        or panel.get("fieldConfig", {})
        .get("defaults", {})
        .get("custom", {})
        .get("cellOptions", {})
        .get("type")
        == "color-background"
    ]
    for panel in coloured:
        for what in ("null", "nan"):
            assert shown_without_data(panel, what) in {"purple", "transparent"}, (panel["title"], what)
        if panel["type"] == "stat":
            assert panel["fieldConfig"]["defaults"]["noValue"] == "NO DATA", panel["title"]
    for query in dashboard_queries(MIXIN.dashboards[file]):
        assert not re.search(r"vector\((?!-1\))|absent\(", query), query


LINK = re.compile(
    r"/d/(\w+)\?\$\{__url_time_range\}&\$\{datasource:queryparam\}&\$\{cluster:queryparam\}"
    r"((?:&var-\w+=\$\{[^}]+\})+)"
)


@pytest.mark.parametrize("file", MIXIN.dashboards)
def test_links_keep_the_selection_and_the_time(file: str) -> None:
    """Each cell or line that names a host, a NIC, a network or a job opens the page on it, at the same time, in the
    same data source and cluster; what it selects is a variable there, and a column or a label here.
    """
    variables = {
        page["uid"]: {each["name"] for each in page["templating"]["list"]}
        for page in MIXIN.dashboards.values()
    }
    for panel in panels(MIXIN.dashboards[file]):
        if panel["type"] not in ("table", "state-timeline"):
            continue
        config = panel["fieldConfig"]
        own = [
            link
            for each in config["overrides"]
            for p in each["properties"]
            if p["id"] == "links"
            for link in p["value"]
        ]
        links = [link for link in [*own, *config["defaults"].get("links", [])] if link["title"] != "Runbook"]
        organized = [step["options"] for step in panel.get("transformations", []) if step["id"] == "organize"]
        here = {f"${{__data.fields.{name}}}" for options in organized for name in options["indexByName"]}
        here |= {f"${{__field.labels.{name}}}" for name in re.findall(r"\w+", str(panel["targets"]))}
        if "repeat" in panel:
            # Of a matrix the first field has the names of the rows, and each other one is a column.
            here |= {"${__data.fields[0]}", "${__field.name}"}
        for link in links:
            match = LINK.fullmatch(link["url"])
            assert match, link
            for variable, expression in re.findall(r"&var-(\w+)=([^&]+)", match[2]):
                assert variable in variables[match[1]], link
                assert expression in here, link
        named = {name for options in organized for name in options["indexByName"]} | set(
            re.findall(r"{{(\w+)}}", panel["targets"][0]["legendFormat"])
        )
        if named & {"instance", "network", "workload"} or "repeat" in panel:
            assert links, panel["title"]


def test_matrices_keep_clusters_apart() -> None:
    """Two clusters may have hosts of one name: each has a matrix of its own, of what it has alone."""
    matrices = [
        panel
        for page in MIXIN.dashboards.values()
        for panel in panels(page)
        if "groupingToMatrix" in str(panel.get("transformations"))
    ]
    assert len(matrices) == 3
    for panel in matrices:
        assert (panel["repeat"], panel["title"].rpartition(", ")[2]) == ("cluster", "$cluster")
        (target,) = panel["targets"]
        assert all("cluster" in labels for _, labels in selectors(re.sub(r"\$__\w+", "1m", target["expr"])))
        assert not re.search(r"\b(by|on) \((?!cluster)", target["expr"])


def test_dashboard_uids() -> None:
    """Uids are distinct and do not change: links and bookmarks hold on to them."""
    uids = {file: dashboard["uid"] for file, dashboard in MIXIN.dashboards.items()}

    assert len(set(uids.values())) == len(uids)
    assert uids["fabricpulse-fleet.json"] == "d84f966aa1ca711210688f293cc21e2e"
