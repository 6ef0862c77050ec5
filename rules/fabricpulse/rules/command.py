"""`fabricpulse rules`."""

import json
from pathlib import Path
from typing import Any

import click

from fabricpulse.core.errors import UserError
from fabricpulse.rules.files import differences, rendered_files, rules_yaml, write
from fabricpulse.rules.mixin import compile_mixin, knobs, mixin_dir


@click.group("rules")
def command() -> None:
    """Render the recording and alert rules."""


@command.command("render")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for alerts/, recording/ and dashboards/. Without it all rules go to standard output as one file.",
)
@click.option(
    "--config",
    "overrides",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Jsonnet file whose object is added to the mixin, such as { _config+:: { flapThreshold: 5 } }.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KNOB=VALUE",
    help="Sets one knob, VALUE being JSON or else text; repeatable. `rules knobs` lists them.",
)
@click.option(
    "--check", is_flag=True, help="Write nothing; fail if the files in --output are not up to date."
)
def render(output: Path | None, overrides: Path | None, settings: tuple[str, ...], *, check: bool) -> None:
    """Render alerts, recording rules and dashboards from the mixin."""
    mixin = compile_mixin(settings=dict(map(parse_setting, settings)), overrides=overrides)
    if output is None:
        if check:
            raise UserError("--check needs --output: the folder to compare with")
        click.echo(rules_yaml(mixin.alerts + mixin.rules), nl=False)
        return
    content = rendered_files(mixin)
    if not check:
        write(output, content)
        click.echo(f"{len(content)} files in {output}")
        return
    found = differences(output, content)
    if found:
        raise UserError(f"{output} is not what the mixin renders to: {', '.join(found)}; run `make rules`")


@command.command("knobs")
def list_knobs() -> None:
    """List what --set can change, with the defaults; mixins/config.libsonnet explains each."""
    for name, value in sorted(knobs(mixin_dir()).items()):
        click.echo(f"{name}={json.dumps(value)}")


def parse_setting(text: str) -> tuple[str, Any]:
    """`flapThreshold=5` as ("flapThreshold", 5). Raises UserError without "="."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--set {text}: expected KNOB=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
