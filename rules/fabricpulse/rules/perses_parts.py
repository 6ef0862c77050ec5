"""What all parts of a Perses dashboard share: colours, units, thresholds and mappings, what is refused."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fabricpulse.core.errors import UserError

Json = dict[str, Any]

DATASOURCE_KIND = "PrometheusDatasource"
# The variable by which a viewer chooses.
DATASOURCE = "$datasource"
# As Grafana draws them in its dark theme; Perses takes hexadecimal colours alone.
COLORS = {
    "blue": "#5794F2",
    "green": "#73BF69",
    "orange": "#FF9830",
    "purple": "#B877D9",
    "red": "#F2495C",
    "yellow": "#FADE2A",
}
# Grafana's unit -> Perses' format. `Bps` has steps of 1,000 in Grafana, and so has decbytes.
_FORMATS: Mapping[str, Json] = {
    "Bps": {"unit": "decbytes/sec"},
    "celsius": {"unit": "celsius"},
    "none": {"unit": "decimal"},
    "percentunit": {"unit": "percent-decimal"},
    "pps": {"unit": "packets/sec", "shortValues": True},
    "reqps": {"unit": "requests/sec", "shortValues": True},
    "s": {"unit": "seconds"},
    "short": {"unit": "decimal", "shortValues": True},
}
# Of links to our own dashboards: the uid, and what they select.
_TO_PAGE = re.compile(
    r"/d/(\w+)\?\$\{__url_time_range\}&\$\{datasource:queryparam\}&\$\{\w+:queryparam\}((?:&var-\w+=\$\{[^}]+\})*)"
)
_SELECTED = re.compile(r"&var-(\w+)=(\$\{[^}]+\})")
# Units that Perses does not have: numbers, and a word in the description.
_PLAIN = {"watt": "values are in watt"}
_AT_END = "({}) and on () (vector(time()) >= last_over_time(vector(time())[1s:1s] @ end()))"
# What changes how a panel looks, not what it says, and has no form in Perses.
IGNORED_CUSTOM = ("axisSoftMax", "minWidth", "showPoints")
# What a panel says without a series: Perses says "No data".
IGNORED_DEFAULTS = ("noValue",)
CALCULATIONS = {"lastNotNull": "last-number", "max": "max", "mean": "mean", "min": "min"}


@dataclass(frozen=True)
class Drawn:
    """A panel plugin. notes : what to say of it, without full stop. times_asked : how often it asks each query."""

    kind: str
    spec: Json
    notes: list[str] = field(default_factory=list)
    times_asked: int = 1


def refuse(where: str, what: str) -> UserError:
    """To be raised: a part of a dashboard that would be lost."""
    return UserError(f"{where}: no form in Perses of {what}")


def only(value: Mapping[str, Any], where: str, keys: Iterable[str]) -> None:
    """Raises UserError for a key that is not one of `keys`: one that nothing would be made of."""
    unknown = sorted(set(value) - set(keys))
    if unknown:
        raise refuse(where, ", ".join(unknown))


def picked(table: Mapping[str, Any], name: Any, where: str, what: str) -> Any:
    """What the table has for `name`. Raises UserError where it has nothing."""
    if name not in table:
        raise refuse(where, f"{what} {name!r}")
    return table[name]


def check_datasource(datasource: Json, where: str) -> None:
    """Raises UserError if it is not the one that the viewer chooses."""
    if datasource != {"type": "prometheus", "uid": "${datasource}"}:
        raise refuse(where, f"data source {datasource}")


def title_of(panel: Json) -> str:
    """Its title; of one that Grafana draws once for each value of a variable without that."""
    return str(panel["title"]).removesuffix(f", ${panel['repeat']}" if "repeat" in panel else "")


def link_of(link: Json, pages: Mapping[str, str], where: str, fields: Mapping[str, str]) -> Json:
    """The link of a cell. fields : what Grafana's expressions of the cell are here.

    One to another dashboard keeps what it selects of the row, and no more: of "All" Perses would pass the value for
    queries on, which no variable can be set to.
    """
    only(link, where, ("title", "url", "targetBlank"))
    url = link["url"]
    if inside := _TO_PAGE.fullmatch(url):
        selected = _SELECTED.findall(inside[2])
        if any(expression not in fields for _, expression in selected):
            raise refuse(where, f"a link by {inside[2]}")
        chosen = "&".join(f"var-{variable}={fields[expression]}" for variable, expression in selected)
        url = f"{picked(pages, inside[1], where, 'page')}?{chosen}"
    else:
        for expression, form in fields.items():
            url = url.replace(expression, form)
    if "${__" in url.replace("${__data.fields[", ""):
        raise refuse(where, f"the link {link['url']}")
    return {"title": link["title"], "url": url, "openNewTab": link.get("targetBlank", False)}


def field_form(name: str) -> str:
    """The value of a field of the row, in a link."""
    return f'${{__data.fields["{name}"]}}'


def color_of(name: str, where: str) -> str:
    return str(picked(COLORS, name, where, "colour"))


def format_of(unit: str, where: str, decimals: int | None = None) -> tuple[Json, list[str]]:
    """The format of values with a Grafana unit, and what to say of it."""
    if unit in _PLAIN:
        form, notes = {"unit": "decimal"}, [_PLAIN[unit]]
    else:
        form, notes = dict(picked(_FORMATS, unit, where, "unit")), []
    return form if decimals is None else form | {"decimalPlaces": decimals}, notes


def at_end(expression: str) -> str:
    """The expression at the end of the range alone.

    Charts of Perses 0.54 ask for a range, whatever they show of it: the last number of one would be that of a series
    that went half an hour ago. With this it has samples at the end or none.
    """
    return _AT_END.format(expression)


def without_end(expression: str) -> str:
    """What `at_end` was given, or the expression itself."""
    before, _, after = _AT_END.partition("{}")
    if expression.startswith(before) and expression.endswith(after):
        return expression[len(before) : -len(after)]
    return expression


def steps_of(thresholds: Json, where: str) -> list[tuple[Any, str]]:
    """From the least up; the first is what is below all others and has the value None."""
    only(thresholds, where, ("mode", "steps"))
    steps = thresholds["steps"]
    values = [step["value"] for step in steps]
    if (
        thresholds["mode"] != "absolute"
        or len(steps) < 2
        or values[0] is not None
        or values[1:] != sorted(values[1:])
    ):
        raise refuse(where, "thresholds that are not absolute or not in order")
    return [(step["value"], color_of(step["color"], where)) for step in steps]


def mappings_of(mappings: list[Json], where: str) -> Iterator[tuple[str, str, str | None, str | None]]:
    """Kind and value of the condition, text and colour, each or None, in their order."""
    for mapping in mappings:
        only(mapping, where, ("type", "options"))
        options = mapping["options"]
        match mapping["type"]:
            case "value":
                for value, result in sorted(options.items(), key=lambda item: int(item[1]["index"])):
                    only(result, where, ("index", "text", "color"))
                    yield "Value", value, result.get("text"), color_of(result["color"], where)
            case "special":
                only(options, where, ("match", "result"))
                result = options["result"]
                only(result, where, ("index", "text", "color"))
                if (options["match"], result["text"], result["color"]) == ("null", "", "transparent"):
                    continue  # an empty cell, which only a matrix has
                matched = {"nan": ["NaN"], "null": ["null"], "null+nan": ["null", "NaN"]}
                for value in picked(matched, options["match"], where, "mapping of"):
                    yield "Misc", value, result["text"], color_of(result["color"], where)
            case unknown:
                raise refuse(where, f"mappings of {unknown}")
