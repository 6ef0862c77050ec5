"""Tables, matrices, scatter plots and graphs of our Grafana dashboards as tables of Perses."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from fabricpulse.rules.perses_parts import (
    IGNORED_CUSTOM,
    IGNORED_DEFAULTS,
    Drawn,
    Json,
    field_form,
    format_of,
    link_of,
    mappings_of,
    only,
    picked,
    refuse,
    steps_of,
)

# What an override says of an axis; a table has none.
_OF_AXES = ("min", "custom.scaleDistribution")
# The schema of 0.54 refuses a range without a lower end.
_ANY = 1e300


def table(panel: Json, pages: Mapping[str, str], where: str) -> Drawn:
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    only(defaults, where, ("unit", "custom", *IGNORED_DEFAULTS))
    only(defaults["custom"], where, ("cellOptions", *IGNORED_CUSTOM))
    if defaults["unit"] != "none" or defaults["custom"].get("cellOptions", {"type": "auto"}) != {
        "type": "auto"
    }:
        raise refuse(where, "unit or colours of all cells")
    only(options, where, ("showHeader", "cellHeight", "sortBy"))
    columns, spec, notes = _columns(panel, where, pages=pages)
    for order in options.get("sortBy", []):
        only(order, where, ("displayName", "desc"))
        columns[_field(columns, order["displayName"], where)]["sort"] = "desc" if order["desc"] else "asc"
    return Drawn(
        "Table", {**_density(options, where), **spec, "columnSettings": list(columns.values())}, notes
    )


def scatter(panel: Json, where: str) -> Drawn:
    """A table with what would be the axes as columns, largest y first."""
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    only(defaults, where, ("unit", "custom"))
    only(defaults["custom"], where, ("pointSize", "show", "fillOpacity"))
    only(options, where, ("mapping", "series", "legend", "tooltip"))
    (series,) = options["series"]
    only(series, where, ("x", "y", "frame"))
    y = series["y"]["matcher"]["options"]
    columns, spec, notes = _columns(panel, where, _OF_AXES)
    columns[_field(columns, y, where)]["sort"] = "desc"
    return Drawn(
        "Table",
        {"density": "compact", **spec, "columnSettings": list(columns.values())},
        [f"a table, largest {y} first, as there are no scatter plots of time series", *notes],
    )


def edges(panel: Json, where: str) -> Drawn:
    """A line for each edge of a graph, by its ends; what Grafana draws it once for each value of is a column."""
    only(panel["fieldConfig"]["defaults"], where, ("unit",))
    only(panel["options"], where, ("layoutAlgorithm", "zoomMode"))
    if len(panel["targets"]) != 1 or panel["fieldConfig"]["overrides"]:
        raise refuse(where, "a graph of several queries or with overrides")
    columns: list[Json] = [
        {"name": "source", "header": "from", "sort": "asc"},
        {"name": "target", "header": "to", "sort": "asc"},
        {"name": "mainstat", "header": "figure"},
    ]
    if "repeat" in panel:
        columns.append({"name": panel["repeat"], "sort": "asc"})
    spec = {"density": "compact", "defaultColumnHidden": True, "columnSettings": columns}
    return Drawn("Table", spec, ["a line for each edge, as there are no graphs"])


def _columns(
    panel: Json, where: str, ignored: tuple[str, ...] = (), pages: Mapping[str, str] = MappingProxyType({})
) -> tuple[dict[str, Json], Json, list[str]]:
    """Transformations and overrides as column settings by name of the field, other settings, and what to say of them.

    ignored : properties of overrides without effect.
    """
    queries = len(panel["targets"])
    columns: dict[str, Json] = {}
    spec: Json = {}
    transforms: list[Json] = []
    for step in panel["transformations"]:
        options = step["options"]
        only(step, where, ("id", "options"))
        match step["id"]:
            case "merge":
                only(options, where, ())
                if queries > 1:
                    transforms.append({"kind": "MergeSeries", "spec": {}})
            case "filterFieldsByName":
                only(options, where, ("exclude",))
                only(options["exclude"], where, ("names",))
                for name in options["exclude"]["names"]:
                    transforms += _out_of_the_join(name, queries)
                    columns["value" if queries > 1 else name] = {"hide": True}
            case "organize":
                only(options, where, ("includeByName", "excludeByName", "renameByName", "indexByName"))
                _organize(options, columns)
                if "includeByName" in options:
                    spec["defaultColumnHidden"] = True
            case unknown:
                raise refuse(where, f"the transformation {unknown}")
    columns = {name: {"name": name, **settings} for name, settings in columns.items()}
    notes: list[str] = []
    for override in panel["fieldConfig"]["overrides"]:
        only(override, where, ("matcher", "properties"))
        if {each["id"] for each in override["properties"]} <= {*IGNORED_DEFAULTS}:
            continue
        if override["matcher"]["id"] != "byName":
            raise refuse(where, f"overrides {override['matcher']['id']}")
        column = columns[_field(columns, override["matcher"]["options"], where)]
        notes += _override(column, override["properties"], ignored, where)
        for each in override["properties"]:
            if each["id"] == "links":
                _link_column(column, each["value"], columns, pages, where)
    if transforms:
        spec["transforms"] = transforms
    return columns, spec, notes


def _out_of_the_join(name: str, queries: int) -> list[Json]:
    """Rows are joined by all their columns but `value`, so a column that must not count becomes that one, which is free
    where there are several queries: their values are `value #1` and so on."""
    if queries == 1:
        return []
    indexed = [f"{name} #{index + 1}" for index in range(queries)]
    return [{"kind": "MergeColumns", "spec": {"columns": indexed, "name": "value"}}]


def _organize(options: Json, columns: dict[str, Json]) -> None:
    places = options.get("indexByName", {})
    headers = options.get("renameByName", {})
    shown = sorted(places, key=lambda name: int(places[name]))
    for name in [*shown, *(each for each in headers if each not in places)]:
        header = headers.get(name, name)
        columns[_perses_field(name)] = {} if header == _perses_field(name) else {"header": header}
    for name in options.get("excludeByName", {}):
        columns[_perses_field(name)] = {"hide": True}
    for name in options.get("includeByName", {}):
        columns.setdefault(_perses_field(name), {})


def _perses_field(name: str) -> str:
    """What Perses calls a field of Grafana: Value #B is value #2."""
    if re.fullmatch(r"Value #[A-Z]", name):
        return f"value #{ord(name[-1]) - ord('A') + 1}"
    return {"Time": "timestamp", "Value": "value"}.get(name, name)


