"""`fabricpulse check`: is a configuration file good, without starting anything.

A file's kind is one of the entry-point group `fabricpulse.configs`. It follows from `--kind`, from the file's name (the
longest kind that it contains: /etc/fabricpulse/mesh.yaml), or by its keys (the one kind that knows most of them).
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from textwrap import indent

import click
import msgspec
import yaml

from fabricpulse.core.config import MAX_CONFIG_BYTES, Section, load_config
from fabricpulse.core.errors import ConfigError, is_exhausted
from fabricpulse.core.file_settings import file_roles, sections_of
from fabricpulse.core.files import read_text_limited
from fabricpulse.core.output import OutputFormat, output_option, print_json, printable
from fabricpulse.core.reference import CONFIGS_GROUP

VALID, INVALID, UNKNOWN = 0, 1, 2
# What a file is called beside the names of its kind; and each <component>-<daemon> is <daemon> where only one is.
_NAMES = {"fleet": "membership", "web": "web-config-file"}

# Settings whose files hold what gives rights to whoever reads them.
_SECRETS = ("key_file", "password_file", "signing_key_file", "token_file")


@dataclass(frozen=True)
class Finding:
    """The result for one file. exit_code : VALID, INVALID, or UNKNOWN if it could not be checked."""

    file: str
    kind: str
    exit_code: int
    error: str = ""
    excerpt: str = ""
    warnings: tuple[str, ...] = ()


def kinds() -> dict[str, type[Section]]:
    """All kinds of configuration files, by name."""
    entries = sorted(entry_points(group=CONFIGS_GROUP), key=lambda entry: entry.name)
    return {entry.name: entry.load() for entry in entries}


def kind_of(path: Path, known: dict[str, type[Section]]) -> str | None:
    """The kind of a file by its name, then by its keys; None if it follows from neither. Raises OSError."""
    stem = path.stem.replace("_", "-").lower()
    daemons = [name.split("-")[1] for name in known if name.count("-") == 1]
    names = {
        name.split("-")[1]: name
        for name in known
        if name.count("-") == 1 and daemons.count(name.split("-")[1]) == 1
    }
    names |= {name: name for name in known} | {name: kind for name, kind in _NAMES.items() if kind in known}
    hits = [name for name in names if name in stem]
    if hits:
        return names[max(hits, key=len)]
    try:
        node = yaml.compose(read_text_limited(path, MAX_CONFIG_BYTES), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError):
        return None
    if not isinstance(node, yaml.MappingNode):
        return None
    keys = {key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
    scores = {
        name: len(keys.intersection(field.encode_name for field in msgspec.structs.fields(kind)))
        for name, kind in known.items()
    }
    best = max(scores.values(), default=0)
    winners = [name for name, score in scores.items() if score == best]
    return winners[0] if best and len(winners) == 1 else None


def check_file(path: Path, kind: str | None = None) -> Finding:
    """Checks one file and those that it names; the error is that with which its daemon would refuse to start, or will
    once the setting is used (a token for Alertmanagers of which there is none yet).

    A named file that cannot be read here is a warning: keys and tokens are on the daemon's machine, and the check is
    run in a repository of configurations, too. One that is here and cannot be used is an error.
    """
    known = kinds()
    try:
        name = kind or kind_of(path, known)
    except OSError as error:
        return Finding(str(path), "", UNKNOWN, f"cannot read {path}: {error.strerror}")
    if name is None:
        text = f"{path}: cannot tell what kind of file it is; say it with --kind: {', '.join(sorted(known))}"
        return Finding(str(path), "", UNKNOWN, text)
    try:
        content = load_config(path, known[name])
    except ConfigError as error:
        code = UNKNOWN if isinstance(error.__cause__, OSError) else INVALID
        return Finding(str(path), name, code, str(error), error.excerpt)
    warnings = content.warnings()
    try:
        warnings += _check_named_files(content, path)
    except ConfigError as error:
        # That this process may open no more files is no mistake of anybody's.
        code = UNKNOWN if is_exhausted(error) else INVALID
        return Finding(str(path), name, code, f"{path}: {error}", error.excerpt)
    return Finding(str(path), name, VALID, warnings=tuple(warnings))


def _check_named_files(content: Section, path: Path) -> list[str]:
    """What is odd about the files that a configuration names. Raises ConfigError for one that cannot be used."""
    found: list[str] = []
    read: dict[str, object] = {}
    missing: list[str] = []
    for where, section in sections_of(content):
        prefix = f"{where}." if where else ""
        for field in msgspec.structs.fields(type(section)):
            role, value = file_roles(type(section)).get(field.name), getattr(section, field.name)
            if role is None or role.use != "read" or not value:
                continue
            setting, file = f"{prefix}{field.encode_name}", (path.parent if role.beside else Path()) / value
            try:
                with file.open("rb") as opened:
                    if field.name in _SECRETS and os.fstat(opened.fileno()).st_mode & 0o007:
                        found.append(
                            f"{setting}: every user of this machine may use {file}: chmod o= takes it away"
                        )
            except OSError as error:
                if is_exhausted(error):
                    raise ConfigError(f"{setting}: cannot read {file}: {error.strerror}") from error
                advice = f"; {role.advice.format(file=file)}" if role.advice else ""
                found.append(
                    f"{setting}: cannot read {file}: {error.strerror}; a daemon that uses it does not start{advice}"
                )
                missing.append(setting)
                continue
            if role.reader:
                read[setting] = _reading(setting, partial(resolve_name(role.reader), file))
        if section.FILES_READER and not any(setting.startswith(prefix) for setting in missing):
            _reading(where, partial(resolve_name(section.FILES_READER), path, section))
        found += section.file_warnings(
            {key.removeprefix(prefix): value for key, value in read.items() if key.startswith(prefix)}
        )
    return found


def _reading(setting: str, read: Callable[[], object]) -> object:
    try:
        return read()
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}" if setting else str(error), error.excerpt) from error


@click.command("check")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--kind", metavar="KIND", help="What the files are, instead of by their names and keys.")
@click.option(
    "--strict",
    is_flag=True,
    help="Fail on warnings too, a secret that is yet to be made say: on the machine of the daemons.",
)
@output_option
@click.pass_context
def command(
    ctx: click.Context, files: tuple[Path, ...], kind: str | None, output: OutputFormat, *, strict: bool
) -> None:
    """Check configuration files and those that they name, without a daemon.

    A named file that is not on this machine, such as a key, is a warning. Exit code 0: all are good; 1: one is not, or
    with --strict has a warning; 2: one cannot be read or its kind is not known.
    """
    known = kinds()
    if kind is not None and kind not in known:
        raise click.BadParameter(f"{kind!r} is none of: {', '.join(sorted(known))}", param_hint="--kind")
    findings = [check_file(file, kind) for file in files]
    if output == "json":
        print_json([asdict(finding) | {"valid": finding.exit_code == VALID} for finding in findings])
    else:
        for finding in findings:
            _show(finding)
    warned = strict and any(finding.warnings for finding in findings)
    ctx.exit(max(INVALID if warned else VALID, *(finding.exit_code for finding in findings)))


def _show(finding: Finding) -> None:
    if finding.exit_code == VALID:
        click.echo(f"{finding.file}: good ({finding.kind})")
        for warning in finding.warnings:
            click.echo(f"  warning: {printable(warning)}")
        return
    click.echo(printable(finding.error))
    if finding.excerpt:
        click.echo(indent("\n".join(printable(line) for line in finding.excerpt.split("\n")), "  "))
