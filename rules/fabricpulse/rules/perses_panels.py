"""The panels of our Grafana dashboards as panel plugins of Perses.

| Grafana | Perses |
|---|---|
| timeseries | TimeSeriesChart |
| stat | StatChart |
| state-timeline | StatusHistoryChart: a cell for each step, equal ones are not joined |
| table | Table |
| table of groupingToMatrix | Table with a line for each cell: there is no pivot |
| xychart | Table: ScatterChart takes traces alone, and HeatMapChart native histograms |
| nodeGraph | Table with a line for each edge |
"""

from collections.abc import Mapping

from fabricpulse.rules.perses_parts import (
    CALCULATIONS,
    IGNORED_CUSTOM,
    IGNORED_DEFAULTS,
    Drawn,
    Json,
    format_of,
    mappings_of,
    only,
    picked,
    refuse,
    steps_of,
)
from fabricpulse.rules.perses_tables import edges, matrix, scatter, table

_IGNORED_LEGEND = ("sortBy", "sortDesc")


def plugin_of(panel: Json, pages: Mapping[str, str], where: str) -> Drawn:
    """What draws a panel whose own keys are known. Raises UserError for parts without a form in Perses.

    pages : name of a dashboard by its uid.
    """
    only(panel["fieldConfig"], where, ("defaults", "overrides"))
    steps = [step["id"] for step in panel.get("transformations", [])]
    if "repeat" in panel and panel["type"] != "nodeGraph" and "groupingToMatrix" not in steps:
        raise refuse(where, "repeat")
    match panel["type"]:
        case "timeseries" if not steps:
            return _time_series(panel, where)
        case "stat" if not steps:
            return _stat(panel, where)
        case "state-timeline" if not steps:
            return _status_history(panel, where)
        case "table" if "groupingToMatrix" in steps:
            return matrix(panel, pages, where)
        case "table":
            return table(panel, pages, where)
        case "xychart":
            return scatter(panel, where)
        case "nodeGraph" if not steps:
            return edges(panel, where)
        case "timeseries" | "stat" | "state-timeline":
            raise refuse(where, f"transformations of {panel['type']}")
        case unknown:
            raise refuse(where, f"panels of type {unknown}")


def _time_series(panel: Json, where: str) -> Drawn:
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    _no_overrides(panel, where)
    only(defaults, where, ("unit", "custom", "min", *IGNORED_DEFAULTS))
    custom = defaults["custom"]
    only(custom, where, ("drawStyle", "lineWidth", "fillOpacity", "spanNulls", *IGNORED_CUSTOM))
    only(options, where, ("legend", "tooltip"))
    form, notes = format_of(defaults["unit"], where)
    axis = {"format": form}
    if defaults["min"] is not None:
        axis["min"] = defaults["min"]
    spec = {
        "legend": _legend(options["legend"], where),
        "yAxis": axis,
        "visual": {
            "display": picked({"line": "line", "bars": "bar"}, custom["drawStyle"], where, "drawStyle"),
            "lineWidth": custom["lineWidth"],
            "areaOpacity": custom["fillOpacity"] / 100,
            "connectNulls": custom["spanNulls"],
        },
    }
    return Drawn("TimeSeriesChart", spec, notes)


def _legend(legend: Json, where: str) -> Json:
    only(legend, where, ("displayMode", "placement", "calcs", "showLegend", *_IGNORED_LEGEND))
    if not legend["showLegend"]:
        raise refuse(where, "a hidden legend")
    out = {"mode": legend["displayMode"], "position": legend["placement"]}
    if legend.get("calcs"):
        out["values"] = [picked(CALCULATIONS, each, where, "calculation") for each in legend["calcs"]]
    return out


def _stat(panel: Json, where: str) -> Drawn:
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    _no_overrides(panel, where)
    only(defaults, where, ("unit", "thresholds", "mappings", *IGNORED_DEFAULTS))
    only(options, where, ("colorMode", "graphMode", "reduceOptions", "textMode", "text"))
    reduced = options["reduceOptions"]
    only(reduced, where, ("calcs", "fields", "values"))
    if (options["graphMode"], options["textMode"], reduced["fields"], reduced["values"]) != (
        "none",
        "value",
        "",
        False,
    ):
        raise refuse(where, "what it shows of a value")
    (calculation,) = reduced["calcs"]
    form, notes = format_of(defaults["unit"], where)
    (_, beneath), *steps = steps_of(defaults["thresholds"], where)
    spec = {
        "calculation": picked(CALCULATIONS, calculation, where, "calculation"),
        "format": form,
        "colorMode": picked(
            {"background": "background_solid", "value": "value"}, options["colorMode"], where, "colorMode"
        ),
        "legendMode": "off",
        "thresholds": {
            "mode": "absolute",
            "defaultColor": beneath,
            "steps": [{"value": value, "color": color} for value, color in steps],
        },
        "mappings": _results(defaults["mappings"], where),
    }
    return Drawn("StatChart", spec, notes)


def _status_history(panel: Json, where: str) -> Drawn:
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    _no_overrides(panel, where)
    # links: there are none of a line.
    only(defaults, where, ("unit", "color", "custom", "mappings", "links"))
    only(defaults["custom"], where, ("fillOpacity", "lineWidth"))
    only(options, where, ("mergeValues", "showValue", "rowHeight", "legend", "tooltip"))
    spec = {
        "legend": _legend(options["legend"], where),
        "mappings": _results(defaults["mappings"], where),
    }
    return Drawn("StatusHistoryChart", spec, ["one cell for each step, equal states are not joined"])


def _results(mappings: list[Json], where: str) -> list[Json]:
    """As charts have them."""
    return [
        {"kind": kind, "spec": {"value": value, "result": {"value": text or value, "color": color}}}
        for kind, value, text, color in mappings_of(mappings, where)
    ]


def _no_overrides(panel: Json, where: str) -> None:
    if panel["fieldConfig"]["overrides"]:
        raise refuse(where, f"overrides of {panel['type']}")
