"""The panel that an alert opens by its `dashboard_url`, and what that asks for with what the alert selects."""

import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser
from tests.unit.rules.compiled import RECORDS, panels

from fabricpulse.rules.mixin import compile_mixin

GRAFANA = "https://grafana.example"
LINKED = compile_mixin(settings={"grafanaURL": GRAFANA})
URLS = {
    rule["alert"]: rule["annotations"].get("dashboard_url", "")
    for group in LINKED.alerts
    for rule in group["rules"]
}
_PAGES = {page["uid"]: page for page in LINKED.dashboards.values()}
# Lines that say that there is nothing.
NOTHING = {"no fault", "not all measured", "none in the range", "none above 0", "none of what is measured"}
# Ways to fire of which the linked panel draws nothing, by the series that they need. In parentheses: why no panel does;
# with `=`: the counter that it draws instead, from which the exporter derives this series; else the panel of the page
# that draws it, as a share of time and packets a second have no axis in common.
ELSEWHERE = {
    (
        "FabricNicFlapping",
        "fabricpulse_nic_recent_disconnect_age_seconds",
    ): "= fabricpulse_nic_disconnects_total",
    (
        "FabricNicFlappingSlowly",
        "fabricpulse_nic_recent_disconnect_age_seconds",
    ): "= fabricpulse_nic_disconnects_total",
    (
        "FabricLinkFlapping",
        "fabricpulse_nic_port_recent_down_age_seconds",
    ): "= fabricpulse_nic_port_down_transitions_total",
    ("FabricIbCongested", "fabricpulse_nic_recent_rate"): "= fabricpulse_nic_transmit_wait_ticks_total",
    ("FabricNoData", "fabricpulse_build_info"): "(there is none)",
    ("FabricPauseStorm", "fabricpulse_nic_recent_increase"): "Errors that grew",
    ("FabricPaused", "fabricpulse_nic_recent_rate"): "Congestion counters that grew, packets/s",
    ("FabricReceiverCongested", "fabricpulse_nic_recent_rate"): "Stopped, share of time",
    (
        "FabricReceiverCongested",
        "fabricpulse_nic_pcie_outbound_stalled_writes_ratio",
    ): "Stopped, share of time",
    ("FabricNicOddOneOut", "fabricpulse_nic_info"): "Firmware",
}


def rendered(template: str, labels: Mapping[str, str]) -> str:
    """A `dashboard_url` as Prometheus fills it in, at the time 0: of the forms of templates that our links have."""
    text = re.sub(
        r'{{ query "1000 \* \(time\(\) - (\d+)\)" [^}]*}}', lambda m: str(-1000 * int(m[1])), template
    )
    text = re.sub(
        r"{{ with \$labels\.(\w+) }}(\S+?){{ \. \| urlquery }}{{ end }}",
        lambda m: m[2] + urllib.parse.quote_plus(labels[m[1]]) if labels.get(m[1]) else "",
        text,
    )
    text = re.sub(
        r'{{ if eq \$labels\.(\w+) "(\w+)" }}([^{]*){{ end }}',
        lambda m: m[3] if labels.get(m[1], "") == m[2] else "",
        text,
    )
    assert "{{" not in text, text
    return text


