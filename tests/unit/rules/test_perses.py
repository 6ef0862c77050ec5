"""Our dashboards in Perses form: nothing is lost, nothing is green without data, what is unknown is refused."""

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from click.testing import CliRunner
from tests.unit.rules.compiled import MIXIN

from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.rules.command import command
from fabricpulse.rules.files import differences
from fabricpulse.rules.formats import Placement, files_of
from fabricpulse.rules.perses import panels_of, perses_dashboards, queries_of
from fabricpulse.rules.perses_parts import COLORS, at_end, title_of, without_end

ROOT = Path(__file__).parents[3]
PERSES = perses_dashboards(MIXIN.dashboards)
HEX = re.compile(r"#(?:[0-9a-fA-F]{3}){1,2}")
# Of the schemas of Perses 0.54.
UNITS = {
    *("decimal", "seconds", "percent-decimal", "celsius", "decbytes/sec", "packets/sec", "requests/sec"),
}


def panels(file: str) -> list[dict[str, Any]]:
    return [panel for _, inside in panels_of(MIXIN.dashboards[file]) for panel in inside]


def drawn(file: str) -> list[dict[str, Any]]:
    """The same, as Perses has them."""
    return [panel["spec"] for panel in PERSES[file]["spec"]["panels"].values()]


def walk(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each name and value within."""
    yield name, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from walk(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner, name)


def test_rendered_is_committed() -> None:
    """rules/perses/ is what mixins/ renders to; `make rules` updates it."""
    files = files_of(MIXIN, "perses", Placement(), ROOT / "rules")

    assert len(files) == len(MIXIN.dashboards) == 9
    assert differences(ROOT / "rules", files) == []


@pytest.mark.parametrize("file", MIXIN.dashboards)
def test_nothing_is_lost(file: str) -> None:
    """Every panel is there with its title, its description, its queries and its legends, in the same order."""
    for panel, perses in zip(panels(file), drawn(file), strict=True):
        assert perses["display"]["name"] == title_of(panel)
        assert perses["display"]["description"].startswith(panel["description"])
        asked = [query["spec"]["plugin"]["spec"] for query in perses["queries"]]
        expected = [(t["expr"], t["legendFormat"].replace("__auto", "")) for t in panel["targets"]]
        found = [(without_end(each["query"]), each.get("seriesNameFormat", "")) for each in asked]
        # A matrix with thresholds asks twice, and not the same: Perses would fill only one of them.
        assert found in (expected, [*expected, *((query, "again 1") for query, _ in expected)])
        assert len({str(each) for each in asked}) == len(asked)
    asked_for = Counter(target["expr"] for panel in panels(file) for target in panel["targets"])
    assert {without_end(query) for _, query, _ in queries_of(PERSES[file])} == set(asked_for)
    annotations = PERSES[file]["spec"]["annotations"]
    assert [each["plugin"]["spec"]["expr"] for each in annotations] == [
        each["expr"] for each in MIXIN.dashboards[file]["annotations"]["list"]
    ]


@pytest.mark.parametrize("file", MIXIN.dashboards)
def test_places(file: str) -> None:
    """Each row of panels is a grid in which they lie as in Grafana, counted from the row; each panel has one place."""
    grids = PERSES[file]["spec"]["layouts"]
    refs = []
    for (row, inside), grid in zip(panels_of(MIXIN.dashboards[file]), grids, strict=True):
        assert row
        assert grid["spec"]["display"] == {"title": row["title"], "collapse": {"open": not row["collapsed"]}}
        top = row["gridPos"]["y"] + 1
        assert [(item["x"], item["y"], item["width"], item["height"]) for item in grid["spec"]["items"]] == [
            (at["x"], at["y"] - top, at["w"], at["h"]) for at in (panel["gridPos"] for panel in inside)
        ]
        assert min(item["y"] for item in grid["spec"]["items"]) == 0
        refs += [item["content"]["$ref"] for item in grid["spec"]["items"]]
    # The form of a reference that the API server takes.
    assert all(re.fullmatch(r"#/spec/panels/[a-zA-Z0-9_-]+", ref) for ref in refs)
    assert [ref.rpartition("/")[2] for ref in refs] == list(PERSES[file]["spec"]["panels"])


@pytest.mark.parametrize("file", MIXIN.dashboards)
def test_variables(file: str) -> None:
    """Variables ask for the same label of the same series, "All" is the same expression and chosen at first, and each
    variable that a query names is there."""
    variables = {each["spec"]["name"]: each["spec"] for each in PERSES[file]["spec"]["variables"]}
    assert list(variables) == [each["name"] for each in MIXIN.dashboards[file]["templating"]["list"]]
    assert variables.pop("datasource")["plugin"] == {
        "kind": "DatasourceVariable",
        "spec": {"datasourcePluginKind": "PrometheusDatasource"},
    }
    for variable in MIXIN.dashboards[file]["templating"]["list"][1:]:
        found = variables[variable["name"]]
        spec = found["plugin"]["spec"]
        assert f"label_values({spec['matchers'][0]}, {spec['labelName']})" == variable["query"]["query"]
        assert (found["customAllValue"], found["defaultValue"], found["allowMultiple"]) == (
            ".*",
            "$__all",
            True,
        )
    for name, text in walk(PERSES[file]["spec"]):
        if name in ("query", "expr", "matchers") and isinstance(text, str):
            # These Perses has itself.
            named = set(re.findall(r"\$(\w+)", text)) - {"__rate_interval", "__range"}
            assert named <= set(variables), text
        if name == "datasource":
            assert text == "$datasource"


@pytest.mark.parametrize("file", MIXIN.dashboards)
def test_forms_are_those_of_perses(file: str) -> None:
    """Colours are hexadecimal, units are known there, variables of Grafana's links are not left over."""
    for name, value in walk(PERSES[file]):
        if name in ("color", "defaultColor", "backgroundColor"):
            assert HEX.fullmatch(value), value
        if name == "unit":
            assert value in UNITS
        if name == "url":
            assert "__value" not in value
        if name == "condition" and value["kind"] == "Range":
            # The schema compares both ends, so that one without the lower is refused.
            assert "min" in value["spec"]
    for panel in drawn(file):
        assert panel["plugin"]["kind"] in ("TimeSeriesChart", "StatChart", "StatusHistoryChart", "Table")
        assert {query["spec"]["plugin"]["kind"] for query in panel["queries"]} == {
            "PrometheusTimeSeriesQuery"
        }


def color_without_data(plugin: dict[str, Any]) -> set[str]:
    """What a panel shows of no number, by the rules of Perses: mappings come before thresholds."""
    found = set()
    for entry in plugin["spec"].get("mappings", []):
        if entry["kind"] == "Misc":
            found.add(entry["spec"]["result"]["color"])
    for column in plugin["spec"].get("columnSettings", []):
        no_number = (each for each in column.get("cellSettings", []) if each["condition"]["kind"] == "Misc")
        found |= {each["backgroundColor"] for each in no_number}
    if "thresholds" in plugin["spec"]:
        found.add(plugin["spec"]["thresholds"]["defaultColor"])
    return found


@pytest.mark.parametrize("file", MIXIN.dashboards)
def test_nothing_is_green_without_data(file: str) -> None:
    """A value that is no number says NO DATA in purple; a series that ended is not drawn as the present."""
    for panel, perses in zip(panels(file), drawn(file), strict=True):
        plugin = perses["plugin"]
        matrix = "groupingToMatrix" in str(panel.get("transformations"))
        if panel["type"] == "stat" or matrix:
            assert color_without_data(plugin) == {COLORS["purple"]}, panel["title"]
            assert "NO DATA" in str(plugin)
        if panel["type"] == "stat":
            # All that ask for a range: with less, Perses shows the last number within it.
            assert all(
                query["spec"]["plugin"]["spec"]["query"] == at_end(target["expr"])
                for query, target in zip(perses["queries"], panel["targets"], strict=True)
            )
        for column in plugin["spec"].get("columnSettings", []):
            ranges = [each["condition"]["kind"] for each in column.get("cellSettings", [])]
            # The first that holds counts.
            assert ranges == sorted(ranges, key=["Value", "Misc", "Range"].index)


@pytest.mark.parametrize("file", MIXIN.dashboards)
def test_other_forms_are_said(file: str) -> None:
    """Where Perses draws something else, the description says so."""
    for panel, perses in zip(panels(file), drawn(file), strict=True):
        same = {"timeseries": "TimeSeriesChart", "stat": "StatChart", "table": "Table"}
        other = same.get(panel["type"]) != perses["plugin"]["kind"]
        other |= "groupingToMatrix" in str(panel.get("transformations"))
        other |= panel["fieldConfig"]["defaults"]["unit"] == "watt"
        assert ("In Perses: " in perses["display"]["description"]) is other, panel["title"]


def test_rows_of_a_scatter_plot_meet() -> None:
    """Both queries keep the name of their metric, which must not keep the rows apart; it becomes the column `value`,
    which does not count."""
    panel = next(p for p in drawn("fabricpulse-now.json") if "scatter plots" in p["display"]["description"])
    spec = panel["plugin"]["spec"]

    assert spec["transforms"] == [
        {"kind": "MergeColumns", "spec": {"columns": ["__name__ #1", "__name__ #2"], "name": "value"}},
        {"kind": "MergeSeries", "spec": {}},
    ]
    columns = {column["name"]: column for column in spec["columnSettings"]}
    assert {name for name, column in columns.items() if column.get("hide")} == {"value", "timestamp"}
    assert columns["value #1"] == {
        "name": "value #1",
        "header": "throughput",
        "format": {"unit": "decbytes/sec"},
    }
    assert columns["value #2"]["sort"] == "desc"


def test_levels() -> None:
    """The levels of a matrix are those of Grafana's thresholds, worst first."""
    panel = next(
        p for p in drawn("fabricpulse-now.json") if p["display"]["name"].startswith("Delay by network")
    )
    cluster, values, levels = panel["plugin"]["spec"]["columnSettings"][2:]

    # In place of a matrix for each.
    assert cluster == {"name": "cluster", "sort": "asc"}

    assert values["format"] == {"unit": "seconds", "decimalPlaces": 0}
    assert [
        (each["text"], each["backgroundColor"], each["condition"]["spec"]) for each in levels["cellSettings"]
    ] == [
        ("NO DATA", COLORS["purple"], {"value": "NaN"}),
        ("≥ 0.001 s", COLORS["red"], {"min": 0.001}),
        ("≥ 0.0002 s", COLORS["yellow"], {"min": 0.0002}),
        ("< 0.0002 s", COLORS["green"], {"min": -1e300, "max": 0.0002}),
    ]


def test_a_runbook_is_linked() -> None:
    """The link of an alert has the name of the alert, by Perses' name of the cell."""
    panel = next(p for p in drawn("fabricpulse-now.json") if p["display"]["name"].startswith("What is wrong"))
    columns = {column["name"]: column for column in panel["plugin"]["spec"]["columnSettings"]}

    assert '${__data.fields["alertname"]}' in columns["alertname"]["dataLink"]["url"]
    assert list(columns)[:3] == ["severity", "alertname", "instance"]


def test_cells_are_linked() -> None:
    """Pages are called by their name in Perses, and the row says what is selected there; none that is not there."""
    by_name = {
        panel["display"]["name"]: {
            column["name"]: column["dataLink"]["url"]
            for column in panel["plugin"]["spec"].get("columnSettings", [])
            if "dataLink" in column
        }
        for panel in drawn("fabricpulse-now.json")
    }
    host = 'fabricpulse-fleet?var-instance=${__data.fields["instance"]}'

    assert by_name["What is wrong, worst first"]["instance"] == host
    cells = by_name["NICs of hosts with faults"]
    assert cells == {"instance": host, "value": host + '&var-network=${__data.fields["network"]}'}
    with pytest.raises(UserError, match="no form in Perses of page"):
        perses_dashboards({"fabricpulse-now.json": MIXIN.dashboards["fabricpulse-now.json"]})


def edit(change: Callable[[dict[str, Any]], Any]) -> dict[str, dict[str, Any]]:
    """The dashboards, with `change` made to a copy of the first of them."""
    dashboard = copy.deepcopy(MIXIN.dashboards["fabricpulse-now.json"])
    change(dashboard)
    return {**MIXIN.dashboards, "fabricpulse-now.json": dashboard}


def of_type(dashboard: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(panel for panel in dashboard["panels"] if panel["type"] == kind)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(new=1), "new"),
        (lambda d: of_type(d, "stat").update(type="gauge"), "panels of type gauge"),
        (lambda d: of_type(d, "stat").update(repeat="x"), "repeat"),
        (lambda d: of_type(d, "stat")["options"].update(orientation="auto"), "orientation"),
        (lambda d: of_type(d, "stat")["fieldConfig"]["defaults"].update(max=1), "max"),
        (lambda d: of_type(d, "stat")["fieldConfig"]["defaults"].update(unit="furlong"), "unit 'furlong'"),
        (lambda d: of_type(d, "stat")["fieldConfig"]["overrides"].append({}), "overrides of stat"),
        (
            lambda d: of_type(d, "stat")["fieldConfig"]["defaults"]["thresholds"]["steps"][0].update(
                color="pink"
            ),
            "colour 'pink'",
        ),
        (
            lambda d: of_type(d, "stat")["fieldConfig"]["defaults"]["mappings"][0].update(type="range"),
            "mappings of range",
        ),
        (
            lambda d: of_type(d, "stat")["targets"][0].update(instant=False, range=True),
            "a range query in stat",
        ),
        (lambda d: of_type(d, "stat")["targets"][0].update(interval="1m"), "interval"),
        (lambda d: of_type(d, "timeseries").update(transformations=[{"id": "merge"}]), "transformations of"),
        (
            lambda d: of_type(d, "table")["transformations"].append({"id": "reduce", "options": {}}),
            "the transformation reduce",
        ),
        (
            lambda d: of_type(d, "table")["fieldConfig"]["overrides"][0]["properties"].append(
                {"id": "custom.hidden", "value": True}
            ),
            "custom.hidden",
        ),
        (
            lambda d: of_type(d, "table")["fieldConfig"]["overrides"][0]["matcher"].update(options="nobody"),
            "the column 'nobody'",
        ),
        (lambda d: of_type(d, "xychart")["options"]["series"][0].update(size={}), "size"),
        (lambda d: d["templating"]["list"][1].update(type="custom"), "variables of type custom"),
        (lambda d: d["templating"]["list"][1].update(regex="x"), "regex"),
        (lambda d: d["annotations"]["list"][0].update(filter={}), "filter"),
        (lambda d: d["links"][0].update(type="link"), "links of type link"),
        (lambda d: of_type(d, "stat")["targets"][0].update(datasource={"uid": "x"}), "data source"),
    ],
)
def test_what_is_unknown_is_refused(change: Callable[[dict[str, Any]], Any], words: str) -> None:
    """A part of a dashboard that has no form in Perses is an error with its place, and does not vanish."""
    with pytest.raises(UserError, match="no form in Perses of") as caught:
        perses_dashboards(edit(change))

    assert "fabricpulse-now.json" in str(caught.value)
    assert words in str(caught.value)


