"""Our Grafana dashboards as dashboards of Perses 0.54 or newer, from the JSON that mixins/lib/panels.libsonnet makes.

Not a converter of any Grafana dashboard: it has a Perses form for each key of our own JSON and raises UserError for one
that it does not know, so that nothing of a panel is lost unseen. What Perses has no form of and what changes no figure
(the time zone, which is each viewer's setting there, the shared crosshair, the order of a legend) is named in `IGNORED`
here and in `perses_parts`; what Perses draws in another way is said in the description of the panel.

Queries are those of Grafana: Perses has `$__rate_interval`, `$__range` and `@ end()`. Only a number of now is asked for
in another way, see `at_end`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fabricpulse.core.errors import OptionError
from fabricpulse.rules.perses_panels import plugin_of
from fabricpulse.rules.perses_parts import (
    DATASOURCE,
    DATASOURCE_KIND,
    Json,
    at_end,
    check_datasource,
    only,
    refuse,
    title_of,
)

DEFAULT_PROJECT = "fabricpulse"
# What the API server takes as a name.
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,75}")
_PERIOD = re.compile(r"now-(\d+[smhdwy])")
_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")
IGNORED = ("editable", "graphTooltip", "schemaVersion", "timezone", "uid")
_PANEL_KEYS = (
    *("type", "title", "description", "datasource", "targets", "fieldConfig", "options", "id", "gridPos"),
    *("transformations", "maxDataPoints", "pluginVersion", "repeat", "repeatDirection"),
)
_VARIABLE_KEYS = (
    *("name", "label", "type", "datasource", "query", "definition", "refresh"),
    *("multi", "includeAll", "allValue", "current", "sort"),
)


def perses_dashboards(dashboards: Mapping[str, Json], project: str = DEFAULT_PROJECT) -> dict[str, Json]:
    """File name -> resource of kind Dashboard, of the same dashboards as Grafana reads them.

    project : the Perses project that they belong to. Raises OptionError for a name that Perses refuses and for a period
    that it does not have, UserError for a part of a dashboard that has no form in Perses.
    """
    if not _NAME.fullmatch(project):
        raise OptionError(
            f"--project {project}: no name that Perses takes: A-Z, a-z, 0-9, _, . and -, at most 75"
        )
    return {file: _dashboard(file, dashboard, dashboards, project) for file, dashboard in dashboards.items()}


def panels_of(dashboard: Json) -> Iterator[tuple[Json | None, list[Json]]]:
    """The rows of a Grafana dashboard, each with its panels, also those of a collapsed row. None: before the first."""
    row: Json | None = None
    inside: list[Json] = []
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            if row is not None or inside:
                yield row, inside
            row, inside = panel, list(panel["panels"])
        else:
            inside.append(panel)
    yield row, inside


def _dashboard(file: str, dashboard: Json, everyone: Mapping[str, Json], project: str) -> Json:
    only(
        dashboard,
        file,
        (
            *IGNORED,
            "title",
            "description",
            "tags",
            "refresh",
            "time",
            "templating",
            "annotations",
            "links",
            "panels",
        ),
    )
    panels: dict[str, Json] = {}
    layouts = []
    pages = {other["uid"]: name.removesuffix(".json") for name, other in everyone.items()}
    for row, inside in panels_of(dashboard):
        keys = []
        for panel in inside:
            keys.append(_key(panel, panels))
            panels[keys[-1]] = _panel(panel, pages, f"{file}: {panel['title']}")
        layouts.append(_grid(row, inside, keys, file))
    return {
        "kind": "Dashboard",
        "metadata": {"name": file.removesuffix(".json"), "project": project, "tags": dashboard["tags"]},
        "spec": {
            "display": {"name": dashboard["title"], "description": dashboard["description"]},
            "duration": _duration(dashboard["time"], file),
            "refreshInterval": dashboard["refresh"],
            "variables": [_variable(each, file) for each in dashboard["templating"]["list"]],
            "annotations": [_annotation(each, file) for each in dashboard["annotations"]["list"]],
            "links": [link for each in dashboard["links"] for link in _links(each, file, everyone)],
            "panels": panels,
            "layouts": layouts,
        },
    }


def _duration(time: Json, file: str) -> str:
    only(time, file, ("from", "to"))
    match = _PERIOD.fullmatch(time["from"])
    if not match or time["to"] != "now":
        raise OptionError(
            f"dashboardPeriod: Perses has no period {time['from']} to {time['to']}; it takes now-30m, and no months"
        )
    return match[1]


def _key(panel: Json, taken: Mapping[str, Json]) -> str:
    """What layouts call the panel: of its title, so that it stays the same where others come or go."""
    key = re.sub(r"[^a-z0-9]+", "-", title_of(panel).lower()).strip("-")
    return f"{key}-{panel['id']}" if key in taken else key


def _grid(row: Json | None, inside: list[Json], keys: list[str], file: str) -> Json:
    """A row of panels; places are counted from its top."""
    display: Json = {}
    top = 0
    if row is not None:
        only(row, file, ("type", "title", "id", "collapsed", "gridPos", "panels"))
        display = {"display": {"title": row["title"], "collapse": {"open": not row["collapsed"]}}}
        top = row["gridPos"]["y"] + row["gridPos"]["h"]
    items = []
    for panel, key in zip(inside, keys, strict=True):
        place = panel["gridPos"]
        items.append(
            {
                "x": place["x"],
                "y": place["y"] - top,
                "width": place["w"],
                "height": place["h"],
                "content": {"$ref": f"#/spec/panels/{key}"},
            }
        )
    return {"kind": "Grid", "spec": {**display, "items": items}}


def _panel(panel: Json, pages: Mapping[str, str], where: str) -> Json:
    """pages : name of a dashboard by its uid, for links."""
    only(panel, where, _PANEL_KEYS)
    check_datasource(panel["datasource"], where)
    drawn = plugin_of(panel, pages, where)
    queries = [_query(target, panel["type"], where) for target in panel["targets"]]
    for again in range(1, drawn.times_asked):
        # Of two queries that are the same Perses' front end fills only the first; tables do not show names of series.
        queries += [
            _query(target | {"legendFormat": f"again {again}"}, panel["type"], where)
            for target in panel["targets"]
        ]
    description = " ".join([panel["description"], *(f"In Perses: {note}." for note in drawn.notes)])
    return {
        "kind": "Panel",
        "spec": {
            "display": {"name": title_of(panel), "description": description},
            "plugin": {"kind": drawn.kind, "spec": drawn.spec},
            "queries": queries,
        },
    }


def _query(target: Json, drawn_as: str, where: str) -> Json:
    only(target, where, ("datasource", "expr", "legendFormat", "format", "instant", "range", "refId"))
    check_datasource(target["datasource"], where)
    tabular = drawn_as in ("table", "xychart", "nodeGraph")
    if target["instant"] == target["range"] or target["format"] != ("table" if tabular else "time_series"):
        raise refuse(where, "format, instant and range of the query")
    if target["instant"] != (tabular or drawn_as == "stat"):
        raise refuse(where, f"{'an instant' if target['instant'] else 'a range'} query in {drawn_as}")
    # A table asks for now by itself.
    expression = at_end(target["expr"]) if drawn_as == "stat" else target["expr"]
    spec = {"datasource": DATASOURCE, "query": expression}
    if target["legendFormat"] != "__auto":
        spec["seriesNameFormat"] = target["legendFormat"]
    return {
        "kind": "TimeSeriesQuery",
        "spec": {"plugin": {"kind": "PrometheusTimeSeriesQuery", "spec": spec}},
    }


def _variable(variable: Json, file: str) -> Json:
    where = f"{file}: variable {variable['name']}"
    match variable["type"]:
        case "datasource":
            only(variable, where, ("name", "label", "type", "query", "regex", "refresh", "hide"))
            if (variable["query"], variable["refresh"], variable["hide"]) != ("prometheus", 1, 0):
                raise refuse(where, "what it offers")
            # Perses offers what the groups of the expression catch.
            caught = {"capturingRegexp": f"({_bare(variable['regex'])})"} if variable["regex"] else {}
            plugin: Json = {"kind": "DatasourceVariable", "spec": {"datasourcePluginKind": DATASOURCE_KIND}}
            choice: Json = {"allowAllValue": False, "allowMultiple": False, **caught}
        case "query":
            only(
                variable,
                where,
                _VARIABLE_KEYS,
            )
            check_datasource(variable["datasource"], where)
            found = _LABEL_VALUES.fullmatch(variable["query"]["query"])
            if not found or (variable["refresh"], variable["sort"]) != (2, 1):
                raise refuse(where, "what it asks for")
            plugin = {
                "kind": "PrometheusLabelValuesVariable",
                "spec": {"datasource": DATASOURCE, "labelName": found[2], "matchers": [found[1]]},
            }
            choice = {
                "allowAllValue": variable["includeAll"],
                "allowMultiple": variable["multi"],
                "sort": "alphabetical-asc",
            }
            if variable["allValue"] is not None:
                choice["customAllValue"] = variable["allValue"]
            if variable["current"]:
                choice["defaultValue"] = variable["current"]["value"]
        case unknown:
            raise refuse(where, f"variables of type {unknown}")
    spec = {"name": variable["name"], "display": {"name": variable["label"]}, **choice, "plugin": plugin}
    return {"kind": "ListVariable", "spec": spec}


def _bare(expression: str) -> str:
    """Grafana takes regular expressions with and without slashes around them."""
    match = re.fullmatch(r"/(.*)/", expression)
    return match[1] if match else expression


def _annotation(annotation: Json, file: str) -> Json:
    """One mark a series, from its first to its last sample in the range: Perses has no marks of one moment. Nor can
    colour and step be chosen."""
    where = f"{file}: annotation {annotation['name']}"
    only(
        annotation,
        where,
        ("name", "datasource", "enable", "expr", "step", "iconColor", "titleFormat", "textFormat"),
    )
    check_datasource(annotation["datasource"], where)
    spec = {
        "datasource": DATASOURCE,
        "expr": annotation["expr"],
        "title": annotation["titleFormat"],
        "legend": annotation["textFormat"],
    }
    return {
        "display": {"name": annotation["name"], "hidden": not annotation["enable"]},
        "plugin": {"kind": "PrometheusPromQLAnnotation", "spec": spec},
    }


def _links(link: Json, file: str, everyone: Mapping[str, Json]) -> list[Json]:
    """Perses does not look dashboards up by tag: one link to each of the others that have it. They are relative, so
    that project and prefix of the server do not matter. The selection is not passed on: of "All" a link would get the
    value for queries, which no variable can be set to."""
    only(link, file, ("title", "type", "tags", "asDropdown", "includeVars", "keepTime"))
    if link["type"] != "dashboards":
        raise refuse(file, f"links of type {link['type']}")
    return [
        {
            "name": other["title"],
            "url": name.removesuffix(".json"),
            "renderVariables": False,
            "targetBlank": False,
        }
        for name, other in sorted(everyone.items())
        if name != file and set(link["tags"]) <= set(other["tags"])
    ]


def queries_of(resource: Json) -> Iterator[tuple[str, str, Any]]:
    """Of a Perses dashboard: title of the panel, expression, and legend or None, one by one."""
    for panel in resource["spec"]["panels"].values():
        for query in panel["spec"]["queries"]:
            spec = query["spec"]["plugin"]["spec"]
            yield panel["spec"]["display"]["name"], spec["query"], spec.get("seriesNameFormat")