def _field(columns: dict[str, Json], header: str, where: str) -> str:
    """The field that has this header."""
    for name, settings in columns.items():
        if settings.get("header", name) == header:
            return name
    raise refuse(where, f"the column {header!r}, which it does not name")


def _override(column: Json, properties: list[Json], ignored: tuple[str, ...], where: str) -> list[str]:
    """Puts what an override says into the settings of a column. Returns what to say of it."""
    values = {each["id"]: each["value"] for each in properties}
    only(
        values,
        f"{where}: {column['name']}",
        ("unit", "decimals", "mappings", "links", "custom.width", "custom.cellOptions", *ignored),
    )
    notes: list[str] = []
    if "unit" in values:
        column["format"], notes = format_of(values["unit"], where, values.get("decimals"))
    elif "decimals" in values:
        raise refuse(where, "decimals without unit")
    if "custom.width" in values:
        column["width"] = values["custom.width"]
    if "mappings" in values:
        if values.get("custom.cellOptions", {}).get("type") != "color-background":
            raise refuse(where, "mappings other than to the colour of a cell")
        column["cellSettings"] = _cells(values["mappings"], where)
    return notes


def _link_column(
    column: Json, links: list[Json], columns: Mapping[str, Json], pages: Mapping[str, str], where: str
) -> None:
    """A column has one link."""
    if len(links) > 1:
        raise refuse(where, "a second link of a column")
    fields = {f"${{__data.fields.{name}}}": field_form(name) for name in columns}
    for link in links:
        column["dataLink"] = link_of(
            link, pages, where, fields | {"${__value.raw}": field_form(column["name"])}
        )


