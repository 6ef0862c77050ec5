"""`fabricpulse rules`."""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import msgspec

from fabricpulse.core.command_group import CommandGroup
from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.core.output import OutputFormat, output_option, print_json
from fabricpulse.core.web.client_options import PROMETHEUS, ClientOptions, client_options
from fabricpulse.rules.files import differences, write
from fabricpulse.rules.formats import FORMATS, Placement, files_of, text_of
from fabricpulse.rules.live import VERSIONED, ask
from fabricpulse.rules.mixin import compile_mixin, knobs, mixin_dir
from fabricpulse.rules.perses import DEFAULT_PROJECT


@click.group("rules", cls=CommandGroup)
def command() -> None:
    """Render the recording and alert rules, or check them against a Prometheus."""


# Counting the series of one selector of a large fleet takes a Prometheus seconds.
_LEAST_TIMEOUT_S = 30.0

_overrides = click.option(
    "--config",
    "overrides",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Jsonnet file whose object is added to the mixin, such as { _config+:: { flapThreshold: 5 } }.",
)
_settings = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KNOB=VALUE",
    help="Sets one knob, VALUE being JSON or else text; repeatable. `rules knobs` lists them.",
)


@command.command("render")
@click.option(
    "--output-dir",
    "output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for alerts/, recording/ and dashboards/. Without it all rules go to standard output as one file.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="prometheus",
    show_default=True,
    help="prometheus: rule files and dashboards; prometheusrule: an object for the Prometheus operator; "
    "configmap: one object a dashboard for Grafana's sidecar; grafana: dashboards and their provider; perses: the "
    "dashboards as resources of Perses, in perses/.",
)
@click.option("--namespace", default="monitoring", show_default=True, help="Namespace of Kubernetes objects.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="Label of Kubernetes objects, such as the one that the operator's ruleSelector asks for; repeatable.",
)
@click.option("--project", default=DEFAULT_PROJECT, show_default=True, help="Project of Perses dashboards.")
@_overrides
@_settings
@click.option(
    "--check", is_flag=True, help="Write nothing; fail if the files in --output-dir are not up to date."
)
def render(
    output: Path | None,
    form: str,
    namespace: str,
    labels: tuple[str, ...],
    project: str,
    overrides: Path | None,
    settings: tuple[str, ...],
    *,
    check: bool,
) -> None:
    """Render alerts, recording rules and dashboards from the mixin."""
    place = Placement(namespace, dict(_split("--label", "KEY", label) for label in labels), project)
    if output is None and check:
        raise OptionError("--check needs --output-dir: the folder to compare with")
    mixin = compile_mixin(settings=dict(map(parse_setting, settings)), overrides=overrides)
    for warning in mixin.warnings:
        click.echo(f"warning: {warning}", err=True)
    if output is None:
        click.echo(text_of(mixin, form, place), nl=False)
        return
    content = files_of(mixin, form, place, output)
    if not check:
        write(output, content)
        click.echo(f"{len(content)} files in {output}")
        return
    found = differences(output, content)
    if found:
        raise UserError(f"{output} is not what the mixin renders to: {', '.join(found)}; run `make rules`")


@command.command("check")
@click.option(
    "--prometheus",
    "url",
    required=True,
    envvar=PROMETHEUS,
    show_envvar=True,
    help="URL of the Prometheus that evaluates the rules.",
)
@client_options("Prometheus", PROMETHEUS)
@_overrides
@_settings
@output_option
def check(
    url: str,
    client: ClientOptions,
    overrides: Path | None,
    settings: tuple[str, ...],
    output: OutputFormat,
) -> None:
    """Ask a Prometheus whether each selector of the rules finds series there, and each rate two samples.

    "no series" is a fault: what gives them is scraped, and they are not there (relabelling, a list of metrics to
    keep). No fault by themselves are "not scraped" (a daemon that you do not run), "waits for" (a job, hardware or a
    setting that a fleet need not have) and "nothing wrong": what exporters report only while something is, unless one
    of them is too old to report it, which is counted. Exit status 1: no selector finds any, or a rate never has two
    samples: its window is too short for the scrape interval.
    """
    mixin = compile_mixin(settings=dict(map(parse_setting, settings)), overrides=overrides)
    config = client.config("--prometheus", url)
    found = ask(
        url, mixin, msgspec.structs.replace(config, timeout_s=max(config.timeout_s, _LEAST_TIMEOUT_S))
    )
    if output == "json":
        document = {
            "selectors": found.selectors,
            "empty": found.empty(),
            "unscraped": found.unscraped(),
            "waiting": found.waiting(),
            "quiet": found.quiet(),
            "short": found.short,
            "outdated": {name: each.outdated for name, each in found.exporters.items() if name in VERSIONED},
        }
        click.echo(json.dumps(document, indent=2))
    else:
        for selector in found.empty():
            click.echo(f"no series: {selector}")
        for daemon, selectors in found.unscraped().items():
            for selector in selectors:
                click.echo(f"not scraped: {selector}: no {daemon}")
        # One reason has many selectors: it is said once, and they are below it.
        waiting = sorted(found.waiting().items(), key=lambda each: (each[1], each[0]))
        for reason, some in groupby(waiting, key=lambda each: each[1]):
            click.echo(f"waits for {reason}:")
            for selector, _ in some:
                click.echo(f"  {selector}")
        if quiet := found.quiet():
            click.echo("nothing wrong:")
            for selector in quiet:
                click.echo(f"  {selector}")
        for name, each in found.exporters.items():
            if each.outdated and name in VERSIONED:
                click.echo(
                    f"too old for these rules: {each.outdated} of {each.count} {name} exporters; alerts on what newer "
                    "ones report are silent about them (FabricExporterOld)"
                )
        for window in found.short:
            click.echo(f"fewer than two samples: {window}")
        series = sum(1 for number in found.selectors.values() if number)
        faults, absent = len(found.empty()), sum(map(len, found.unscraped().values()))
        click.echo(
            f"{series} of {len(found.selectors)} selectors find series; {faults} should and do not; "
            f"{absent} are of daemons that are not scraped, {len(found.waiting())} wait for something, "
            f"of {len(found.quiet())} nothing is wrong"
        )
    if found.nothing():
        raise UserError(
            f"nothing in {url} matches: with these rules every alert but FabricWatchdog and FabricNoData stays silent; "
            "compare selector and jobSelector with the labels that the scrape jobs give (external_labels do not count)"
        )
    if found.short:
        raise UserError(
            f"{len(found.short)} windows of rates hold fewer than two samples, so the rules with them stay silent: "
            "scrape more often, or make the windows longer (rateWindow and others of `rules knobs`); a target that was "
            "just added needs two scrapes first"
        )


@command.command("knobs")
@output_option
def list_knobs(output: OutputFormat) -> None:
    """List what --set can change, with the defaults; mixins/config.libsonnet explains each."""
    if output == "json":
        print_json(knobs(mixin_dir()))
        return
    for name, value in sorted(knobs(mixin_dir()).items()):
        click.echo(f"{name}={json.dumps(value)}")


def parse_setting(text: str) -> tuple[str, Any]:
    """`flapThreshold=5` as ("flapThreshold", 5). Raises OptionError without "="."""
    name, value = _split("--set", "KNOB", text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _split(option: str, what: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"{option} {text}: expected {what}=VALUE")
    return name, value
