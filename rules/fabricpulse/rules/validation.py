"""What the mixin is configured with is checked before anything is rendered.

Prometheus would refuse most of it too, but later, on another machine, and for a whole rule file at once; a misspelt
alert name or a selector that swallows a brace it would not notice at all.
"""

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import promql_parser

# Prometheus' model.ParseDuration: units from large to small, each at most once. Longer than 0.
_DURATION = re.compile(r"(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m(?!s))?(\d+s)?(\d+ms)?")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
# How knobs that are shares of a whole end; those whose default is 1 or more are factors.
_SHARES = ("Ratio", "Share", "Confidence", "Target")
# How knobs end that may be fractions, though their default is a whole number.
_MEASURES = ("Ratio", "Score", "PerSecond")
# Grafana's relative time of the past, such as now-30m: m is minutes, M months.
_PERIOD = re.compile(r"now-[1-9]\d*[smhdwMy]")
SEVERITIES = ("critical", "warning", "info", "none")


@dataclass(frozen=True)
class Context:
    """What a knob is checked against. default : the mixin's own value. alerts : names of all alerts of the mixin."""

    default: Any
    alerts: Collection[str]


def problems_of_config(
    config: Mapping[str, Any], defaults: Mapping[str, Any], alerts: Collection[str]
) -> list[str]:
    """One sentence for each knob of `config` whose value cannot be meant. Knobs that the mixin does not have pass,
    since a user's own jsonnet may add some, unless they look like a misspelt one.
    """
    found = []
    for name, value in sorted(config.items()):
        if name not in defaults:
            near = difflib.get_close_matches(name, defaults, n=1)
            if near:
                found.append(f"{name}: the mixin has no such knob; did you mean {near[0]!r}?")
            continue
        problem = _check_of(name, defaults[name])(value, Context(defaults[name], alerts))
        if problem:
            found.append(f"{name}: {problem}")
    return found


def warnings_of_config(config: Mapping[str, Any]) -> list[str]:
    """One sentence for each window that no usual scrape interval fills: a rate needs two samples.

    A warning, as the interval is another's setting: `rules check` asks the Prometheus that has it.
    """
    return [
        f"{name}: {value!r} holds two samples only where scrapes are less than a second apart, else its alerts stay "
        "silent; `fabricpulse rules check` says whether it does"
        for name, value in sorted(config.items())
        if name.endswith("Window") and isinstance(value, str) and is_duration(value) and _seconds(value) < 2
    ]


def problems_of_rules(groups: list[dict[str, Any]]) -> list[str]:
    """One sentence for each rule whose expression is not PromQL."""
    found = []
    for group in groups:
        for rule in group["rules"]:
            name = rule.get("alert") or rule.get("record")
            try:
                promql_parser.parse(rule["expr"])
            except ValueError as error:
                found.append(f"{name}: {_shortened(rule['expr'])} is not PromQL: {error}")
    return found


def _shortened(expression: str) -> str:
    return expression if len(expression) <= 200 else f"{expression[:200]}…"


def is_duration(text: str) -> bool:
    """Whether Prometheus takes this as a duration of more than nothing: `5m`, `1h30m`, `500ms`."""
    return bool(_DURATION.fullmatch(text)) and any(int(number) for number in re.findall(r"\d+", text))


