"""Environment variables that a command prints, for shells, schedulers and env files. Pure."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fabricpulse.core.errors import UserError


class Format(StrEnum):
    """How variables are printed.

    shell : `export NAME='VALUE'`, for eval, with or without quotes around the substitution. slurm : `export NAME=VALUE`
    with the value as it is, which is what a TaskProlog hands to its task. env : `NAME=VALUE`, for env files
    (docker --env-file, EnvironmentFile=). json : one object, with the reasons.

    No format but json carries comments: a literal reader would make them part of a value.
    """

    SHELL = "shell"
    SLURM = "slurm"
    ENV = "env"
    JSON = "json"


@dataclass(frozen=True)
class Variable:
    """A variable, its value, and why. prepended : to what the variable holds already, with a colon between."""

    name: str
    value: str
    reason: str
    prepended: bool = False

    def value_in(self, environment: Mapping[str, str]) -> str:
        """The value to set in `environment`: prepended to what the variable holds there, unless that has it already."""
        held = environment.get(self.name, "") if self.prepended else ""
        if not held:
            return self.value
        return held if self.value in held.split(":") else f"{self.value}:{held}"


def render(variables: Sequence[Variable], style: Format, environment: Mapping[str, str], **more: Any) -> str:
    """The variables in that format; `environment` is what prepended ones are prepended to. more : for json.

    Raises UserError for a value that the format cannot carry.
    """
    if style is Format.JSON:
        values = {variable.name: variable.value_in(environment) for variable in variables}
        reasons = {variable.name: variable.reason for variable in variables}
        return json.dumps({"variables": values, "reasons": reasons, **more})
    return "\n".join(_line(variable, style, environment) for variable in variables)


def _line(variable: Variable, style: Format, environment: Mapping[str, str]) -> str:
    name, value = variable.name, variable.value_in(environment)
    if style is Format.SHELL:
        if variable.prepended and value != environment.get(name):
            # What it holds where the line is evaluated, which may be elsewhere and later.
            return f"export {name}={shlex.quote(variable.value)}${{{name}:+:${name}}}"
        return f"export {name}={shlex.quote(value)}"
    if "\n" in value or value != value.strip():
        raise UserError(f"{name}={value!r} cannot be said in the format {style}; use --format json")
    return f"{'export ' if style is Format.SLURM else ''}{name}={value}"
