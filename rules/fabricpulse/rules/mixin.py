"""Evaluating the mixin: jsonnet in, plain rules and dashboards out."""

import difflib
import json
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.resources import files
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.rules.validation import problems_of_config, problems_of_rules, warnings_of_config

_CONFIGURED = "local mixin = (import 'mixin.libsonnet') + %s + { _config+:: %s };\n"
# `_config` first and on its own: with a value of the wrong kind the rest may not evaluate. Without overrides, which may
# name any part of the mixin, the file of the knobs is enough.
_CONFIG = _CONFIGURED + "mixin._config"
_KNOBS_SET = "((import 'config.libsonnet') + { _config+:: %s })._config"
_OUTPUT = (
    _CONFIGURED
    + """
{ alerts: mixin.prometheusAlerts, rules: mixin.prometheusRules, dashboards: mixin.grafanaDashboards }
"""
)
_ALERT_NAMES = """
[rule.alert for group in (import 'mixin.libsonnet').prometheusAlerts.groups for rule in group.rules]
"""


@dataclass(frozen=True)
class Mixin:
    """What the mixin compiles to. alerts, rules: Prometheus rule groups; dashboards: by file name.
    warnings: what of its configuration is hardly meant, as sentences.
    """

    alerts: list[dict[str, Any]]
    rules: list[dict[str, Any]]
    dashboards: dict[str, dict[str, Any]]
    warnings: tuple[str, ...] = ()


def mixin_dir() -> Path:
    """The mixin's sources: of the checkout that this module stands in, or else those that the wheel has brought."""
    checkout = Path(__file__).parents[3]
    if (checkout / "pyproject.toml").is_file() and (checkout / "mixins" / "mixin.libsonnet").is_file():
        return checkout / "mixins"
    # Not .joinpath("data", "mixins"): the files of a namespace package take one step at a time on Python 3.11.
    return Path(str(files("fabricpulse") / "data" / "mixins"))


def knobs(source: Path) -> dict[str, Any]:
    """The knobs of `_config` and their defaults."""
    value = _evaluate(_KNOBS_SET % "{}", source)
    return dict(value)


def compile_mixin(
    source: Path | None = None, settings: Mapping[str, Any] | None = None, overrides: Path | None = None
) -> Mixin:
    """Evaluates the mixin in `source` (default: ours).

    settings : values for `_config`, by knob. overrides : a jsonnet file that evaluates to an object to be added to
    the mixin, as `{ _config+:: { flapThreshold: 5 } }`; settings win over it. Raises UserError for a knob that does
    not exist, a value that it cannot have, jsonnet that does not evaluate, and expressions that are not PromQL.
    """
    source = source or mixin_dir()
    settings = dict(settings or {})
    defaults = knobs(source)
    for name in settings:
        if name not in defaults:
            near = difflib.get_close_matches(name, defaults, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`fabricpulse rules knobs` lists them"
            raise OptionError(f"the mixin has no knob {name!r}; {hint}")
    added = f"(import {json.dumps(str(overrides.resolve()))})" if overrides else "{}"
    chosen = json.dumps(settings)
    warnings: list[str] = []
    if settings or overrides:
        snippet = _CONFIG % (added, chosen) if overrides else _KNOBS_SET % chosen
        config = dict(_evaluate(snippet, source, foreign=overrides is not None))
        _refuse(problems_of_config(config, defaults, _evaluate(_ALERT_NAMES, source)))
        warnings = warnings_of_config(config)
    value = _evaluate(_OUTPUT % (added, chosen), source, foreign=overrides is not None)
    mixin = Mixin(value["alerts"]["groups"], value["rules"]["groups"], value["dashboards"], tuple(warnings))
    _refuse(problems_of_rules(mixin.alerts + mixin.rules))
    return mixin


def _refuse(problems: list[str]) -> None:
    if problems:
        raise OptionError(f"the mixin cannot be rendered: {'; '.join(problems)}")


def _evaluate(snippet: str, source: Path, foreign: bool = False) -> Any:
    """foreign : it imports what a user wrote; evaluated in a process of its own, which the engine may take down."""
    try:
        if not foreign:
            return json.loads(_run_engine(snippet, str(source)))
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return json.loads(pool.submit(_run_engine, snippet, str(source)).result())
    except RuntimeError as error:
        if isinstance(error, BrokenProcessPool):
            problem = "the engine crashed; does a value contain itself without end?"
        else:
            problem = _first_lines(str(error))
        raise UserError(f"the mixin does not evaluate: {problem}") from error


def _run_engine(snippet: str, source: str) -> str:
    import rjsonnet  # only this command needs it

    return str(rjsonnet.evaluate_snippet("fabricpulse", snippet, jpathdir=[source]))


def _first_lines(text: str) -> str:
    """The message and the innermost place of a jsonnet error, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[:2])