def test_collapsed_rows() -> None:
    """The panels of a collapsed row lie inside it in Grafana's JSON; in Perses they are a closed grid."""

    def collapse(dashboard: dict[str, Any]) -> None:
        row, *inside = dashboard["panels"][:7]
        assert [panel["type"] for panel in inside] == ["stat"] * 6
        dashboard["panels"][:7] = [row | {"collapsed": True, "panels": inside}]

    folded = perses_dashboards(edit(collapse))["fabricpulse-now.json"]["spec"]
    flat = PERSES["fabricpulse-now.json"]["spec"]
    assert folded["panels"] == flat["panels"]
    assert folded["layouts"][0]["spec"]["display"]["collapse"] == {"open": False}
    assert folded["layouts"][0]["spec"]["items"] == flat["layouts"][0]["spec"]["items"]


def test_titles_twice() -> None:
    """Two panels of one title are two panels."""

    def rename(dashboard: dict[str, Any]) -> None:
        for panel in dashboard["panels"][1:7]:
            panel["title"] = "Same"

    spec = perses_dashboards(edit(rename))["fabricpulse-now.json"]["spec"]
    assert [panel["spec"]["display"]["name"] for panel in spec["panels"].values()].count("Same") == 6


@pytest.mark.parametrize("period", ["now-1M", "now/d"])
def test_periods(period: str) -> None:
    """Perses has no months, and no periods that begin at midnight."""
    with pytest.raises(OptionError, match="dashboardPeriod: Perses has no period"):
        perses_dashboards(edit(lambda dashboard: dashboard["time"].update({"from": period})))