_UNIT_S = {"y": 31_536_000, "w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1, "ms": 1e-3}


def _seconds(duration: str) -> float:
    return sum(int(number) * _UNIT_S[unit] for number, unit in re.findall(r"(\d+)([a-z]+)", duration))


Check = Callable[[Any, Context], str | None]


def _check_of(name: str, default: Any) -> Check:
    if name in _BY_NAME:
        return _BY_NAME[name]
    if isinstance(default, bool) or default is None:
        return _same_type
    if isinstance(default, int):
        # jsonnet does not tell 3.0 from 3.
        return _number if name.endswith(_MEASURES) else _whole_number
    if isinstance(default, float):
        return _share if default < 1 and name.endswith(_SHARES) else _number
    if isinstance(default, str) and is_duration(default):
        return _duration
    return _same_type


def _duration(value: Any, _context: Context) -> str | None:
    if isinstance(value, str) and is_duration(value):
        return None
    return f"{value!r} is not a duration: whole numbers with a unit of ms, s, m, h, d, w or y, such as 90s"


def _times_kept(value: Any, context: Context) -> str | None:
    """How many times exporters keep of a NIC or a link: more of them no rule would ever count."""
    return _whole_number(value, context) or (
        f"{value!r} is more than the 20 times that exporters keep" if value > 20 else None
    )


def _time_kept(value: Any, context: Context) -> str | None:
    """For how long they keep them."""
    return _duration(value, context) or (
        f"{value!r} is longer than the two hours that exporters keep" if _seconds(value) > 7200 else None
    )


def _duration_or_none(value: Any, context: Context) -> str | None:
    return None if value == "" else _duration(value, context)


def _whole_number(value: Any, _context: Context) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and value == int(value) and value > 0:
        return None
    return f"{value!r} is not a whole number above 0"


def _number(value: Any, _context: Context) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return None
    return f"{value!r} is not a number above 0"


def _share(value: Any, context: Context) -> str | None:
    """A percentage in place of a share would be reached never, or always: an alert that is silent, or noise."""
    if _number(value, context) is None and value < 1:
        return None
    return f"{value!r} is not a share between 0 and 1, such as 0.05 for 5 %"


def _same_type(value: Any, context: Context) -> str | None:
    if type(value) is type(context.default):
        return None
    return f"{value!r} is of another kind than the default {context.default!r}"


def _selector(value: Any, _context: Context) -> str | None:
    """Label matchers as they stand between the braces of a series."""
    if not isinstance(value, str):
        return f"{value!r} is no text"
    example = """such as cluster="gpu-a" """.strip()
    if not value.strip():
        return None
    try:
        parsed = promql_parser.parse(f"m{{{value}}}")
    except ValueError as error:
        return f"{value!r} is not a list of label matchers {example}: {error}"
    # `a="b"} or m{` parses too, as something else.
    if not isinstance(parsed, promql_parser.VectorSelector):
        return f"{value!r} is not a list of label matchers {example}"
    return _contradiction(parsed.matchers.matchers)


def _contradiction(matchers: Collection[promql_parser.Matcher]) -> str | None:
    """Two matchers of a label that no value fits: Prometheus takes them, and every alert stays silent."""
    for one in matchers:
        if one.op != promql_parser.MatchOp.Equal:
            continue
        for other in matchers:
            if other.name == one.name and not _fits(one.value, other):
                return (
                    f"no series can match: {one.name} cannot be {one.value!r} and fit {other.value!r} at once"
                )
    return None


def _fits(value: str, matcher: promql_parser.Matcher) -> bool:
    op = promql_parser.MatchOp
    if matcher.op in (op.Equal, op.NotEqual):
        return bool((value == matcher.value) == (matcher.op == op.Equal))
    try:
        return bool(re.fullmatch(matcher.value, value)) == bool(matcher.op == op.Re)
    except re.error:  # what RE2 has and Python has not
        return True


def _alert_names(value: Any, context: Context) -> str | None:
    if not isinstance(value, list):
        return f"{value!r} is no list of alert names"
    return _unknown_alerts(value, context)


def _severities(value: Any, context: Context) -> str | None:
    if not isinstance(value, dict):
        return f"{value!r} is no object of severities by alert name"
    unknown = _unknown_alerts(value, context)
    if unknown:
        return unknown
    wrong = [severity for severity in value.values() if severity not in SEVERITIES]
    return f"{wrong[0]!r} is no severity; they are {', '.join(SEVERITIES)}" if wrong else None


def _unknown_alerts(names: Collection[Any], context: Context) -> str | None:
    for name in names:
        if name not in context.alerts:
            near = difflib.get_close_matches(str(name), context.alerts, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"alerts: {', '.join(sorted(context.alerts))}"
            return f"there is no alert {name!r}; {hint}"
    return None


def _labels(value: Any, _context: Context) -> str | None:
    if not isinstance(value, dict):
        return f"{value!r} is no object of labels"
    for name, text in value.items():
        if not _LABEL_NAME.fullmatch(name) or name.startswith("__"):
            return f"{name!r} is no label name"
        if not isinstance(text, str):
            return f"the label {name} needs a text, not {text!r}"
    return None


def _label_name(value: Any, _context: Context) -> str | None:
    if isinstance(value, str) and _LABEL_NAME.fullmatch(value):
        return None
    return f"{value!r} is no label name"


def _runbook_pattern(value: Any, _context: Context) -> str | None:
    if isinstance(value, str) and value.replace("%s", "", 1).count("%") == 0 and value.count("%s") == 1:
        return None
    return f"{value!r} needs one %s, for the name of the alert, and no other %"


def _url(value: Any, _context: Context) -> str | None:
    """Empty, or an absolute HTTP URL: what alerts link to."""
    if value == "" or (isinstance(value, str) and re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", value)):
        return None
    return f"{value!r} is not a URL such as https://grafana.example"


def _period(value: Any, _context: Context) -> str | None:
    if isinstance(value, str) and _PERIOD.fullmatch(value):
        return None
    return f"{value!r} is not a period of Grafana such as now-30m"


def _regex(value: Any, _context: Context) -> str | None:
    if not isinstance(value, str):
        return f"{value!r} is no text"
    try:
        re.compile(value)
    except re.error as error:
        return f"{value!r} is not a regular expression: {error}"
    return None


_BY_NAME: dict[str, Check] = {
    "selector": _selector,
    "jobSelector": _selector,
    "pcieSelector": _selector,
    "flapThreshold": _times_kept,
    "slowFlapThreshold": _times_kept,
    "flapWindow": _time_kept,
    "slowFlapWindow": _time_kept,
    "disabledAlerts": _alert_names,
    "severities": _severities,
    "extraLabels": _labels,
    "clusterLabel": _label_name,
    "runbookURLPattern": _runbook_pattern,
    "grafanaURL": _url,
    "alertLinkPeriod": _duration_or_none,
    "dashboardPeriod": _period,
    "datasourceFilterRegex": _regex,
}