def matrix(panel: Json, pages: Mapping[str, str], where: str) -> Drawn:
    """A line for each cell, sorted by row and column; what Grafana draws it once for each value of is a column.

    Perses shows either the colour or the unit of a cell: with thresholds there is a second column for the level, and
    the query is asked twice.
    """
    defaults = panel["fieldConfig"]["defaults"]
    only(
        defaults, where, ("unit", "decimals", "custom", "mappings", "thresholds", "links", *IGNORED_DEFAULTS)
    )
    only(defaults["custom"], where, ("cellOptions", "align", *IGNORED_CUSTOM))
    if defaults["custom"]["cellOptions"]["type"] != "color-background" or len(panel["targets"]) != 1:
        raise refuse(where, "a matrix without colours or of several queries")
    only(panel["options"], where, ("showHeader", "cellHeight"))
    row, column, header, row_links = _axes(panel, where)
    form, notes = format_of(defaults["unit"], where, defaults["decimals"])
    mapped = _cells(defaults["mappings"], where)
    levels = _levels(defaults["thresholds"], defaults["unit"], where) if "thresholds" in defaults else []
    align = defaults["custom"]["align"]
    value = {"align": align, "format": form, "cellSettings": mapped}
    fields = {"${__data.fields[0]}": field_form(row), "${__field.name}": field_form(column)}
    columns: list[Json] = [{"name": row, "header": header, "sort": "asc"}, {"name": column, "sort": "asc"}]
    for linked, links in ((columns[0], row_links), (value, defaults["links"])):
        for link in links:
            linked["dataLink"] = link_of(link, pages, where, fields)
    if "repeat" in panel:
        columns.append({"name": panel["repeat"], "sort": "asc"})
    spec = {**_density(panel["options"], where), "defaultColumnHidden": True}
    if levels:
        columns += [
            {"name": "value #1", "header": "value", **value},
            {"name": "value #2", "header": "level", "align": align, "cellSettings": mapped + levels},
        ]
        spec["transforms"] = [{"kind": "MergeSeries", "spec": {}}]
    else:
        columns.append({"name": "value", **value})
    note = f"a line for each {row} and {column}, as tables cannot be turned into a matrix"
    return Drawn("Table", {**spec, "columnSettings": columns}, [note, *notes], 2 if levels else 1)


def _axes(panel: Json, where: str) -> tuple[str, str, str, list[Json]]:
    """Labels of rows and columns of a matrix, the header and the links of the former."""
    by_id = [step["id"] for step in panel["transformations"]]
    if by_id != ["sortBy", "groupingToMatrix", "sortBy"]:
        raise refuse(where, f"the transformations {', '.join(by_id)}")
    turned = panel["transformations"][1]["options"]
    only(turned, where, ("rowField", "columnField", "valueField", "emptyValue"))
    row, column = turned["rowField"], turned["columnField"]
    if (turned["valueField"], turned["emptyValue"]) != ("Value", "null"):
        raise refuse(where, "the cells of the matrix")
    for sort, by in zip((0, 2), (column, f"{row}\\{column}"), strict=True):
        if panel["transformations"][sort]["options"] != {"fields": {}, "sort": [{"field": by}]}:
            raise refuse(where, "the order of the matrix")
    header = row
    links: list[Json] = []
    for override in panel["fieldConfig"]["overrides"]:
        values = {each["id"]: each["value"] for each in override["properties"]}
        only(values, where, ("custom.cellOptions", "displayName", "links"))
        if override["matcher"] != {"id": "byRegexp", "options": f"{row}\\\\{column}"}:
            raise refuse(where, "overrides of cells of the matrix")
        header = values.get("displayName", row)
        links = values.get("links", [])
    return row, column, header, links


def _levels(thresholds: Json, unit: str, where: str) -> list[Json]:
    """Texts and colours of thresholds, the first that holds counts. A cell that is no number has none of them."""
    (_, beneath), *steps = steps_of(thresholds, where)
    sign = {"s": " s"}.get(unit, "")
    above = [
        {
            "condition": {"kind": "Range", "spec": {"min": value}},
            "text": f"≥ {value:g}{sign}",
            "backgroundColor": color,
        }
        for value, color in reversed(steps)
    ]
    least = steps[0][0]
    condition = {"kind": "Range", "spec": {"min": -_ANY, "max": least}}
    return [*above, {"condition": condition, "text": f"< {least:g}{sign}", "backgroundColor": beneath}]


def _cells(mappings: list[Json], where: str) -> list[Json]:
    """As tables have them."""
    return [
        {
            "condition": {"kind": kind, "spec": {"value": value}},
            **({} if text is None else {"text": text}),
            "backgroundColor": color,
        }
        for kind, value, text, color in mappings_of(mappings, where)
    ]


def _density(options: Json, where: str) -> Json:
    if not options["showHeader"]:
        raise refuse(where, "a table without header")
    return {
        "density": picked(
            {"sm": "compact", "md": "standard", "lg": "comfortable"}, options["cellHeight"], where, "height"
        )
    }