def test_settings_reach_it(tmp_path: Path) -> None:
    """Project, refresh and the choice of data sources are those asked for; a name that Perses refuses is refused."""
    arguments = ["render", "--format", "perses", "--output-dir", str(tmp_path), "--project", "net"]
    settings = ["--set", "datasourceFilterRegex=/prom.*/", "--set", "dashboardRefresh=1m"]
    result = CliRunner().invoke(command, [*arguments, *settings], catch_exceptions=False)
    assert result.exit_code == 0
    text = (tmp_path / "perses" / "fabricpulse-now.json").read_text()
    assert '"project": "net"' in text
    assert '"capturingRegexp": "(prom.*)"' in text
    assert '"refreshInterval": "1m"' in text

    with pytest.raises(OptionError, match="no name that Perses takes"):
        perses_dashboards(MIXIN.dashboards, "a b")


@pytest.mark.parametrize("expression", ["up", "a or b", "count(a == 0) or 0 * count(a)", "topk(3, a)"])
def test_at_end(expression: str) -> None:
    """It is PromQL, and binds as a whole what it is given."""
    tree: Any = promql_parser.parse(at_end(expression))

    assert isinstance(tree.lhs, promql_parser.ParenExpr)
    assert tree.lhs.expr.prettify() == promql_parser.parse(expression).prettify()
    assert without_end(at_end(expression)) == expression == without_end(expression)