def opened(alert: str, labels: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Page, panel, and what is selected of each variable."""
    url = urllib.parse.urlsplit(rendered(URLS[alert], labels))
    asked = dict(urllib.parse.parse_qsl(url.query))
    page = _PAGES[url.path.removeprefix("/d/")]
    (panel,) = [each for each in panels(page) if each["id"] == int(asked["viewPanel"])]
    return page, panel, {name[4:]: value for name, value in asked.items() if name.startswith("var-")}


def queries(panel: Mapping[str, Any], selected: Mapping[str, str]) -> list[str]:
    """What the panel asks for, but lines that say that there is nothing. A variable that is not selected is "All"."""
    found = []
    for target in panel["targets"]:
        if target["legendFormat"] in NOTHING:
            continue
        expression = target["expr"].replace("$__rate_interval", "2m").replace("$__range", "30m")
        found.append(re.sub(r"\$(\w+)", lambda m: re.escape(selected.get(m[1], "")) or ".*", expression))
    return found


def beside(alert: str) -> list[dict[str, Any]]:
    """Panels of the page that draw what the linked one does not, see ELSEWHERE."""
    page, _, _ = opened(alert, {})
    titles = {title for (name, _), title in ELSEWHERE.items() if name == alert}
    return [panel for panel in panels(page) if panel["title"] in titles]


def shows_something(alert: str, labels: Mapping[str, str]) -> str:
    """PromQL that is 1 if the panel that the alert opens, or one beside it, draws anything in the last ten minutes."""
    _, linked, selected = opened(alert, labels)
    asked = []
    for panel in [linked, *beside(alert)]:
        over_time = panel["type"] in ("timeseries", "state-timeline")
        for query in queries(panel, selected):
            # Each exporter gives the state of all its NICs, which no test of rules on edges has.
            alone = re.sub(
                r" and on \([\w, ]+\) last_over_time\(fabricpulse_nic_state{[^}]*}[^)]*\)\)", "", query
            )
            asked.append(f"({alone})")
            if over_time:
                asked.append(f"count_over_time(({alone})[10m:15s])")
    return f"count({' or '.join(asked)}) > bool 0"


Selector = tuple[str, dict[str, frozenset[str]]]


def _values(matcher: Any) -> frozenset[str] | None:
    """The values of a label that a matcher asks for. None: more than a list of them."""
    if matcher.op == promql_parser.MatchOp.Equal:
        return frozenset([matcher.value])
    if matcher.op == promql_parser.MatchOp.Re and re.fullmatch(r"[\w|]+", matcher.value):
        return frozenset(matcher.value.split("|"))
    return None


def selectors_of(node: Any, own: bool, seen: frozenset[str] = frozenset()) -> Iterator[Selector]:
    """Series that an expression reads, through what is recorded, with the values of labels that it asks for.

    own : only those that it is about: not what it is muted by or compared with for its labels, nor where a NIC is.
    """
    match node:
        case promql_parser.VectorSelector():
            name = node.name or ""
            if name not in RECORDS:
                known = {each.name: _values(each) for each in node.matchers.matchers}
                yield name, {label: values for label, values in known.items() if values is not None}
            elif name not in seen and not (own and name.endswith(":info")):
                yield from selectors_of(promql_parser.parse(RECORDS[name]["expr"]), own, seen | {name})
        case promql_parser.MatrixSelector():
            yield from selectors_of(node.vector_selector, own, seen)
        case promql_parser.BinaryExpr():
            yield from selectors_of(node.lhs, own, seen)
            if not own or str(node.op) not in ("unless", "and"):
                yield from selectors_of(node.rhs, own, seen)
        case promql_parser.Call():
            for argument in node.args:
                yield from selectors_of(argument, own, seen)
        case promql_parser.NumberLiteral() | promql_parser.StringLiteral():
            pass
        case _:
            yield from selectors_of(node.expr, own, seen)


def branches(node: Any) -> Iterator[Any]:
    """What an expression is put together from by `or`: each may be what an alert fires of."""
    match node:
        case promql_parser.BinaryExpr() if str(node.op) == "or":
            yield from branches(node.lhs)
            yield from branches(node.rhs)
        case promql_parser.ParenExpr():
            yield from branches(node.expr)
        case _:
            yield node


def drawn_by(panel: Mapping[str, Any], selector: Selector) -> bool:
    """Whether the panel asks for all series of a selector, as far as the values of labels tell."""
    name, asked = selector
    for query in queries(panel, {}):
        for other, known in selectors_of(promql_parser.parse(query), own=False):
            if other == name and all(
                label in asked and asked[label] <= values for label, values in known.items()
            ):
                return True
    return False
